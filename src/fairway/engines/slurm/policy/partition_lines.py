"""Lines of slurm.conf for the partitions of pools: the site's own and, over the same nodes, a second. Pure.

A second partition is a copy: every limit and access rule of the site's partition is in its line, so nothing
can run in it that could not run before. slurmrestd shows most options of a partition; those it does not show
are named in a comment beside the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.partition_settings import shared_gpus
from fairway.engines.slurm.policy.translate import PolicyContext

BILLING: Final = "GRES/gpu=1.0"
OWN_TIER, LENT_TIER = 10, 1
"""The tiers of partitions whose tiers are not known."""

NOT_SHOWN: Final = (
    "DisableRootJobs, ExclusiveTopo, ExclusiveUser, Hidden, LLN, ReqResv, RootOnly, SelectTypeParameters"
)
"""Options of a partition that slurmrestd does not show, or not on every version."""

_JOB_DEFAULTS: Final = ("DefCpuPerGPU", "DefMemPerGPU")
_MINUTES: Final = ("DefaultTime", "MaxTime")

_COPIED: Final[tuple[str, ...]] = (
    "AllocNodes",
    "AllowAccounts",
    "DenyAccounts",
    "AllowGroups",
    "DefMemPerCPU",
    "DefMemPerNode",
    "DefaultTime",
    "GraceTime",
    "MaxCPUsPerNode",
    "MaxCPUsPerSocket",
    "MaxMemPerCPU",
    "MaxMemPerNode",
    "MaxNodes",
    "MaxTime",
    "MinNodes",
    "OverSubscribe",
    "OverTimeLimit",
    "PriorityJobFactor",
    "State",
    *_JOB_DEFAULTS,
)
"""Options that the second partition has as the site's own has them."""


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """What the line of one partition must say."""

    partition: str
    options: Mapping[str, str]
    why: str
    note: str = ""
    """What an administrator has to look at beside it."""
    is_second: bool = False
    """Whether the whole line is Fairway's."""

    @property
    def line(self) -> str:
        options = (f"{key}={_written(key, value)}" for key, value in self.options.items())
        return " ".join((f"PartitionName={self.partition}", *options))


def partition_lines(context: PolicyContext) -> Iterator[PartitionLine]:
    """Yield the two lines of each partition of a pool. Nodes and limits are named if known."""
    for partition in context.partitions:
        running = _running(context.settings, partition)
        lent = names.lent_partition(partition)
        own_tier, lent_tier = _tiers(context, partition)
        weights = _billing(context, partition, running)
        yield PartitionLine(
            partition,
            {
                "PriorityTier": own_tier,
                "QOS": context.gate(partition),
                "TRESBillingWeights": weights,
                **_qos_access(context, partition),
            },
            "what is guaranteed goes first; beside what the line of this partition says already",
        )
        copied: dict[str, str] = {key: running[key] for key in _COPIED if key in running}
        site_qos = context.partition_qos(partition)
        yield PartitionLine(
            lent,
            {
                "Nodes": running.get("Nodes") or f"(those of {partition})",
                "PriorityTier": lent_tier,
                "TRESBillingWeights": weights,
                **copied,
                **({"QOS": site_qos} if site_qos else {}),
                **_qos_access(context, partition),
            },
            f"everything else runs here, on the same nodes and within the limits of {partition}",
            f"if the line of {partition} has one of these, copy it too: {NOT_SHOWN}",
            is_second=True,
        )


def _written(option: str, value: str) -> str:
    """Return the value of an option as slurm.conf has it."""
    if option in _MINUTES:
        days, minutes = divmod(int(value), 1440)
        return f"{f'{days}-' if days else ''}{minutes // 60:02}:{minutes % 60:02}:00"
    return f'"{value}"' if "=" in value and "," in value else value


def is_right(wanted: PartitionLine, settings: Mapping[str, str]) -> bool:
    """Return whether the running partition has what its line must say, and no limit or rule less."""
    running = _running(settings, wanted.partition)
    if "PriorityTier" not in running:
        return False
    # A partition that somebody drains for a while is no reason to change slurm.conf.
    options = {key: value for key, value in wanted.options.items() if key != "State"}
    return all(_same(key, running.get(key, ""), value) for key, value in options.items())


def shown(partition: str, settings: Mapping[str, str]) -> str:
    """Return the options of a running partition that its line could change."""
    running = _running(settings, partition)
    return " ".join(f"{key}={value}" for key, value in running.items() if value and key != "TRES")


def _running(settings: Mapping[str, str], partition: str) -> dict[str, str]:
    prefix = f"partition/{partition}/"
    running = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    # slurmctld shows them as one text, DefCpuPerGPU=4,DefMemPerGPU=8000; slurm.conf has them by name
    defaults = dict(word.split("=", 1) for word in running.pop("JobDefaults", "").split(",") if "=" in word)
    return running | {
        name: defaults[key] for key in defaults for name in _JOB_DEFAULTS if name.lower() == key.lower()
    }


def _tiers(context: PolicyContext, partition: str) -> tuple[str, str]:
    """Return the tier of a partition and of its second one, which is below every partition of the pool.

    The site's tiers stay as they are if there is room below them, else all of them are raised alike. The
    second partitions have the order of the first ones.
    """
    here = {p for site in context.sites if partition in site.partitions for p in site.partitions}
    own = {p: context.settings.get(f"partition/{p}/PriorityTier") for p in here}
    lent = {p: context.settings.get(f"partition/{names.lent_partition(p)}/PriorityTier") for p in here}
    known = {p: int(tier) for p, tier in own.items() if tier is not None}
    if partition not in known:
        return str(OWN_TIER), str(LENT_TIER)
    lowest = min(known.values())
    if all(tier is not None and int(tier) < lowest for tier in lent.values()):
        return str(known[partition]), str(lent[partition])
    ranks = {tier: rank for rank, tier in enumerate(sorted(set(known.values())))}
    raised = max(0, len(ranks) - lowest)
    return str(known[partition] + raised), str(ranks[known[partition]])


def _billing(context: PolicyContext, partition: str, running: Mapping[str, str]) -> str:
    """Return the billing weights: the site's, if they count GPUs. A share counts as its part of a GPU."""
    weights = running.get("TRESBillingWeights") or ""
    if "gres/gpu" in weights.lower():
        return weights
    per_gpu: dict[str, int] = {}
    for name, each in sorted(shared_gpus(context.settings, (partition,))):
        per_gpu.setdefault(name, each)  # of several, the fewest: a share never counts for less than it is
    return ",".join((BILLING, *(f"GRES/{name}={round(1 / each, 4)}" for name, each in per_gpu.items())))


def denied_qos(context: PolicyContext, partition: str) -> frozenset[str]:
    """Return the site's QOS that may not use a partition."""
    settings = context.settings
    places = [f"partition/{name}" for name in (partition, names.lent_partition(partition))]
    site_qos = [q for q in settings.get(names.SITE_QOS, "").split(",") if q]
    allowed = settings.get(f"{places[0]}/AllowQos", "")
    denied = {q for place in places for q in settings.get(f"{place}/DenyQos", "").split(",") if q}
    if allowed:
        denied |= set(site_qos) - set(allowed.split(","))
    return frozenset(denied)


def _qos_access(context: PolicyContext, partition: str) -> dict[str, str]:
    """Return which QOS may use a partition.

    A list of allowed QOS would have to name each of Fairway's, and change with every team; the site's QOS
    that are not on it are denied instead.
    """
    denied = denied_qos(context, partition)
    listed = denied or context.settings.get(f"partition/{partition}/AllowQos")
    return {"AllowQos": "ALL", "DenyQos": ",".join(sorted(denied))} if listed else {}


def _same(key: str, running: str, wanted: str) -> bool:
    same: Callable[[str], object] = _set if key.startswith(("Allow", "Deny")) else str.lower
    if key == "AllowQos" and wanted == "ALL":
        return running in ("", "ALL")
    if key == "TRESBillingWeights":
        return _weights(running) == _weights(wanted)
    return same(running) == same(wanted)


def _weights(text: str) -> frozenset[str]:
    return frozenset(word for word in text.lower().split(",") if word and not word.endswith("=0.0"))


def _set(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))
