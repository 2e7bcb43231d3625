"""Build the view model of teams: guarantee, usage, borrowing and queue, with subteams. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.team import Supply, Team, TeamTree, borrowed
from fairway.wire import budgets as budget_wire

_HOLDS: Final = (JobState.RUNNING,)
_WAITS: Final = (JobState.QUEUED, JobState.WAITING)


@dataclass(frozen=True, slots=True)
class TeamSupplyUse:
    """A team, including its subteams, on one supply or on all of a kind."""

    name: str
    """The name of the supply."""
    pool: str
    guarantee: int
    held: int
    borrowed: int
    """Held beyond the guarantee, summed over supplies: others may reclaim it."""
    most: int | None
    """None if unknown, because the pool was never observed."""
    waiting: int
    """Devices that its waiting jobs request."""
    sliced: bool = False

    @property
    def own(self) -> int:
        """Return the devices held within the guarantee."""
        return self.held - self.borrowed

    @property
    def scale(self) -> int:
        """Return the number of devices at the full length of the bar."""
        return max(1, self.guarantee, self.held, self.most or 0)

    def length(self, devices: int) -> str:
        """Format a number of devices as a percentage of the bar."""
        return f"{100 * devices / self.scale:.2f}"

    @property
    def said(self) -> str:
        """Describe the bar in words."""
        most = "" if self.most is None else f", may hold {self.most}"
        borrowed = f", {self.borrowed} of them borrowed" if self.borrowed else ""
        return f"{self.name}: holds {self.held}{borrowed}, guaranteed {self.guarantee}{most}"


@dataclass(frozen=True, slots=True)
class TeamListRow:
    """A row of the list of teams."""

    team: Team
    path: tuple[str, ...]
    """Its ancestors from the top, and itself."""
    gpus: TeamSupplyUse
    """All its whole GPUs together."""
    slices: TeamSupplyUse | None
    """All its slices together. None if it has none."""
    supplies: tuple[TeamSupplyUse, ...]
    jobs_running: int
    jobs_waiting: int
    budget: budget_wire.Budget | None
    """None if it has none, or the caller may not see it."""
    spent_above: bool
    """Held, but not because of a budget that the caller sees."""
    open_to_caller: bool
    gpu_hours: Decimal | None = None
    """Recent usage. None if the caller may not see it."""
    used_part: Decimal | None = None
    """Percentage of the recent usage of all teams, 0 to 100."""
    share_part: Decimal | None = None
    """Its weight among its siblings, 0 to 100."""
    people: int = 0

    @property
    def telling(self) -> list[TeamSupplyUse]:
        """Return the supplies with something held, guaranteed or waited for, the most held first."""
        said = [s for s in self.supplies if s.held or s.guarantee or s.waiting]
        return sorted(said, key=lambda s: -s.held)

    @property
    def depth(self) -> int:
        return len(self.path) - 1


class Sort(StrEnum):
    """The sort orders of the list."""

    TREE = "tree"
    NAME = "name"
    GUARANTEE = "guarantee"
    HELD = "held"
    BORROWED = "borrowed"
    WAITING = "waiting"
    USED = "used"
    SPENT = "spent"


def lines(
    fleet: Fleet,
    counts: Iterable[JobCount],
    pools: Iterable[PoolState],
    budgets: Mapping[str, budget_wire.Budget],
    held_teams: Iterable[TeamName],
    seen: frozenset[str] | None,
    used: Mapping[str, Decimal] | None = None,
) -> list[TeamListRow]:
    """Return every team after its parent, siblings by name. `used`: GPU-hours of each team by itself."""
    tree, held = TeamTree(fleet.teams), frozenset(held_teams)
    sums, sizes = _TeamTotals.of(counts), _sizes(pools)
    found = []
    for team in _in_order(tree):
        inside = [t.name for t in tree.subtree(team)]
        supplies = [grant.supply for grant in team.grants]
        supplies += sorted(sums.held_of(inside).difference(supplies))
        of_each = tuple(standing(tree, team, supply, inside, sums, sizes) for supply in supplies)
        whole = [s for s in of_each if not s.sliced]
        cut = [s for s in of_each if s.sliced]
        mine = seen is None or team.name in seen
        hours = (
            None if used is None or not mine else sum((used.get(n, Decimal(0)) for n in inside), Decimal(0))
        )
        every = sum(used.values(), Decimal(0)) if used is not None and seen is None else Decimal(0)
        budget = budgets.get(team.name) if mine else None
        found.append(
            TeamListRow(
                team,
                (*reversed([t.name for t in tree.ancestors(team)]), team.name),
                _together("GPUs", whole),
                _together("slices", cut) if cut else None,
                of_each,
                sum(sums.running.get(name, 0) for name in inside),
                sum(sums.waiting.get(name, 0) for name in inside),
                budget,
                team.name in held and (budget is None or budget.hold is None),
                mine,
                hours,
                hours / every * 100 if hours is not None and every else None,
                _share(tree, team),
                len({member for t in tree.subtree(team) for member in t.members}),
            )
        )
    return found


def ordered(found: Sequence[TeamListRow], sort: Sort) -> list[TeamListRow]:
    """Sort the teams, largest first; ties keep the order of the tree."""
    return sorted(found, key=_KEYS[sort]) if sort is not Sort.TREE else list(found)


def _least_left(line: TeamListRow) -> tuple[bool, Decimal]:
    part = line.budget.part if line.budget else None
    return part is None, -(part or Decimal(0))


_KEYS: Final[Mapping[Sort, Callable[[TeamListRow], Any]]] = {
    Sort.NAME: lambda line: line.team.name,
    Sort.GUARANTEE: lambda line: -line.gpus.guarantee,
    Sort.HELD: lambda line: -line.gpus.held,
    Sort.BORROWED: lambda line: -line.gpus.borrowed,
    Sort.WAITING: lambda line: (-line.gpus.waiting, -line.jobs_waiting),
    Sort.USED: lambda line: -(line.gpu_hours or Decimal(-1)),
    Sort.SPENT: _least_left,
}


@dataclass(slots=True)
class _TeamTotals:
    """Devices held and requested by team and supply, and jobs by team."""

    held: dict[tuple[str, Supply], int] = field(default_factory=dict)
    wanted: dict[tuple[str, Supply], int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Iterable[JobCount]) -> _TeamTotals:
        sums = cls()
        for count in counts:
            if count.team is None or count.state not in (*_HOLDS, *_WAITS):
                continue
            holds = count.state in _HOLDS
            jobs = sums.running if holds else sums.waiting
            jobs[count.team] = jobs.get(count.team, 0) + count.jobs
            if count.pool is not None:
                devices = sums.held if holds else sums.wanted
                key = (str(count.team), Supply(count.pool, count.slice))
                devices[key] = devices.get(key, 0) + count.devices
        return sums

    def held_of(self, names: Collection[str]) -> set[Supply]:
        """Return where these teams hold devices, granted or not: jobs may outlive a removed grant."""
        return {supply for name, supply in self.held if name in names}


def standing(
    tree: TeamTree,
    team: Team,
    supply: Supply,
    inside: Sequence[str],
    sums: _TeamTotals,
    sizes: Mapping[Supply, int],
) -> TeamSupplyUse:
    """Compute the state of one team on one supply."""
    grant = team.grant(supply)
    guarantee = grant.guarantee if grant else 0
    held = sum(sums.held.get((name, supply), 0) for name in inside)
    return TeamSupplyUse(
        str(supply),
        supply.pool,
        guarantee,
        held,
        borrowed(held, guarantee),
        most(tree, team, supply, sizes.get(supply)),
        sum(sums.wanted.get((name, supply), 0) for name in inside),
        supply.slice is not None,
    )


def most(tree: TeamTree, team: Team, supply: Supply, size: int | None) -> int | None:
    """Return the most a team may hold, by its ceiling, its ancestors' and the supply; 0 without a grant."""
    if team.grant(supply) is None:
        return 0
    around = [t.grant(supply) for t in (team, *tree.ancestors(team))]
    ceilings = [grant.ceiling for grant in around if grant is not None and grant.ceiling is not None]
    if size is not None:
        ceilings.append(size)
    return min(ceilings, default=None)


def _together(name: str, each: Sequence[TeamSupplyUse]) -> TeamSupplyUse:
    known = [s.most for s in each if s.most is not None]
    return TeamSupplyUse(
        name,
        "",
        sum(s.guarantee for s in each),
        sum(s.held for s in each),
        sum(s.borrowed for s in each),
        sum(known) if len(known) == len(each) else None,
        sum(s.waiting for s in each),
        name == "slices",
    )


def _in_order(tree: TeamTree) -> Iterable[Team]:
    for top in sorted(tree.top(), key=lambda team: team.name):
        yield from _below(tree, top)


def _below(tree: TeamTree, team: Team) -> Iterable[Team]:
    yield team
    for child in sorted(tree.children(team), key=lambda team: team.name):
        yield from _below(tree, child)


def _share(tree: TeamTree, team: Team) -> Decimal | None:
    parent = tree.parent(team)
    siblings = tree.top() if parent is None else tree.children(parent)
    whole = sum(t.share for t in siblings)
    return Decimal(100 * team.share) / whole if whole else None


def _sizes(pools: Iterable[PoolState]) -> dict[Supply, int]:
    found: dict[Supply, int] = {}
    for state in pools:
        if state.pool is not None:
            supply = Supply(state.pool, state.slice)
            found[supply] = found.get(supply, 0) + state.total
    return found
