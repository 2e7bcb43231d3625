"""The quota tree of one supply: what each team is guaranteed, may hold, holds, and held lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp2
from typing import Final, Generic, Protocol, TypeVar

from fairway.engines.virtual.simulator.queues import JobQueues, QueuedJob
from fairway.model.budget import Hold
from fairway.model.names import UserName
from fairway.model.team import Supply, Team

BOUNDLESS: Final = 1 << 60


class QuotaJob(QueuedJob, Protocol):
    """What a quota needs of a job: jobs name their quota, so they cannot be named here."""

    rank: int
    devices: int


J = TypeVar("J", bound=QuotaJob)


class QuotaNode(Generic[J]):
    """One team's account of one supply, everything inside the team counted in.

    `held` is all its running jobs hold; `firm` leaves out those that are preemptible always, which run on
    nobody's guarantee. `average` is what it held beyond its guarantee lately, in devices: an exponential mean
    with the fairness half-life, brought up to date when something changes, not by passing time alone.
    """

    __slots__ = (
        "average",
        "average_at",
        "below",
        "ceiling",
        "children",
        "draining",
        "due",
        "firm",
        "granted",
        "guarantee",
        "held",
        "inside",
        "moved",
        "name",
        "number",
        "order",
        "ordered_at",
        "parent",
        "path",
        "queues",
        "running",
        "saving",
        "share",
        "stopped",
        "stopped_low",
        "team",
        "top",
        "user_held",
        "user_most",
        "waiting",
    )

    def __init__(
        self, team: Team | None, parent: QuotaNode[J] | None, below: dict[QuotaNode[J], None], number: int = 0
    ) -> None:
        self.team = team
        self.below: Final = below
        """The quotas of the tree that hold less than they are guaranteed."""
        self.number: Final = number
        """Its place among the teams: decides between equals."""
        self.name: Final = "" if team is None else str(team.name)
        self.parent: Final = parent
        self.path: Final[tuple[QuotaNode[J], ...]] = () if parent is None else (self, *parent.path)
        """Itself and every team it is inside of; not the root, which bounds nobody."""
        self.top: Final[QuotaNode[J]] = self.path[-1] if self.path else self
        self.moved = 0
        """Of a top: how often something in it changed what is due."""
        self.order: ShareOrder[J] = ((), self)
        self.ordered_at = -1
        """What its top's `moved` was when its order was written down."""
        self.inside: tuple[QuotaNode[J], ...] = (self,)
        """It and every quota inside it, parents first; known once the tree is whole."""
        self.children: Final[list[QuotaNode[J]]] = []
        self.guarantee = 0
        self.ceiling = BOUNDLESS
        self.granted = False
        self.share = 1
        self.draining = False
        self.stopped = False
        """It or a team it is inside of is draining or held: nothing of it starts but what is low."""
        self.stopped_low = False
        """Nor what is low."""
        self.user_most = BOUNDLESS
        self.held = 0
        self.firm = 0
        self.average = 0.0
        self.average_at = 0.0
        self.due = 0.0
        """What it has had beyond its guarantee, now and lately, by its share: who has least is next."""
        self.waiting = 0
        """Jobs that wait in it and all inside it."""
        self.queues: Final[JobQueues[J]] = JobQueues()
        self.running: Final[dict[int, dict[J, None]]] = {}
        """By rank, in the order in which they started."""
        self.saving: J | None = None
        """A large job of its own that later ones let go first."""
        self.user_held: Final[dict[UserName, int]] = {}

    def set_terms(self, team: Team, supply: Supply) -> None:
        """What the team's grant says now. What it holds and held is not touched."""
        grant = team.grant(supply)
        self.team = team
        self.granted = grant is not None and grant.ceiling != 0
        self.guarantee = grant.guarantee if grant else 0
        self.ceiling = 0 if grant is None else BOUNDLESS if grant.ceiling is None else grant.ceiling
        self.share = max(1, team.share)
        self.draining = team.draining
        above = self.parent
        self.stopped = team.draining or team.hold is not None or (above is not None and above.stopped)
        self.stopped_low = (
            team.draining or team.hold is Hold.STOP or (above is not None and above.stopped_low)
        )
        if self.guarantee > self.firm:
            self.below[self] = None
        self.user_most = BOUNDLESS if team.limits.user_gpus is None else team.limits.user_gpus

    @property
    def beyond(self) -> int:
        """Devices it holds that others may take back, as far as its own guarantee goes."""
        return self.held - min(self.firm, self.guarantee)

    def averaged(self, now: float, half_life: float) -> float:
        """What it held beyond its guarantee lately, as of now."""
        past = now - self.average_at
        if past <= 0.0:
            return self.average
        firm, guarantee = self.firm, self.guarantee
        beyond = self.held - (firm if firm < guarantee else guarantee)
        return beyond + (self.average - beyond) * exp2(-past / half_life)

    def remember(self, now: float, half_life: float) -> None:
        """Bring its mean up to now, and with it what is due. The mean changes by itself, if slowly."""
        past = now - self.average_at
        firm, guarantee = self.firm, self.guarantee
        beyond = self.held - (firm if firm < guarantee else guarantee)
        if past > 0.0:
            self.average = beyond + (self.average - beyond) * exp2(-past / half_life)
            self.average_at = now
        self.due = (beyond + self.average) / self.share
        self.top.moved += 1

    def hold(self, devices: int, firm: int, now: float, half_life: float, waiting: int = 0) -> None:
        """It and every team it is inside of hold so many more (or fewer); `firm` of them not preemptible.

        `waiting`: so many more (or fewer) jobs of it wait.
        """
        for quota in self.path:
            held, firmly, guarantee, average = quota.held, quota.firm, quota.guarantee, quota.average
            past = now - quota.average_at
            if past > 0.0:
                beyond = held - (firmly if firmly < guarantee else guarantee)
                average = quota.average = beyond + (average - beyond) * exp2(-past / half_life)
                quota.average_at = now
            held = quota.held = held + devices
            quota.waiting += waiting
            if firm:
                firmly = quota.firm = firmly + firm
                if guarantee:
                    if firmly < guarantee:
                        quota.below[quota] = None
                    elif quota in quota.below:
                        del quota.below[quota]
            quota.due = (held - (firmly if firmly < guarantee else guarantee) + average) / quota.share
        self.top.moved += 1

    def add_running(self, job: J) -> None:
        of_rank = self.running.get(job.rank)
        if of_rank is None:
            of_rank = self.running[job.rank] = {}
        of_rank[job] = None
        if self.user_most < BOUNDLESS:
            user = job.user
            self.user_held[user] = self.user_held.get(user, 0) + job.devices

    def remove_running(self, job: J) -> None:
        del self.running[job.rank][job]
        user = job.user
        if user in self.user_held:
            self.user_held[user] -= job.devices

    def weakest_first(self, below: int) -> Iterator[J]:
        """Its own running jobs of a rank below that: the lowest rank first, of each the youngest first."""
        for rank in sorted(self.running):
            if rank >= below:
                return
            yield from reversed(self.running[rank])

    def runs_between(self, lowest: int, rank: int) -> bool:
        """Whether it runs jobs of its own of at least the lowest rank and below the other."""
        for below, jobs in self.running.items():  # noqa: SIM110 - a generator costs more than all the rest
            if lowest <= below < rank and jobs:
                return True
        return False

    def all_inside(self) -> Iterator[QuotaNode[J]]:
        """It and every quota inside it, parents first."""
        yield self
        for child in self.children:
            yield from child.all_inside()

    def room(self) -> int:
        """Devices it may still get before it or a team it is inside of is at its ceiling."""
        least = BOUNDLESS
        for quota in self.path:
            left = quota.ceiling - quota.held
            if left < least:  # noqa: PLR1730 - a call to min costs more than all the rest
                least = left
        return least

    def slack(self) -> int:
        """Devices it may still get within its guarantee, or within that of a team it is inside of."""
        most = 0
        for quota in self.path:
            left = quota.guarantee - quota.firm
            if left > most:  # noqa: PLR1730 - as above
                most = left
        return most

    def entitled(self, devices: int) -> bool:
        """Whether so many more are within its guarantee, or within that of a team it is inside of."""
        for quota in self.path:  # noqa: SIM110 - as above
            if quota.firm + devices <= quota.guarantee:
                return True
        return False


ShareOrder = tuple[tuple[float, ...], QuotaNode[J]]
"""What decides between teams, and whose it is; no two are alike."""


def by_share(quotas: Iterable[QuotaNode[J]]) -> list[ShareOrder[J]]:
    """To sort by what they, and the teams they are inside of, had beyond their guarantees for their share."""
    return [b.order if b.ordered_at == b.top.moved else _ordered(b) for b in quotas]


def _ordered(quota: QuotaNode[J]) -> ShareOrder[J]:
    path = quota.path
    if len(path) == 2:  # most are
        top = path[1]
        order: ShareOrder[J] = ((top.due, top.number, quota.due, quota.number), quota)
    else:
        order = (tuple([n for above in reversed(path) for n in (above.due, above.number)]), quota)
    quota.order, quota.ordered_at = order, quota.top.moved
    return order
