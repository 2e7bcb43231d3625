"""Who holds how much of one supply: a tree of branches, one a team, guarantee, ceiling, memory of use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp2
from typing import Final

from fairway.engines.virtual.jobs import Job
from fairway.engines.virtual.lines import Lines
from fairway.model.budget import Hold
from fairway.model.names import UserName
from fairway.model.team import Supply, Team

BOUNDLESS: Final = 1 << 60


class Branch:
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
        "lines",
        "moved",
        "name",
        "number",
        "order",
        "ordered_at",
        "parent",
        "path",
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
        self, team: Team | None, parent: Branch | None, below: dict[Branch, None], number: int = 0
    ) -> None:
        self.team = team
        self.below: Final = below
        """The branches of the tree that hold less than they are guaranteed."""
        self.number: Final = number
        """Its place among the teams: decides between equals."""
        self.name: Final = "" if team is None else str(team.name)
        self.parent: Final = parent
        self.path: Final[tuple[Branch, ...]] = () if parent is None else (self, *parent.path)
        """Itself and every team it is inside of; not the root, which bounds nobody."""
        self.top: Final[Branch] = self.path[-1] if self.path else self
        self.moved = 0
        """Of a top: how often something in it changed what is due."""
        self.order: Order = ((), self)
        self.ordered_at = -1
        """What its top's `moved` was when its order was written down."""
        self.inside: tuple[Branch, ...] = (self,)
        """It and every branch inside it, parents first; known once the tree is whole."""
        self.children: Final[list[Branch]] = []
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
        self.lines: Final = Lines()
        self.running: Final[dict[int, dict[Job, None]]] = {}
        """By rank, in the order in which they started."""
        self.saving: Job | None = None
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
        for branch in self.path:
            held, firmly, guarantee, average = branch.held, branch.firm, branch.guarantee, branch.average
            past = now - branch.average_at
            if past > 0.0:
                beyond = held - (firmly if firmly < guarantee else guarantee)
                average = branch.average = beyond + (average - beyond) * exp2(-past / half_life)
                branch.average_at = now
            held = branch.held = held + devices
            branch.waiting += waiting
            if firm:
                firmly = branch.firm = firmly + firm
                if guarantee:
                    if firmly < guarantee:
                        branch.below[branch] = None
                    elif branch in branch.below:
                        del branch.below[branch]
            branch.due = (held - (firmly if firmly < guarantee else guarantee) + average) / branch.share
        self.top.moved += 1

    def add_running(self, job: Job) -> None:
        of_rank = self.running.get(job.rank)
        if of_rank is None:
            of_rank = self.running[job.rank] = {}
        of_rank[job] = None
        if self.user_most < BOUNDLESS:
            user = job.request.user
            self.user_held[user] = self.user_held.get(user, 0) + job.devices

    def remove_running(self, job: Job) -> None:
        del self.running[job.rank][job]
        user = job.request.user
        if user in self.user_held:
            self.user_held[user] -= job.devices

    def weakest_first(self, below: int) -> Iterator[Job]:
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

    def all_inside(self) -> Iterator[Branch]:
        """It and every branch inside it, parents first."""
        yield self
        for child in self.children:
            yield from child.all_inside()

    def room(self) -> int:
        """Devices it may still get before it or a team it is inside of is at its ceiling."""
        least = BOUNDLESS
        for branch in self.path:
            left = branch.ceiling - branch.held
            if left < least:  # noqa: PLR1730 - a call to min costs more than all the rest
                least = left
        return least

    def slack(self) -> int:
        """Devices it may still get within its guarantee, or within that of a team it is inside of."""
        most = 0
        for branch in self.path:
            left = branch.guarantee - branch.firm
            if left > most:  # noqa: PLR1730 - as above
                most = left
        return most

    def entitled(self, devices: int) -> bool:
        """Whether so many more are within its guarantee, or within that of a team it is inside of."""
        for branch in self.path:  # noqa: SIM110 - as above
            if branch.firm + devices <= branch.guarantee:
                return True
        return False


Order = tuple[tuple[float, ...], Branch]
"""What decides between branches, and whose it is; no two are alike."""


def by_share(branches: Iterable[Branch]) -> list[Order]:
    """To sort by what they, and the teams they are inside of, had beyond their guarantees for their share."""
    return [b.order if b.ordered_at == b.top.moved else _ordered(b) for b in branches]


def _ordered(branch: Branch) -> Order:
    path = branch.path
    if len(path) == 2:  # most are
        top = path[1]
        order: Order = ((top.due, top.number, branch.due, branch.number), branch)
    else:
        order = (tuple([n for above in reversed(path) for n in (above.due, above.number)]), branch)
    branch.order, branch.ordered_at = order, branch.top.moved
    return order
