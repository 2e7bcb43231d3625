"""Who shares the fleet and on what terms: teams, their grants and limits, priorities, fairness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.model.budget import Budget, Hold
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName


@dataclass(frozen=True, slots=True, order=True)
class Supply:
    """One kind of device of one pool: its whole GPUs, or its slices of one profile.

    What is guaranteed, lent and counted is always of one supply. Written `hpc-a100` or `hpc-mig/1g.10gb`.
    """

    pool: PoolName
    slice: SliceName | None = None

    def __str__(self) -> str:
        return self.pool if self.slice is None else f"{self.pool}/{self.slice}"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a team may have of one supply. Without a grant it may have nothing of it."""

    supply: Supply
    guarantee: int = 0
    """Devices the team, with all teams inside it, gets whenever it asks; inside the parent's guarantee."""
    borrow: int | None = None
    """Devices beyond the guarantee, as long as nobody entitled asks; None: whatever is idle, as far as the
    parent may hold it."""

    @property
    def ceiling(self) -> int | None:
        """The most the team with all teams inside it ever holds; None: only what its parent may hold."""
        return None if self.borrow is None else self.guarantee + self.borrow


def borrowed(held: int, guarantee: int) -> int:
    """Devices of one supply that a team, with all teams inside it, holds beyond its guarantee: others may
    take them back. What a supply lends in all is what the teams at the top borrow of it: what a team inside
    another holds beyond its own guarantee is its family's until that one is beyond its guarantee too.
    """
    return max(0, held - guarantee)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most one job, and one user of the team, may have; None: no limit."""

    job_gpus: int | None = None
    """GPUs or slices of one supply in one job."""
    job_seconds: int | None = None
    user_gpus: int | None = None
    """GPUs or slices of one supply that one user's running jobs hold together."""


@dataclass(frozen=True, slots=True)
class Priority:
    """A named class of jobs. Within a team a higher rank may take a lower one's place."""

    name: PriorityName
    rank: int
    default: bool = False
    """What a job without a word gets; exactly one priority of a fleet is it."""
    preemptible: bool = False
    """Always: runs only on what nobody else wants, whatever the team's guarantee."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """How past use counts among those who want more than they are guaranteed."""

    half_life_seconds: int = 7 * 24 * 3600


DEFAULT_FAIRNESS: Final = Fairness()


@dataclass(frozen=True, slots=True)
class Team:
    """A tenant. Teams nest: a child's guarantee is part of its parent's."""

    name: TeamName
    """Unique in the fleet, whatever its parent."""
    parent: TeamName | None = None
    share: int = 1
    """Weight among its siblings when more is wanted than is there."""
    grants: tuple[Grant, ...] = ()
    """Complete: a child inherits its parent's supplies, with no guarantee and borrowing as the parent may,
    unless it says otherwise; `files` writes that out."""
    limits: Limits = Limits()
    """Complete too: a child has its parent's limits unless it says otherwise."""
    priorities: tuple[PriorityName, ...] = ()
    """Which priorities its jobs may use; complete, by rank from the highest."""
    members: tuple[UserName, ...] = ()
    draining: bool = False
    """Nothing of it starts any more; what runs may end. The way to remove a team. Complete: a team inside
    a draining one drains too."""
    budget: Budget | None = None
    hold: Hold | None = None
    """For a spent budget, its own or that of a team it is inside of. Complete; never from a file."""

    def grant(self, supply: Supply) -> Grant | None:
        """Its grant of `supply`, if any."""
        return next((g for g in self.grants if g.supply == supply), None)


DEFAULT_PRIORITIES: Final = (
    Priority(PriorityName("urgent"), 100),
    Priority(PriorityName("normal"), 50, default=True),
    Priority(PriorityName("low"), 10, preemptible=True),
)
"""The priorities of a fleet that names none."""


class TeamTree:
    """Teams with their family looked up once: every question is answered without a search."""

    def __init__(self, teams: Iterable[Team]) -> None:
        """`teams` with parents before children, as a Fleet has them."""
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
        """The teams without a parent."""
        return tuple(self._children.get(None, ()))

    def children(self, team: Team) -> tuple[Team, ...]:
        """The teams directly inside `team`."""
        return tuple(self._children.get(team.name, ()))

    def parent(self, team: Team) -> Team | None:
        """The team that `team` is inside of."""
        return None if team.parent is None else self._by_name[team.parent]

    def ancestors(self, team: Team) -> Iterator[Team]:
        """Its parent, the parent's parent, and so on."""
        above = self.parent(team)
        while above is not None:
            yield above
            above = self.parent(above)

    def subtree(self, team: Team) -> Iterator[Team]:
        """The team and every team inside it, parents first."""
        yield team
        for child in self.children(team):
            yield from self.subtree(child)

    def guaranteed_to_children(self, team: Team, supply: Supply) -> int:
        """How much of the team's guarantee is promised on to its children."""
        grants = (child.grant(supply) for child in self.children(team))
        return sum(g.guarantee for g in grants if g is not None)


def default_teams(teams: Iterable[Team], chosen: Mapping[UserName, TeamName]) -> dict[UserName, TeamName]:
    """The team each member's jobs belong to when they name none: the chosen one, else the only one."""
    found: dict[UserName, TeamName] = {}
    for team in teams:
        for member in team.members:
            found.setdefault(member, team.name)
    return found | {user: team for user, team in chosen.items() if user in found}
