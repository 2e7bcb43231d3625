"""Define teams, their grants and limits, priorities and fairness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final

from fairway.model.budget import Budget, Hold
from fairway.model.channel import Channels
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName


@dataclass(frozen=True, slots=True, order=True)
class Supply:
    """One kind of device in one pool: its whole GPUs, or its slices of one profile.

    Guarantees, loans and counts are always per supply. Written `hpc-a100` or `hpc-mig/1g.10gb`.
    """

    pool: PoolName
    slice: SliceName | None = None

    def __str__(self) -> str:
        return self.pool if self.slice is None else f"{self.pool}/{self.slice}"

    @property
    def noun(self) -> str:
        """Return what one of it is called: `GPU`, or `1g.10gb slice`."""
        return "GPU" if self.slice is None else f"{self.slice} slice"


@dataclass(frozen=True, slots=True)
class Grant:
    """A team's entitlement to one supply. Without a grant the team cannot use the supply."""

    supply: Supply
    guarantee: int = 0
    """Devices that the team, with its descendants, gets on request; part of the parent's guarantee."""
    borrow: int | None = None
    """Devices beyond the guarantee, until an entitled team requests them; None for any idle device, within
    the parent's ceiling."""

    @property
    def ceiling(self) -> int | None:
        """Return the most that the team and its descendants can hold; None if only the parent's applies."""
        return None if self.borrow is None else self.guarantee + self.borrow


def borrowed(held: int, guarantee: int) -> int:
    """Count the devices of one supply that a team holds beyond its guarantee, descendants included.

    Others may reclaim them. The total lent by a supply is what the top-level teams borrow: what a child holds
    beyond its own guarantee belongs to its parent until the parent exceeds its guarantee too.
    """
    return max(0, held - guarantee)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one job and of one user of a team; None is no limit."""

    job_gpus: int | None = None
    """Maximum GPUs or slices of one supply in one job."""
    job_seconds: int | None = None
    user_gpus: int | None = None
    """Maximum GPUs or slices of one supply that one user's running jobs hold together."""


@dataclass(frozen=True, slots=True)
class Priority:
    """A named priority class of jobs. Within a team, higher ranks can preempt lower ones."""

    name: PriorityName
    rank: int
    default: bool = False
    """Whether it is the priority of jobs that name none; exactly one priority of a fleet is."""
    preemptible: bool = False
    """Whether its jobs are always preemptible: they only use idle devices, even within a guarantee."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """How past usage is weighted among teams that want more than their guarantee."""

    half_life_seconds: int = 7 * 24 * 3600


DEFAULT_FAIRNESS: Final = Fairness()


@dataclass(frozen=True, slots=True)
class Move:
    """The day from which what a team spends counts inside its new parent."""

    source: TeamName | None
    """The parent until then; None: it was a top-level team."""
    since: date


@dataclass(frozen=True, slots=True)
class Team:
    """A tenant of the fleet. Teams nest: a child's guarantee is part of its parent's."""

    name: TeamName
    """Unique in the whole fleet, not just within the parent."""
    parent: TeamName | None = None
    share: int = 1
    """Fair-share weight among its siblings when demand exceeds capacity."""
    grants: tuple[Grant, ...] = ()
    """Resolved by `files`: a child inherits its parent's supplies, without a guarantee and with the parent's
    borrowing, unless it sets its own."""
    limits: Limits = Limits()
    """Resolved: a child inherits its parent's limits unless it sets its own."""
    priorities: tuple[PriorityName, ...] = ()
    """The priorities that its jobs may use; resolved, highest rank first."""
    members: tuple[UserName, ...] = ()
    draining: bool = False
    """No new jobs start, running jobs may finish: the first step to remove a team. Resolved: children of a
    draining team drain too."""
    budget: Budget | None = None
    hold: Hold | None = None
    """Set for a spent budget, its own or an ancestor's. Resolved; never from a file."""
    account: str | None = None
    """The team's account on Slurm, if that is not called like the team."""
    cost_centre: str | None = None
    """What finance calls the payer; None: that of the nearest team above it that has one."""
    notify: Channels | None = None
    """Where notices to it go; None: to the channels of the nearest team above it that has some."""
    projects: tuple[str, ...] = ()
    """The projects that its jobs may name; empty: any. Resolved: its own list, else its parent's."""
    renamed_from: TeamName | None = None
    """The name that it had before: what was charged under that name is shown and counted as this team's."""
    moved: Move | None = None
    """When it moved to its parent; None: when the file with the new parent is applied."""

    @property
    def account_name(self) -> str:
        """Return the name of the team's account on Slurm."""
        return self.name if self.account is None else self.account

    def grant(self, supply: Supply) -> Grant | None:
        """Return the team's grant of `supply`. Returns None if it has none."""
        for grant in self.grants:  # a generator would take twice as long, and plans ask very often
            if grant.supply == supply:
                return grant
        return None


DEFAULT_PRIORITIES: Final = (
    Priority(PriorityName("urgent"), 100),
    Priority(PriorityName("normal"), 50, default=True),
    Priority(PriorityName("low"), 10, preemptible=True),
)
"""The priorities of a fleet that defines none."""


class TeamTree:
    """An index of teams by name and parent, for lookups without a search."""

    def __init__(self, teams: Iterable[Team]) -> None:
        """Index `teams`, which have parents before children as in a Fleet."""
        self.teams: Final = tuple(teams)
        self._by_name: Final = {t.name: t for t in self.teams}
        self._children: dict[TeamName | None, list[Team]] = {}
        for team in self.teams:
            self._children.setdefault(team.parent, []).append(team)

    def __getitem__(self, name: str) -> Team:
        return self._by_name[TeamName(name)]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def top(self) -> tuple[Team, ...]:
        """Return the teams without a parent."""
        return tuple(self._children.get(None, ()))

    def children(self, team: Team) -> tuple[Team, ...]:
        """Return the direct children of `team`."""
        return tuple(self._children.get(team.name, ()))

    def parent(self, team: Team) -> Team | None:
        """Return the parent of `team`. Returns None for a top-level team."""
        return None if team.parent is None else self._by_name[team.parent]

    def ancestors(self, team: Team) -> Iterator[Team]:
        """Yield the parent of `team`, the parent's parent, and so on."""
        above = self.parent(team)
        while above is not None:
            yield above
            above = self.parent(above)

    def channels(self, team: Team) -> tuple[TeamName, Channels] | None:
        """Return the channels of the team, or of the nearest one above it with some, and whose they are."""
        for own in (team, *self.ancestors(team)):
            if own.notify is not None:
                return own.name, own.notify
        return None

    def subtree(self, team: Team) -> Iterator[Team]:
        """Yield the team and all its descendants, parents first."""
        yield team
        for child in self.children(team):
            yield from self.subtree(child)

    def guaranteed_to_children(self, team: Team, supply: Supply) -> int:
        """Return how much of the team's guarantee is passed on to its children."""
        grants = (child.grant(supply) for child in self.children(team))
        return sum(g.guarantee for g in grants if g is not None)


def default_teams(teams: Iterable[Team], chosen: Mapping[UserName, TeamName]) -> dict[UserName, TeamName]:
    """Return the default team of each member: the chosen one, else the first in file order."""
    found: dict[UserName, TeamName] = {}
    for team in teams:
        for member in team.members:
            found.setdefault(member, team.name)
    return found | {user: team for user, team in chosen.items() if user in found}
