"""Explain one waiting job from slurmctld's records of it, of its partitions and of their nodes. Pure.

A job in two partitions with a list of QOS has no reason of its own in Slurm, and slurmctld even accepts one
that no node can ever hold. So what a node would have to offer is compared with what the nodes have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from fairway.engines.slurm.nodes.devices import SHARING, parse_gres, shares_of
from fairway.engines.slurm.nodes.hostlist import expand
from fairway.engines.slurm.nodes.observe import health
from fairway.engines.slurm.policy.names import INTERVENTION_JOB
from fairway.engines.slurm.rest.wire import Reply, WireNode
from fairway.explain.engine_reasons import slurm_code
from fairway.explain.findings import Finding, WaitFacts
from fairway.model.observation import Health
from fairway.model.text import count, first_few, span

MAX_NAMED: Final = 5
"""How many nodes or jobs a text names before it only counts."""
_GPUS: Final = re.compile(r"gres[/:]gpu(?::([^,:=]*[^\d,:=][^,:=]*))?(?:[:=](\d+))?(?:,|$)")
_DEPENDENCY_ID: Final = re.compile(r":(\d+)")
_PLAIN_FEATURES: Final = re.compile(r"[\w.,&|:-]+")
_PARTITION: Final = frozenset({"AccountRefused", "NoNodeFits", "PartitionLimit"})
"""What the reason of a partition's limit may mean."""
_NOT_AHEAD: Final = ("JobHeld", "Dependency", "BeginTime", "PartitionTimeLimit")
"""Reasons of waiting jobs that take no place from those behind them."""


class Amount(msgspec.Struct, frozen=True, gc=False):
    """A number that may be unset or unlimited."""

    set: bool = False
    infinite: bool = False
    number: float = 0

    @property
    def value(self) -> int:
        """The number; 0 if it is unset or unlimited."""
        return int(self.number) if self.set and not self.infinite else 0


class WaitingJob(msgspec.Struct, frozen=True, gc=False):
    """What slurmctld knows of a job's request."""

    job_id: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    state_reason: str = ""
    state_description: str = ""
    dependency: str = ""
    required_nodes: str = ""
    features: str = ""
    licenses: str = ""
    resv_name: str = ""
    node_count: Amount = Amount()
    cpus_per_task: Amount = Amount()
    minimum_cpus_per_node: Amount = Amount()
    memory_per_node: Amount = Amount()
    memory_per_cpu: Amount = Amount()
    time_limit: Amount = Amount()
    eligible_time: Amount = Amount()
    priority: Amount = Amount()
    tres_per_node: str = ""
    required_switches: int = 0
    """Below how many switches its nodes must be; 0: anywhere. Fairway asks for 1 if a job is `together`."""


class WaitingJobReply(Reply, frozen=True, gc=False):
    jobs: tuple[WaitingJob, ...] = ()


class Maximums(msgspec.Struct, frozen=True, gc=False):
    time: Amount = Amount()
    nodes: Amount = Amount()


class AllowedAccounts(msgspec.Struct, frozen=True, gc=False):
    """The accounts that a partition admits and those that it does not, by comma; empty: all, none."""

    allowed: str = ""
    deny: str = ""

    def admits(self, account: str) -> bool:
        if self.allowed:
            return account in self.allowed.split(",")
        return not account or account not in self.deny.split(",")


class PartitionState(msgspec.Struct, frozen=True, gc=False):
    state: tuple[str, ...] = ()


class LimitedPartition(msgspec.Struct, frozen=True, gc=False):
    """A partition, whether it is open, whom it admits, and what it gives one job at most."""

    name: str
    maximums: Maximums = Maximums()
    accounts: AllowedAccounts = AllowedAccounts()
    partition: PartitionState = PartitionState()


class LimitedPartitionsReply(Reply, frozen=True, gc=False):
    partitions: tuple[LimitedPartition, ...] = ()


class SizedNode(WireNode, frozen=True, gc=False):
    """A node with what it has besides GPUs. Memory is in MB."""

    cpus: int = 0
    real_memory: int = 0
    alloc_cpus: int = 0
    alloc_memory: int = 0
    features: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return health(self.state)[0] is Health.READY

    @property
    def reserved(self) -> bool:
        """Whether a reservation holds it now. Slurm reports this to a job without one only at times."""
        return "RESERVED" in self.state

    def trouble(self) -> str:
        """Return the node's name with why it takes no work."""
        if self.ready:
            return f"{self.name} is reserved"
        return f"{self.name} is {health(self.state)[1]}" + (f" ({self.reason})" if self.reason else "")


class SizedNodesReply(Reply, frozen=True, gc=False):
    nodes: tuple[SizedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a job asks for on each of its nodes."""

    gpus: int = 0
    gpu_type: str | None = None
    cpus: int = 0
    memory_mb: int = 0
    features: str = ""
    nodes: int = 1
    minutes: int = 0
    """Its time limit; 0: none."""
    switches: int = 0
    """Below how many switches the nodes must be; 0: anywhere."""

    @classmethod
    def of(cls, job: WaitingJob) -> NodeRequest:
        found = _GPUS.search(job.tres_per_node)
        cpus = max(job.cpus_per_task.value, job.minimum_cpus_per_node.value, 1)
        memory = job.memory_per_node.value or job.memory_per_cpu.value * cpus
        return cls(
            gpus=int(found[2] or 1) if found else 0,
            gpu_type=found[1] if found else None,
            cpus=cpus,
            memory_mb=memory,
            features=job.features,
            nodes=max(1, job.node_count.value),
            minutes=job.time_limit.value,
            switches=job.required_switches,
        )


def explain(
    job: WaitingJob,
    partitions: Iterable[LimitedPartition],
    nodes: Iterable[SizedNode],
    now: datetime,
) -> WaitFacts:
    """Return what slurmctld's records say of a waiting job."""
    names = job.partition.split(",")
    mine = [p for p in partitions if p.name in names]
    there = [n for n in nodes if any(name in n.partitions for name in names)]
    reason = job.state_description or job.state_reason
    findings = tuple(_findings(job, mine, there, now))
    code = slurm_code(reason)
    if code == "PartitionLimit":
        # Slurm says the same of a limit, of the accounts that it admits and of nodes that are not there.
        code = next((f.code for f in findings if f.code in _PARTITION), code)
    several = [text for text in (_several_partitions(names), _several_qos(job.qos)) if text]
    if several and code == "NotAdmitted":
        # A by-product: slurmctld tried the QOS for borrowing in the partition for guarantees, or the reverse.
        code, reason = "", "None"
    return WaitFacts(
        code=code,
        reason="" if reason == "None" else reason,
        findings=findings,
        after=tuple(dict.fromkeys(_DEPENDENCY_ID.findall(job.dependency))),
        hidden_by=f"the job {' and '.join(several)}, which slurmctld tries in turn without recording a reason"
        if several
        else "",
    )


def _several_partitions(names: Sequence[str]) -> str:
    return f"is in {len(names)} partitions ({', '.join(names)})" if len(names) > 1 else ""


def _several_qos(qos: str) -> str:
    return "lists several QOS" if "," in qos else ""


def _findings(
    job: WaitingJob, partitions: Sequence[LimitedPartition], nodes: Sequence[SizedNode], now: datetime
) -> Iterator[Finding]:
    request = NodeRequest.of(job)
    if closed := [p for p in partitions if "UP" not in p.partition.state]:
        states = ", ".join(f"{p.name} is {' '.join(p.partition.state).lower() or 'down'}" for p in closed)
        yield Finding("PartitionClosed", f"Partition {states}: no jobs start there")
    where = ", ".join(p.name for p in partitions)
    if partitions and not any(p.accounts.admits(job.account) for p in partitions):
        allowed = partitions[0].accounts.allowed
        text = f"admits the accounts {allowed}, not {job.account}" if allowed else f"denies {job.account}"
        yield Finding("AccountRefused", f"Partition {where} {text}")
    if never := never_fits(request, partitions, nodes):
        yield never
    named = set(expand(job.required_nodes))
    wanted = [n for n in nodes if n.name in named] if named else [n for n in nodes if holds(n, request)]
    away = [n for n in wanted if not n.ready or (n.reserved and not job.resv_name)]
    counted = [n for n in wanted if n not in away]
    if away and (named or len(counted) < request.nodes):
        counted = wanted  # what would be free if those nodes took work again
        which = first_few([n.trouble() for n in away], MAX_NAMED)
        yield Finding(
            "NodesUnavailable", f"{'The job requires specific nodes: ' if named else 'Unavailable: '}{which}"
        )
    yield from _details(job, now)
    if not never:
        yield from _room(request, counted)


def _details(job: WaitingJob, now: datetime) -> Iterator[Finding]:
    begins = job.eligible_time.value
    if begins > now.timestamp():
        at = datetime.fromtimestamp(begins, UTC)
        text = (
            f"The job starts no earlier than {at:%Y-%m-%d %H:%M:%S} UTC, in {span(begins - now.timestamp())}"
        )
        yield Finding("NotYetTime", text)
    if job.licenses:
        yield Finding("LicensesInUse", f"The job requests licenses {job.licenses}, which are in use")
    if job.resv_name:
        yield Finding("ReservationWait", f"The job waits for reservation {job.resv_name}")


def never_fits(
    request: NodeRequest, partitions: Sequence[LimitedPartition], nodes: Sequence[SizedNode]
) -> Finding | None:
    """Return why a job can never start on these nodes. Returns None if it can, or if it is unknown."""
    where = ", ".join(p.name for p in partitions)
    longest = [p.maximums.time.value for p in partitions]
    if longest and all(longest) and request.minutes > max(longest):
        asked, allowed = _minutes(request.minutes), _minutes(max(longest))
        text = f"The job requests {asked}, and {where} allows {allowed} at most"
        return Finding("TimeAbovePartition", text)
    most = [p.maximums.nodes.value for p in partitions]
    if most and all(most) and request.nodes > max(most):
        text = f"The job requests {request.nodes} nodes, and {where} allows {max(most)} at most"
        return Finding("PartitionLimit", text)
    if not nodes or any(set(n.state) & _FUTURE for n in nodes):
        return None  # nodes of a cloud may be of any size when they come
    able = [n for n in nodes if holds(n, request)]
    if len(able) >= request.nodes:
        return None
    if able:
        text = f"The job requests {request.nodes} nodes, and only {len(able)} of {where} can ever satisfy it"
        return Finding("NoNodeFits", text)
    return Finding("NoNodeFits", _shortage(request, where, nodes))


def _shortage(request: NodeRequest, where: str, nodes: Sequence[SizedNode]) -> str:
    """Return what no node has as much of as the job asks for."""
    gpu = f"{request.gpu_type} GPUs" if request.gpu_type else "GPUs"
    checks: tuple[tuple[int, Callable[[SizedNode], int], str, int], ...] = (
        (request.gpus, lambda n: gpus_of(n, request.gpu_type)[0], gpu, 1),
        (request.memory_mb, lambda n: n.real_memory, "GB of memory", 1024),
        (request.cpus, lambda n: n.cpus, "CPUs", 1),
    )
    for asked, has, unit, divisor in checks:
        most = max(has(n) for n in nodes)
        if asked > most:
            text = f"The job requests {-(-asked // divisor)} {unit} per node, and no node of {where} has more"
            return f"{text} than {most // divisor}"
    if request.features and not any(_has_features(n, request.features) for n in nodes):
        return f"The job requests nodes with {request.features}, and {where} has none"
    return f"No node of {where} satisfies the whole request"


_FUTURE: Final = frozenset({"FUTURE", "DYNAMIC_FUTURE"})


def holds(node: SizedNode, request: NodeRequest) -> bool:
    """Return whether an empty node could take the job."""
    return (
        gpus_of(node, request.gpu_type)[0] >= request.gpus
        and (not node.cpus or node.cpus >= request.cpus)
        and (not node.real_memory or node.real_memory >= request.memory_mb)
        and _has_features(node, request.features)
    )


def gpus_of(node: SizedNode, kind: str | None) -> tuple[int, int]:
    """Return how many GPUs of a type a node has, and how many are free as a whole; None: of any type."""

    def gpus(text: str) -> int:
        return sum(g.count for g in parse_gres(text) if g.name == "gpu" and kind in (None, g.type))

    total, used = gpus(node.gres), parse_gres(node.gres_used)
    shared = sum(
        n > 0 for g in used if g.name in SHARING and kind in (None, g.type) for n, _ in shares_of(g.detail)
    )
    return total, max(0, total - gpus(node.gres_used) - shared)


def _has_features(node: SizedNode, wanted: str) -> bool:
    if not _PLAIN_FEATURES.fullmatch(wanted):
        return True  # nothing is asked for, or with counts and brackets, which only Slurm evaluates
    return all(
        any(choice in node.features for choice in part.split("|")) for part in re.split(r"[&,:]", wanted)
    )


def _room(request: NodeRequest, nodes: Sequence[SizedNode]) -> Iterator[Finding]:
    """Yield that no room is left, if fewer ready nodes than needed have it now."""

    def has_room(node: SizedNode) -> bool:
        cpus, memory = node.cpus - node.alloc_cpus, node.real_memory - node.alloc_memory
        return cpus >= request.cpus and memory >= request.memory_mb

    with_gpus = [n for n in nodes if gpus_of(n, request.gpu_type)[1] >= request.gpus]
    with_room = [n for n in with_gpus if has_room(n)]
    if len(with_room) >= request.nodes:
        if request.switches and request.nodes > 1:
            names = first_few([n.name for n in with_room], MAX_NAMED)
            where = "one switch" if request.switches == 1 else f"{request.switches} switches"
            text = f"{len(with_room)} nodes have room ({names}), but no {request.nodes} of them"
            yield Finding("NoRackFits", f"{text} are below {where}")
        return
    free = [gpus_of(n, request.gpu_type)[1] for n in nodes]
    needs = (
        f"{request.gpus} on each of {request.nodes} nodes" if request.nodes > 1 else f"{request.gpus} on one"
    )
    if len(with_gpus) >= request.nodes:
        text = "GPUs are free, but not the CPUs or memory that the job requests with them"
    elif not request.gpus:
        text = "No node has the requested CPUs and memory free"
    elif not sum(free):
        text = f"No GPU is free, and the job needs {needs}"
    else:
        most = max(free, default=0)
        text = f"{count(sum(free), 'GPU')} free, at most {most} on one node, and the job needs {needs}"
    yield Finding("NotEnoughFree", text)


def _minutes(minutes: int) -> str:
    return span(minutes * 60)


def jobs_ahead(output: str, job: WaitingJob) -> tuple[str, ...]:
    """Return the waiting jobs that slurmctld tries before a job, in order, from lines of `AHEAD_FORMAT`.

    Those are jobs with a higher priority, and older ones with the same.
    """
    ahead: list[tuple[int, int, str]] = []
    for line in output.splitlines():
        number, _, rest = line.strip().partition("|")
        priority, _, rest = rest.partition("|")
        reason, _, name = rest.partition("|")
        base = number.partition("_")[0]
        if not (base.isdecimal() and priority.isdecimal()) or reason.startswith(_NOT_AHEAD):
            continue
        if name == INTERVENTION_JOB:  # Fairway's own, with which it helps others to start
            continue
        # The tasks of its own array have its id.
        if (-int(priority), int(base)) < (-job.priority.value, job.job_id):
            ahead.append((-int(priority), int(base), number.partition("_[")[0]))
    return tuple(number for _, _, number in sorted(ahead))


AHEAD_FORMAT: Final = "%i|%Q|%r|%j"
