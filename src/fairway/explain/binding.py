"""Order the reasons for which a job waits as they bind: what would remain if the first were lifted. Pure.

An engine reports one reason, the first that it came across. The others follow from the limits of the policy,
the queue and the free GPUs: a job of a team at its limit would still wait for room if the limit were raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from fairway.explain.alternatives import fits
from fairway.explain.findings import ROOM, TURN, Finding
from fairway.model.team import Supply
from fairway.model.text import count


class Stage(IntEnum):
    """The steps that a waiting job passes before it runs, in their order."""

    HELD = 1
    """A person or a policy stopped it, or nothing looks at it."""
    NEVER = 2
    """Its request can never be met as it is."""
    USER_LIMIT = 3
    TEAM_LIMIT = 4
    DEPENDENCY = 5
    """Another job or a time must come first."""
    TURN = 6
    """Other jobs go first."""
    ROOM = 7
    TOPOLOGY = 8
    START = 9
    """It has its nodes, and does not run on them yet."""


_CODES: Final[Mapping[Stage, str]] = MappingProxyType(
    {
        Stage.HELD: (
            "AccountRefused AdmissionCheck BudgetSpent ClusterAway ClusterNotGoverned EngineSays EngineSilent"
            " Held HeldAfterFailure HeldByAdmin NamespaceNotAllowed NotAdmitted NotConsidered NotQueued"
            " NotSent PartitionClosed PodRefused QosGone QueueBroken QueueInactive QueueMissing QueueStopped"
            " ReservationGone TeamDraining TeamHeld"
        ),
        Stage.NEVER: (
            "AboveQuota ClaimNotCounted DeadlinePassed DependencyNeverMet JobAboveLimit JobBelowMinimum"
            " JobTimeLimit NamespaceLimit NoNodeFits PartitionLimit TimeAbovePartition"
        ),
        Stage.USER_LIMIT: "ArrayTaskLimit QosLimit UserLimit",
        Stage.TEAM_LIMIT: "AccountLimit GuaranteeInUse NamespaceQuota TeamAtCeiling UsageLimit",
        Stage.DEPENDENCY: "AfterAnother NotYetTime ReservationWait Retry SentBack",
        Stage.TURN: "BehindAnother NotItsTurn ReservedForAnother",
        Stage.ROOM: (
            "ClaimsUnmet LicensesInUse NodesReserved NodesUnavailable NotEnoughFree OtherResource QuotaInUse"
        ),
        Stage.TOPOLOGY: "NoRackFits",
        Stage.START: "ContainerFails ContainerStarting GettingReady ImagePullFailed",
    }
)
_STAGES: Final = {code: stage for stage, codes in _CODES.items() for code in codes.split()}
ALONE: Final = frozenset(
    {"ClusterAway", "ClusterNotGoverned", "EngineSays", "EngineSilent", "NotConsidered", "NotSent"}
)
"""Reasons of which nobody can tell yet what comes after them."""
REPEATED: Final = frozenset({"TeamAtCeiling"})
"""Limits of which a job may be at several: its team's and those of the teams above it."""
_OTHER_SIZE: Final = frozenset(
    {"AboveQuota", "ClaimNotCounted", "JobAboveLimit", "JobBelowMinimum", "NamespaceLimit", "NoNodeFits"}
    | {"PartitionLimit"}
)
"""Only another request can start: whether there is room for this one says nothing."""


def stage(code: str) -> Stage:
    """Return the step at which a reason stops a job."""
    return _STAGES.get(code, Stage.HELD)


def in_binding_order(first: Finding, others: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return `first`, which binds now, and those of the others that would remain without it, in their order.

    Of each code one finding remains, except of limits of several teams, each of which binds.
    """
    if first.code in ALONE or stage(first.code) is Stage.START:
        return (first,)
    found = [first]
    for other in sorted(others, key=lambda finding: stage(finding.code)):
        if not any(_covers(known, other) for known in found):
            found.append(other)
    return tuple(found)


def _covers(known: Finding, other: Finding) -> bool:
    """Return whether a reason that is listed already says what another one says."""
    if known.code == other.code:
        return known.code not in REPEATED or not known.text or known.text.startswith(other.text)
    later = stage(other.code) in (Stage.TURN, Stage.ROOM, Stage.TOPOLOGY)
    if known.code in _OTHER_SIZE and later:
        return True
    return stage(known.code) is stage(other.code) is Stage.TURN or (
        # The scheduler came to the job's turn: what is ahead does not keep it from starting.
        stage(known.code) in (Stage.ROOM, Stage.TOPOLOGY) and stage(other.code) is Stage.TURN
    )


def room_left(gpus: int, nodes: int, free: Sequence[int], supply: Supply) -> Iterator[Finding]:
    """Yield that a request does not fit into the free devices of the nodes of its pool, with the numbers."""
    if not free or fits(gpus, nodes, free):
        return  # without nodes nothing is known
    total, holding = sum(free), sum(n > 0 for n in free)
    needs = f"{gpus} on each of {nodes} nodes" if nodes > 1 else f"{gpus} on one"
    if not total:
        text = f"No {supply.noun} of {supply.pool} is free, and the job needs {needs}"
    else:
        spread = f", on {count(holding, 'node')}" if holding > 1 else ""
        most = f", at most {max(free)} on one" if holding > 1 and gpus > max(free) else ""
        verb = "is" if total == 1 else "are"
        text = (
            f"{count(total, supply.noun)} of {supply.pool} {verb} free{spread}{most}; the job needs {needs}"
        )
    yield Finding(ROOM, text)


def turn_left(jobs: int, devices: int, supply: Supply) -> Iterator[Finding]:
    """Yield that other jobs go first, with how many GPUs they request."""
    if jobs:
        request = f"{count(devices, supply.noun)}"
        verb = "requests" if jobs == 1 else "request"
        yield Finding(TURN, f"{count(jobs, 'job')} ahead in the queue {verb} {request}")
