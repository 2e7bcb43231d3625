"""The quota tree of one supply: guarantee, ceiling, current and recent use of each team."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp2
from typing import Final, Generic, TypeVar

from fairway.model.budget import Hold
from fairway.model.names import UserName
from fairway.model.team import Supply, Team
from fairway.simulate.cluster.queues import JobQueues, QueuedJob

UNLIMITED: Final = 1 << 60


J = TypeVar("J", bound=QueuedJob)


class QuotaNode(Generic[J]):
    """The quota and use of one supply by one team, including its subteams.

    `held` counts the devices of all its running jobs; `firm` those of jobs that are not preemptible, because
    preemptible jobs do not use a guarantee. `average` is the recent use in devices that counts in fair
    shares: an exponential mean with the fairness half-life, updated when something changes.
    """

    __slots__ = (
        "average",
        "average_at",
        "below_guarantee",
        "ceiling",
        "children",
        "draining",
        "exempt",
        "firm",
        "granted",
        "guarantee",
        "held",
        "name",
        "number",
        "order",
        "order_version",
        "parent",
        "path",
        "preemptible_stopped",
        "queues",
        "quota_reserved_for",
        "running",
        "share",
        "stopped",
        "subtree",
        "top",
        "user_held",
        "user_limit",
        "version",
        "waiting",
        "weighted_share",
    )

    def __init__(
        self, team: Team | None, parent: QuotaNode[J] | None, below: dict[QuotaNode[J], None], number: int = 0
    ) -> None:
        self.below_guarantee: Final = below
        """The quotas of the tree that hold less than their guarantee; shared by all of them."""
        self.number: Final = number
        """The position of the team in the fleet: breaks ties."""
        self.name: Final = "" if team is None else str(team.name)
        self.parent: Final = parent
        self.path: Final[tuple[QuotaNode[J], ...]] = () if parent is None else (self, *parent.path)
        """The quota itself and all its ancestors, except the root, which has no limits."""
        self.top: Final[QuotaNode[J]] = self.path[-1] if self.path else self
        self.version = 0
        """Of a top-level team: how often a weighted share in its subtree changed."""
        self.order: ShareOrder[J] = ((), self)
        self.order_version = -1
        """The `version` of `top` for which `order` was computed."""
        self.subtree: tuple[QuotaNode[J], ...] = (self,)
        """The quota and all its descendants, parents first; set once the tree is complete."""
        self.children: Final[list[QuotaNode[J]]] = []
        self.guarantee = 0
        self.exempt = 0
        """Devices of its guarantee that do not count in fair shares: all of them, or none."""
        self.ceiling = UNLIMITED
        self.granted = False
        self.share = 1
        self.draining = False
        self.stopped = False
        """The team or an ancestor is draining or on hold: only preemptible jobs start."""
        self.preemptible_stopped = False
        """Preemptible jobs do not start either."""
        self.user_limit = UNLIMITED
        self.held = 0
        self.firm = 0
        self.average = 0.0
        self.average_at = 0.0
        self.weighted_share = 0.0
        """Current and recent use that counts, divided by the share: the lowest is next."""
        self.waiting = 0
        """Waiting jobs of the subtree."""
        self.queues: Final[JobQueues[J]] = JobQueues()
        self.running: Final[dict[int, dict[J, None]]] = {}
        """Its own running jobs by rank, in order of their start."""
        self.quota_reserved_for: J | None = None
        """A large job that has waited long: later jobs of the team do not start before it."""
        self.user_held: Final[dict[UserName, int]] = {}

    def set_terms(self, team: Team, supply: Supply, *, counts_guaranteed: bool = False) -> None:
        """Set the limits of the team's grant; its use does not change.

        `counts_guaranteed`: use within the guarantee counts in fair shares too.
        """
        grant = team.grant(supply)
        self.granted = grant is not None and grant.ceiling != 0
        self.guarantee = grant.guarantee if grant else 0
        self.exempt = 0 if counts_guaranteed else self.guarantee
        self.ceiling = 0 if grant is None else UNLIMITED if grant.ceiling is None else grant.ceiling
        self.share = max(1, team.share)
        self.draining = team.draining
        above = self.parent
        self.stopped = team.draining or team.hold is not None or (above is not None and above.stopped)
        self.preemptible_stopped = (
            team.draining or team.hold is Hold.STOP or (above is not None and above.preemptible_stopped)
        )
        if self.guarantee > self.firm:
            self.below_guarantee[self] = None
        self.user_limit = UNLIMITED if team.limits.user_gpus is None else team.limits.user_gpus

    @property
    def borrowed(self) -> int:
        """The devices it holds beyond its guarantee, which others may reclaim."""
        return self.held - min(self.firm, self.guarantee)

    @property
    def counted(self) -> int:
        """The devices it holds that count in fair shares."""
        return self.held - min(self.firm, self.exempt)

    def current_average(self, now: float, half_life: float) -> float:
        """Return its recent use that counts as of `now`."""
        elapsed, counted = now - self.average_at, self.counted
        if elapsed <= 0.0:
            return self.average
        return counted + (self.average - counted) * exp2(-elapsed / half_life)

    def update_average(self, now: float, half_life: float) -> None:
        """Update the average, which changes slowly as time passes, and the weighted share."""
        self.average = self.current_average(now, half_life)
        self.average_at = max(self.average_at, now)
        self.weighted_share = (self.counted + self.average) / self.share
        self.top.version += 1

    def change_held(self, devices: int, firm: int, now: float, half_life: float, waiting: int = 0) -> None:
        """Add to the devices held by it and its ancestors, `firm` of them by jobs that are not preemptible.

        `waiting` is added to the waiting jobs. All three may be negative.
        """
        for quota in self.path:
            # Inlined: this runs at every start and end of a job.
            held, firmly, guarantee, average = quota.held, quota.firm, quota.guarantee, quota.average
            exempt = quota.exempt
            elapsed = now - quota.average_at
            if elapsed > 0.0:
                counted = held - (firmly if firmly < exempt else exempt)
                average = quota.average = counted + (average - counted) * exp2(-elapsed / half_life)
                quota.average_at = now
            held = quota.held = held + devices
            quota.waiting += waiting
            if firm:
                firmly = quota.firm = firmly + firm
                if guarantee:
                    if firmly < guarantee:
                        quota.below_guarantee[quota] = None
                    elif quota in quota.below_guarantee:
                        del quota.below_guarantee[quota]
            quota.weighted_share = (held - (firmly if firmly < exempt else exempt) + average) / quota.share
        self.top.version += 1

    def add_running(self, job: J) -> None:
        self.running.setdefault(job.rank, {})[job] = None
        if self.user_limit < UNLIMITED:
            user = job.user
            self.user_held[user] = self.user_held.get(user, 0) + job.devices

    def remove_running(self, job: J) -> None:
        del self.running[job.rank][job]
        user = job.user
        if user in self.user_held:
            self.user_held[user] -= job.devices

    def weakest_first(self, below: int) -> Iterator[J]:
        """Generate its own running jobs with a rank below `below`: lowest rank first, then youngest first."""
        for rank in sorted(self.running):
            if rank >= below:
                return
            yield from reversed(self.running[rank])

    def runs_between(self, lowest: int, rank: int) -> bool:
        """Return whether a job of its own runs with a rank from `lowest` to below `rank`."""
        for running, jobs in self.running.items():  # noqa: SIM110 - a generator costs more than all the rest
            if lowest <= running < rank and jobs:
                return True
        return False

    def iter_subtree(self) -> Iterator[QuotaNode[J]]:
        """Generate the quota and all its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.iter_subtree()

    def headroom(self) -> int:
        """Return how many more devices it may hold before it or an ancestor reaches its ceiling."""
        least = UNLIMITED
        for quota in self.path:
            left = quota.ceiling - quota.held
            if left < least:  # noqa: PLR1730 - a call to min costs more than all the rest
                least = left
        return least

    def guarantee_headroom(self) -> int:
        """Return how many more devices it may hold within its guarantee or that of an ancestor."""
        largest = 0
        for quota in self.path:
            left = quota.guarantee - quota.firm
            if left > largest:  # noqa: PLR1730 - as above
                largest = left
        return largest

    def within_guarantee(self, devices: int) -> bool:
        """Return whether `devices` more are within its guarantee or that of an ancestor."""
        for quota in self.path:  # noqa: SIM110 - as above
            if quota.firm + devices <= quota.guarantee:
                return True
        return False


ShareOrder = tuple[tuple[float, ...], QuotaNode[J]]
"""A sort key and its quota; keys are unique."""


def share_orders(quotas: Iterable[QuotaNode[J]]) -> list[ShareOrder[J]]:
    """Return the sort keys of quotas by the weighted shares of their path, from the top-level team down."""
    return [q.order if q.order_version == q.top.version else _compute_order(q) for q in quotas]


def _compute_order(quota: QuotaNode[J]) -> ShareOrder[J]:
    path = quota.path
    if len(path) == 2:  # most are
        top = path[1]
        order: ShareOrder[J] = ((top.weighted_share, top.number, quota.weighted_share, quota.number), quota)
    else:
        order = (tuple([n for above in reversed(path) for n in (above.weighted_share, above.number)]), quota)
    quota.order, quota.order_version = order, quota.top.version
    return order
