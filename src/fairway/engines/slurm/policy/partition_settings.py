"""Read the limits of partitions, and the GPUs of the nodes they share, as settings of a FoundPolicy. Pure.

`partition/NAME/PARAMETER` has what slurm.conf sets on a partition, where that is not the default.
`nodes/NAME,NAME` has the resources of the nodes that are in exactly these partitions, with GPUs by type also
where AccountingStorageTRES has no types, and those that jobs can share: `shared/shard:l4/4=8` are eight
GPUs of four shards each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from fairway.engines.slurm.nodes.devices import parse_gres, shares_per_gpu
from fairway.engines.slurm.rest.wire import WireNode

NODES: Final = "nodes/"
"""Prefix of the names of partitions that share nodes."""

_TYPED: Final = re.compile(r"gres/gpu:([^,=]+)=(\d+)")
_SHARED: Final = re.compile(r"shared/(\w+)(?::([^,=/]+))?/(\d+)=(\d+)")
_COUNT: Final = re.compile(r"(?:^|,)gres/gpu=(\d+)")

_TEXTS: Final = {
    "AllowAccounts": "accounts.allowed",
    "DenyAccounts": "accounts.deny",
    "AllowGroups": "groups.allowed",
    "AllowQos": "qos.allowed",
    "DenyQos": "qos.deny",
    "QOS": "qos.assigned",
    "AllocNodes": "nodes.allowed_allocation",
    "Alternate": "alternate",
    "JobDefaults": "defaults.job",
}
# Minutes and counts with a flag whether they are set
_NUMBERS: Final = {
    "MaxTime": "maximums.time",
    "DefaultTime": "defaults.time",
    "OverTimeLimit": "maximums.over_time_limit",
    "MaxNodes": "maximums.nodes",
    "MaxCPUsPerNode": "maximums.cpus_per_node",
    "MaxCPUsPerSocket": "maximums.cpus_per_socket",
    "MaxMemPerCPU": "maximums.partition_memory_per_cpu",
    "MaxMemPerNode": "maximums.partition_memory_per_node",
    "DefMemPerCPU": "defaults.partition_memory_per_cpu",
    "DefMemPerNode": "defaults.partition_memory_per_node",
}
_DEFAULTS: Final = {"minimums.nodes": ("MinNodes", 1), "grace_time": ("GraceTime", 0)}
PARTITION_PARAMETERS: Final = (
    *_TEXTS,
    *_NUMBERS,
    *(parameter for parameter, _ in _DEFAULTS.values()),
    "OverSubscribe",
    "PriorityJobFactor",
    "State",
)
"""Parameters that `partition_settings` reads; slurmrestd does not show RootOnly, Hidden or PreemptMode."""


def partition_settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a partition that are not at their defaults, named as in slurm.conf.

    Times are in minutes, memory in MB.
    """
    found = {name: text for name, path in _TEXTS.items() if (text := _at(record, path))}
    for name, path in _NUMBERS.items():
        raw = _at(record, path) or {}
        if raw.get("set") and not raw.get("infinite") and raw.get("number"):
            found[name] = str(raw["number"])
    for path, (name, default) in _DEFAULTS.items():
        value = _at(record, path)
        if isinstance(value, int) and value > default:
            found[name] = str(value)
    if (factor := _at(record, "priority.job_factor")) not in (None, 1):
        found["PriorityJobFactor"] = str(factor)
    if (state := ",".join(_at(record, "partition.state") or ())) not in ("", "UP"):
        found["State"] = state
    if share := _oversubscribe(_at(record, "maximums.oversubscribe") or {}):
        found["OverSubscribe"] = share
    return {f"partition/{record['name']}/{name}": str(value) for name, value in found.items()}


def _oversubscribe(raw: Mapping[str, Any]) -> str:
    jobs = raw.get("jobs", 1)
    if jobs == 0:
        return "EXCLUSIVE"
    if "force" in (raw.get("flags") or ()):
        return f"FORCE:{jobs}"
    return f"YES:{jobs}" if jobs > 1 else ""


def _at(record: Mapping[str, Any], path: str) -> Any:
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def node_settings(nodes: Iterable[WireNode]) -> dict[str, str]:
    """Return the resources of nodes by the partitions they are in: `nodes/long,short` → `node=2,...`."""
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for node in nodes:
        if not node.partitions:
            continue
        totals = groups.setdefault(tuple(sorted(node.partitions)), {"node": 0})
        totals["node"] += 1
        for kind, count in _gpus(node.gres):
            totals[kind] = totals.get(kind, 0) + count
    return {
        f"{NODES}{','.join(partitions)}": ",".join(f"{name}={count}" for name, count in totals.items())
        for partitions, totals in sorted(groups.items())
    }


@lru_cache(maxsize=4096)  # many nodes, few kinds of them
def _gpus(gres: str) -> tuple[tuple[str, int], ...]:
    gpus = [entry for entry in parse_gres(gres) if entry.name == "gpu"]
    every = (("gres/gpu", sum(entry.count for entry in gpus)),) if gpus else ()
    by_type = ((f"gres/gpu:{entry.type}", entry.count) for entry in gpus if entry.type)
    shares = (
        (
            f"shared/{name}{f':{shared.type}' if shared.type else ''}/{shared.per_gpu}",
            sum(e.count for e in gpus if e.type == shared.type),
        )
        for name, shared in shares_per_gpu(gres).items()
    )
    return (*every, *by_type, *shares)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes that are in exactly these partitions, added up."""

    partitions: frozenset[str]
    nodes: int
    gpus: int
    by_type: Mapping[str, int]
    """GPUs by GRES type; less than `gpus` if some have none."""
    shared: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """GPUs that jobs can share, by the GRES of the shares, the GPUs' type, and how many each GPU has."""


def node_groups(settings: Mapping[str, str]) -> tuple[NodeGroup, ...]:
    """Return the groups of nodes in the settings of a FoundPolicy."""
    return tuple(_groups(settings))


def _groups(settings: Mapping[str, str]) -> Iterator[NodeGroup]:
    for key, text in settings.items():
        if key.startswith(NODES):
            count = _COUNT.search(text)
            yield NodeGroup(
                frozenset(key.removeprefix(NODES).split(",")),
                int(text.partition(",")[0].removeprefix("node=")),
                int(count[1]) if count else 0,
                {kind: int(number) for kind, number in _TYPED.findall(text)},
                {(name, kind, int(each)): int(gpus) for name, kind, each, gpus in _SHARED.findall(text)},
            )


def shared_gpus(
    settings: Mapping[str, str], partitions: Iterable[str], gres: str | None = None
) -> dict[tuple[str, int], int]:
    """Count the GPUs of these partitions that jobs can share, by the GRES of the shares and their number.

    `gres` is the type of GPUs that count; None: all.
    """
    wanted = frozenset(partitions)
    found: dict[tuple[str, int], int] = {}
    for group in node_groups(settings):
        for (name, kind, each), gpus in group.shared.items() if wanted & group.partitions else ():
            if gres is None or gres == kind:
                found[name, each] = found.get((name, each), 0) + gpus
    return found


def gpu_types(settings: Mapping[str, str], partitions: Iterable[str]) -> dict[str, int]:
    """Count the GPUs of these partitions together by GRES type, each node once."""
    wanted = frozenset(partitions)
    found: dict[str, int] = {}
    for group in node_groups(settings):
        if wanted & group.partitions:
            for kind, count in group.by_type.items():
                found[kind] = found.get(kind, 0) + count
    return found
