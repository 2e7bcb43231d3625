"""List the lines of slurm.conf that a policy needs, and notices of what Slurm cannot quite do. Pure.

The lines are compared with the running configuration. slurmrestd shows slurm.conf from 26.05 on (API
v0.0.45), before that only partitions, and never what slurmdbd.conf has in private. A line that cannot be
compared says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fairway.engines.slurm.nodes.devices import MIG_PROFILE
from fairway.engines.slurm.policy import attached, names
from fairway.engines.slurm.policy.partition_lines import is_right, partition_lines, shown
from fairway.engines.slurm.policy.partition_settings import partition_settings, shared_gpus
from fairway.engines.slurm.policy.translate import UNTYPED, PolicyContext, ceiling_of
from fairway.model.fleet import SlurmPlace
from fairway.model.gpu import replicas_of
from fairway.model.team import DEFAULT_FAIRNESS
from fairway.model.text import first_few
from fairway.policy.objects import Advice, Notice

UNSEEN: Final = "not shown by slurmrestd"
SLURM_CONF, SLURMDBD_CONF, LUA_FILE = "slurm.conf", "slurmdbd.conf", "job_submit.lua"
RECONFIGURE: Final = "scontrol reconfigure"

FAIRSHARE_WEIGHT: Final = 100_000
QOS_WEIGHT: Final = 10_000_000
AGE_WEIGHT: Final = 2 * FAIRSHARE_WEIGHT
SHORT_HALF_LIFE_SECONDS: Final = 3600

_PUBLIC: Final = "leave it out where people may see each other's jobs, as they do without it"

_CONF_KEYS: Final = (
    "AccountingStorageEnforce",
    "AccountingStorageTRES",
    "JobRequeue",
    "JobSubmitPlugins",
    "PreemptMode",
    "PreemptType",
    "PriorityCalcPeriod",
    "PriorityDecayHalfLife",
    "PriorityMaxAge",
    "PriorityType",
    "PriorityWeightAge",
    "PriorityWeightFairshare",
    "PriorityWeightQOS",
    "PrivateData",
)


@dataclass(frozen=True, slots=True)
class ConfLine:
    """A line that a policy needs: a parameter, its value, and a check whether another value will do too."""

    parameter: str
    value: str
    why: str
    accepts: Callable[[str, str], bool]
    file: str = SLURM_CONF
    restart: str = RECONFIGURE
    is_list: bool = False
    """Whether the value is added to a list that the site may have."""
    optional: str = ""
    """Where to leave it out, if the policy works without it too."""

    @property
    def line(self) -> str:
        return f"{self.parameter}={self.value}"


def found_settings(partitions: Mapping[str, Any], conf: Mapping[str, Any] | None) -> dict[str, str]:
    """Flatten the running configuration the API shows: `PreemptType`, `partition/gpu/Nodes`."""
    settings: dict[str, str] = {}
    for partition in partitions.get("partitions") or ():
        prefix = f"partition/{partition['name']}"
        settings[f"{prefix}/Nodes"] = partition["nodes"]["configured"]
        settings[f"{prefix}/PriorityTier"] = str(partition["priority"]["tier"])
        settings[f"{prefix}/QOS"] = partition["qos"]["assigned"]
        settings[f"{prefix}/TRES"] = partition["tres"]["configured"]
        settings[f"{prefix}/TRESBillingWeights"] = partition["tres"]["billing_weights"]
        settings |= partition_settings(partition)
    if conf is not None:
        running = conf.get("slurm_conf") or {}
        settings |= {name: _text(running[name]) for name in _CONF_KEYS if name in running}
    return settings


def required_lines(context: PolicyContext) -> Iterator[ConfLine]:
    """Yield a line for every parameter that the fleet's policy depends on.

    Lists have what the site's have already, as far as that is shown. The site's half-life stays if the fleet
    file says nothing about it: Slurm's default is the same as Fairway's.
    """
    for need in _needed(context):
        running = context.settings.get(need.parameter) if need.file == SLURM_CONF else None
        yield replace(need, value=_union(running, need.value)) if running and need.is_list else need


def _needed(context: PolicyContext) -> Iterator[ConfLine]:
    types = sorted({site.tres for site in context.sites if site.gres is not None})
    seconds = context.fleet.fairness.half_life_seconds
    half_life = format_time(seconds)
    yield ConfLine(
        "AccountingStorageEnforce",
        "associations,limits,qos",
        "limits count; jobs of people without an account are refused then, and with qos those with a QOS "
        "that the account does not have; a line with limits and without qos may stay",
        _has_limits,
        is_list=True,
    )
    names_of_shares = {name for name, _ in shared_gpus(context.settings, context.partitions)}
    names_of_shares |= {site.shares for site in context.sites if site.shares is not None}
    tracked = ",".join((UNTYPED, *types, *(f"gres/{name}" for name in sorted(names_of_shares))))
    yield ConfLine(
        "AccountingStorageTRES",
        tracked,
        "GPUs are counted by type",
        _has_all,
        restart="systemctl restart slurmctld",
        is_list=True,
    )
    yield ConfLine(
        "PreemptType",
        "preempt/qos",
        "GPUs on loan are reclaimed by QOS; partitions no longer preempt each other",
        _same,
    )
    yield ConfLine("PreemptMode", "REQUEUE", "a job whose place is taken starts again", _has_all)
    yield ConfLine("JobRequeue", "1", "a job whose place is taken starts again", _same)
    yield ConfLine(
        "JobSubmitPlugins",
        "lua",
        "plain sbatch gets its team's QOS (fairway render slurm)",
        _has_all,
        is_list=True,
    )
    yield ConfLine("PriorityType", "priority/multifactor", "shares and past use count", _same)
    if context.fleet.fairness != DEFAULT_FAIRNESS:
        yield ConfLine("PriorityDecayHalfLife", half_life, "past use is forgiven", _same_time)
        yield ConfLine("PriorityMaxAge", half_life, "who waited for half a half-life goes first", _same_time)
    if seconds < SHORT_HALF_LIFE_SECONDS:
        yield ConfLine("PriorityCalcPeriod", "00:01:00", "a short half-life needs a short period", _same_time)
    yield ConfLine("PriorityWeightFairshare", str(FAIRSHARE_WEIGHT), "shares and past use count", _same)
    yield ConfLine("PriorityWeightQOS", str(QOS_WEIGHT), "guaranteed before borrowed before low", _same)
    yield ConfLine("PriorityWeightAge", str(AGE_WEIGHT), "who waited for half a half-life goes first", _same)
    yield ConfLine(
        "DisableRootJobs",
        "YES",
        "no job runs as root, whoever asks for it",
        _same,
        optional="leave it out where root runs jobs of the site's own",
    )
    yield ConfLine(
        "PrivateData", "jobs,usage", "nobody sees another's jobs", _has_all, is_list=True, optional=_PUBLIC
    )
    yield ConfLine(
        "PrivateData",
        "jobs,usage",
        "nobody sees another's jobs with sacct",
        _has_all,
        SLURMDBD_CONF,
        "systemctl restart slurmdbd",
        optional=_PUBLIC,
    )


def advice(context: PolicyContext, settings: Mapping[str, str]) -> tuple[Advice, ...]:
    """Return lines that must still be written, or cannot be verified; empty when all is as it should be."""
    lines: list[Advice] = []
    for need in required_lines(context):
        if need.optional:
            continue
        key = need.parameter if need.file == SLURM_CONF else f"{need.file}/{need.parameter}"
        running = settings.get(key)
        if running is None or not need.accepts(running, need.value):
            shown = UNSEEN if running is None else running
            lines.append(Advice(need.file, need.line, shown, need.why, need.restart, unseen=running is None))
    return (*lines, *_partition_advice(context, settings))


def _partition_advice(context: PolicyContext, settings: Mapping[str, str]) -> Iterator[Advice]:
    for wanted in partition_lines(context):
        if not is_right(wanted, settings):
            running = shown(wanted.partition, settings)
            yield Advice(SLURM_CONF, wanted.line, running, wanted.why, RECONFIGURE)


def format_time(seconds: int) -> str:
    """Format seconds as days-hours:minutes:seconds, as slurm.conf expects it."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    time = f"{hours:02}:{minutes:02}:{left:02}"
    return f"{days}-{time}" if days else time


def parse_time(text: str) -> int | None:
    """Parse a time written by `format_time` or shown by slurmctld. Returns None if it is no time."""
    days, dash, rest = text.partition("-")
    try:
        total = 0
        for part in (rest if dash else text).split(":"):
            total = total * 60 + int(part)
        return total + (int(days) * 86_400 if dash else 0)
    except ValueError:
        return None


def _same(running: str, wanted: str) -> bool:
    return running.lower() == wanted.lower()


def _same_time(running: str, wanted: str) -> bool:
    return parse_time(running) == parse_time(wanted)


def _has_all(running: str, wanted: str) -> bool:
    return {w.lower() for w in wanted.split(",")} <= {w.lower() for w in running.split(",")}


def _has_limits(running: str, wanted: str) -> bool:
    """Return whether limits count, which implies associations. Sites without `qos` need not begin with it."""
    return _has_all(running, "limits")


def _union(running: str, wanted: str) -> str:
    words = running.split(",")
    has = {word.lower() for word in words}
    return ",".join((*words, *(word for word in wanted.split(",") if word.lower() not in has)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list):
        return ",".join(str(v) for v in value)
    if isinstance(value, dict):
        return str(value.get("number", ""))
    return str(value)


def notices(context: PolicyContext, lines: Iterable[Advice] = ()) -> Iterator[Notice]:
    """Yield only notices that concern this fleet: others would be noise."""
    if context.settings.get(attached.CONTROL_HOST) == "":
        error = attached.detached()
        yield Notice(error.code, error.message, error.hint)
    typed = (site.partition for site in context.sites if site.gres)
    untyped = [partition for partition in typed if not _counts_types(context, partition)]
    if context.teams and untyped:
        yield Notice(
            "JobsBeforeTypes",
            f"GPUs of partition {', '.join(dict.fromkeys(untyped))} are not counted by type yet: jobs that "
            "start before AccountingStorageTRES names the types count in no limit of a team until they end",
            "install AccountingStorageTRES before the apply, or expect a team above its limit for a while",
            promise="ceiling",
        )
    if context.teams and any(a.line.startswith("PartitionName=") for a in lines):
        yield Notice(
            "FilesAfterApply",
            "until the new slurm.conf and job_submit.lua are installed, accounts have their teams' limits "
            "and jobs run with the QOS they had: nothing is guaranteed or on loan yet, and nothing is "
            "refused "
            "that ran before",
            "apply, then install the files:  fairway render slurm --out DIR",
            promise="native",
        )
    yield from _shared_gpus(context)
    yield from _shared_types(context)
    yield from _unknown_types(context)
    yield from _several_types(context)
    yield from _site_qos(context)
    yield from _partition_limits(context)
    if (private := context.settings.get("PrivateData")) is not None and not _has_all(private, "jobs,usage"):
        yield Notice(
            "JobsVisible",
            f"everybody sees everybody's jobs and usage, as before: PrivateData={private or 'none'}",
            "where that must not be:  PrivateData=jobs,usage  in slurm.conf and slurmdbd.conf",
            promise="isolation",
        )
    if any(context.has_urgent(team) for team in context.teams):
        yield Notice(
            "UrgentByIntervention",
            "Slurm checks a team's limit before it looks for jobs to preempt, so an urgent job of a team "
            "that "
            "is at its limit waits until Fairway requeues a job of the same team",
            "keep fairway server running; by hand:  scontrol requeue JOB",
            promise="priority",
        )
    if any(context.kin_guarantee(team, site.supply) for team in context.teams for site in context.sites):
        yield Notice(
            "KinCountsApart",
            "Slurm counts what children leave to each other apart from what the family uses: a family at its "
            "guarantee can reclaim more GPUs on loan, up to its children's guarantees; any guarantee "
            "reclaims "
            "them in turn",
            "where that matters, give the guarantee to the parent and none to its children",
            promise="hierarchy",
        )
    if any(ceiling_of(context, team, site) for team in context.teams for site in context.sites if site.gres):
        yield Notice(
            "NoRoomKeptUnderLimit",
            "Slurm keeps nodes for a large job that waits, but no room under its team's limit: while smaller "
            "jobs of the same team keep the team there, a job about as large as the limit waits on",
            "hold the smaller ones until it starts:  scontrol hold JOB,JOB; or leave borrow out",
            promise="no-starvation",
        )
    if len(context.teams) > 1:
        yield Notice(
            "LargerVictim",
            "Slurm may requeue a larger borrowing job than needed when several are on the node it chose",
            "let jobs of similar size borrow, or accept it:  man slurm.conf, preempt_reorder_count does "
            "not help",
            promise="least-harm",
        )


def _several_types(context: PolicyContext) -> Iterator[Notice]:
    for partition in context.partitions:
        types = sorted({s.gres for s in context.sites if partition in s.partitions and s.gres is not None})
        if len(types) > 1:
            yield Notice(
                "TypeMustBeNamed",
                f"GPU jobs of teams in partition {partition} must name a type, as its GPUs have several "
                f"({', '.join(types)}): --gres=gpu:N, which ran before, is refused: Slurm's limits by "
                "type do not see it",
                f"tell people to write  --gres=gpu:{types[0]}:N",
            )


def _site_qos(context: PolicyContext) -> Iterator[Notice]:
    """Yield a notice of limits of the site's QOS that do not count for GPU jobs any more."""
    listed = {
        name
        for team in context.teams
        for name in context.settings.get(f"{names.SITE_ACCOUNT}{team.account_name}", "").split(",")
    }
    limits = {name: context.settings.get(f"{names.QOS_LIMITS}{name}") for name in sorted(listed)}
    if lost := [f"{name} ({text})" for name, text in limits.items() if text]:
        yield Notice(
            "SiteQosLimits",
            "GPU jobs of teams run by priority in pools' partitions, not as QOS of the site: limits of "
            f"{', '.join(lost)} do not count for them; MaxWall and the GPUs of one user do",
            "set  limits  of a team in the fleet file:  fairway plan -o wide",
        )


def _partition_limits(context: PolicyContext) -> Iterator[Notice]:
    """Yield a notice of limits of one user that the site has on a partition: two partitions have them now."""
    teams = Counter(user for team in context.teams for user in team.members)
    in_several = sorted(user for user, count in teams.items() if count > 1)
    for partition in context.partitions:
        qos = context.partition_qos(partition)
        gpus = context.settings.get(f"{names.QOS_USER_GPUS}{qos}")
        others = [w for w in context.settings.get(f"{names.QOS_LIMITS}{qos}", "").split() if "PerUser" in w]
        if not qos or not (others or (gpus and in_several)):
            continue
        twice = f"{' '.join(others)} counts in each of {partition} and {names.lent_partition(partition)}"
        by_team = f"the {gpus} GPUs of one user count in each team of {first_few(in_several, 5)}"
        found = [*([twice] if others else []), *([by_team] if gpus and in_several else [])]
        yield Notice(
            "PartitionLimitsOfUsers",
            f"QOS {qos} limits each user in partition {partition}, which gets a second: {'; '.join(found)}",
            "say what a user may have in the fleet file:  limits: { user: { gpus: N } }  of a team",
        )


def _counts_types(context: PolicyContext, partition: str) -> bool:
    """Return whether Slurm counts the GPUs of a partition by type, or does not say."""
    tres = context.settings.get(f"partition/{partition}/TRES", "")
    return f"{UNTYPED}:" in tres or f"{UNTYPED}=" not in tres


def _shared_gpus(context: PolicyContext) -> Iterator[Notice]:
    """Yield what Slurm cannot limit of shared GPUs, and where nodes share them otherwise than pools say."""
    for site in context.sites:
        slice_ = site.supply.slice
        if site.shares is not None:
            yield Notice(
                "SharesNotLimited",
                f"Slurm counts {site.untyped} of all GPU types together: {site.supply} has guarantees, but "
                "no ceiling and no limit of a job or user",
                "let only teams use it that may borrow all of it",
                promise="ceiling",
            )
        place = context.fleet.pool(site.supply.pool).place
        gres = site.gres or (place.gres if isinstance(place, SlurmPlace) else None)
        shared_by = shared_gpus(context.settings, site.partitions, gres)
        found = sorted({each for _, each in shared_by if each > 1})
        if MIG_PROFILE.fullmatch(slice_ or "") or found in ([], [replicas_of(slice_ or "")]):
            continue
        shared = ", ".join(f"shared-{each}" for each in found)
        yield Notice(
            "SharingNotDeclared",
            f"jobs can share GPUs of partition {', '.join(site.partitions)} ({shared}), and pool "
            f"{site.supply.pool} has {slice_ or 'whole GPUs'}: reports and charges count each share as its "
            "part of a GPU, and no guarantee or limit counts it",
            f"where jobs shall only have shares:  slices: [shared-{found[0]}]  in pool {site.supply.pool} "
            "and in grants; a partition and a pool for each kind of node",
        )


def _shared_types(context: PolicyContext) -> Iterator[Notice]:
    by_type: dict[str, list[str]] = {}
    for site in context.sites:
        if site.gres is not None:
            by_type.setdefault(site.gres, []).append(str(site.supply))
    for kind, supplies in by_type.items():
        if len(supplies) > 1:
            yield Notice(
                "PoolsShareType",
                f"{' and '.join(supplies)} have one GRES type, {kind}: Slurm limits what a team holds of "
                "them together, and only job_submit.lua keeps a team without a grant out of one of them",
                f"give their GPUs types of their own in gres.conf and slurm.conf, e.g. {kind}-spot",
                promise="ceiling",
            )


def _unknown_types(context: PolicyContext) -> Iterator[Notice]:
    for site in context.sites:
        if site.gres is not None and not site.tracked:
            yield Notice(
                "TypeNotTracked",
                f"Slurm does not count GPUs of type {site.gres} yet, so it stores no ceiling and no limit of "
                f"a user on {site.supply}; limits on all GPUs that accounts have stay until then",
                "write AccountingStorageTRES of the rendered slurm.conf, restart slurmctld, and apply again",
                promise="ceiling",
            )
        if site.gres is None and site.shares is None:
            yield Notice(
                "GresTypeUnknown",
                f"the GPUs of {site.supply} in partition {site.partition} have no GRES type, or several: no "
                "ceiling and no limit of a job or user can be set on them",
                f"name it:  pools.{site.supply.pool}.slurm.gres, and AccountingStorageTRES=gres/gpu:TYPE",
                promise="ceiling",
            )
