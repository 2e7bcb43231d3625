"""Build the view model of teams: guarantee, usage, borrowing and queue, with subteams. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount, by_team
from fairway.model.fleet import Fleet
from fairway.model.job import PENDING_JOBS, JobState
from fairway.model.names import TeamName
from fairway.model.team import Grant, Supply, Team, TeamTree, borrowed
from fairway.wire import budgets as budget_wire


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
    limit: int | None
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
        return max(1, self.guarantee, self.held, self.limit or 0)

    def length(self, devices: int) -> str:
        """Format a number of devices as a percentage of the bar."""
        return f"{100 * devices / self.scale:.2f}"

    @property
    def description(self) -> str:
        """Describe the bar in text, for screen readers."""
        limit = "" if self.limit is None else f", may hold {self.limit}"
        borrowed = f", {self.borrowed} of them borrowed" if self.borrowed else ""
        return f"{self.name}: holds {self.held}{borrowed}, guaranteed {self.guarantee}{limit}"


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
    def active_supplies(self) -> list[TeamSupplyUse]:
        """Return the supplies with something held, guaranteed or waited for, the most held first."""
        active = [s for s in self.supplies if s.held or s.guarantee or s.waiting]
        return sorted(active, key=lambda s: -s.held)

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


def team_rows(
    fleet: Fleet,
    counts: Iterable[JobCount],
    pools: Iterable[PoolState],
    budgets: Mapping[str, budget_wire.Budget],
    held_teams: Collection[TeamName],
    visible: frozenset[str] | None,
    used: Mapping[str, Decimal] | None = None,
) -> list[TeamListRow]:
    """Return every team after its parent, siblings by name. `used`: GPU-hours of each team by itself."""
    tree, counts, sizes = TeamTree(fleet.teams), list(counts), _sizes(pools)
    held, requested = by_team(counts, JobState.RUNNING), by_team(counts, *PENDING_JOBS)
    running, waiting = _jobs_by_team(counts, JobState.RUNNING), _jobs_by_team(counts, *PENDING_JOBS)
    all_hours = sum(used.values(), Decimal(0)) if used is not None and visible is None else Decimal(0)
    found = []
    for team in fleet.teams:
        names = [t.name for t in tree.subtree(team)]
        # Jobs may outlive a removed grant: add the supplies where they still hold devices.
        granted = [grant.supply for grant in team.grants]
        others = {supply for supply, teams in held.items() if not teams.keys().isdisjoint(names)}
        uses = tuple(
            _supply_use(
                supply,
                team.grant(supply),
                _sum(held.get(supply, {}), names),
                _limit(tree, team, supply, sizes.get(supply)),
                _sum(requested.get(supply, {}), names),
            )
            for supply in (*granted, *sorted(others.difference(granted)))
        )
        slices = [use for use in uses if use.sliced]
        is_visible = visible is None or team.name in visible
        hours = None
        if used is not None and is_visible:
            hours = sum((used.get(name, Decimal(0)) for name in names), Decimal(0))
        budget = budgets.get(team.name) if is_visible else None
        found.append(
            TeamListRow(
                team,
                (*reversed([t.name for t in tree.ancestors(team)]), team.name),
                _together("GPUs", [use for use in uses if not use.sliced]),
                _together("slices", slices) if slices else None,
                uses,
                _sum(running, names),
                _sum(waiting, names),
                budget,
                team.name in held_teams and (budget is None or budget.hold is None),
                is_visible,
                hours,
                hours / all_hours * 100 if hours is not None and all_hours else None,
                _share(tree, team),
                len({member for t in tree.subtree(team) for member in t.members}),
            )
        )
    return sorted(found, key=lambda row: row.path)


def sorted_rows(rows: Sequence[TeamListRow], sort: Sort) -> list[TeamListRow]:
    """Sort the teams, largest first; ties keep the order of the tree."""
    return sorted(rows, key=_KEYS[sort]) if sort is not Sort.TREE else list(rows)


def _least_left(row: TeamListRow) -> tuple[bool, Decimal]:
    part = row.budget.part if row.budget else None
    return part is None, -(part or Decimal(0))


_KEYS: Final[Mapping[Sort, Callable[[TeamListRow], Any]]] = {
    Sort.NAME: lambda row: row.team.name,
    Sort.GUARANTEE: lambda row: -row.gpus.guarantee,
    Sort.HELD: lambda row: -row.gpus.held,
    Sort.BORROWED: lambda row: -row.gpus.borrowed,
    Sort.WAITING: lambda row: (-row.gpus.waiting, -row.jobs_waiting),
    Sort.USED: lambda row: -(row.gpu_hours or Decimal(-1)),
    Sort.SPENT: _least_left,
}


def _jobs_by_team(counts: Iterable[JobCount], *states: JobState) -> Counter[TeamName | None]:
    found: Counter[TeamName | None] = Counter()
    for count in counts:
        if count.state in states:
            found[count.team] += count.jobs
    return found


def _sum(by_name: Mapping[TeamName | None, int], names: Iterable[TeamName]) -> int:
    return sum(by_name.get(name, 0) for name in names)


def _supply_use(
    supply: Supply, grant: Grant | None, held: int, limit: int | None, requested: int
) -> TeamSupplyUse:
    guarantee = grant.guarantee if grant else 0
    return TeamSupplyUse(
        str(supply),
        supply.pool,
        guarantee,
        held,
        borrowed(held, guarantee),
        limit,
        requested,
        supply.slice is not None,
    )


def _limit(tree: TeamTree, team: Team, supply: Supply, size: int | None) -> int | None:
    """Return the most a team may hold, by its ceiling, its ancestors' and the supply; 0 without a grant."""
    if team.grant(supply) is None:
        return 0
    grants = [t.grant(supply) for t in (team, *tree.ancestors(team))]
    ceilings = [grant.ceiling for grant in grants if grant is not None and grant.ceiling is not None]
    if size is not None:
        ceilings.append(size)
    return min(ceilings, default=None)


def _together(name: str, each: Sequence[TeamSupplyUse]) -> TeamSupplyUse:
    limits = [s.limit for s in each if s.limit is not None]
    return TeamSupplyUse(
        name,
        "",
        sum(s.guarantee for s in each),
        sum(s.held for s in each),
        sum(s.borrowed for s in each),
        sum(limits) if len(limits) == len(each) else None,
        sum(s.waiting for s in each),
        name == "slices",
    )


def _share(tree: TeamTree, team: Team) -> Decimal | None:
    parent = tree.parent(team)
    siblings = tree.top() if parent is None else tree.children(parent)
    total = sum(t.share for t in siblings)
    return Decimal(100 * team.share) / total if total else None


def _sizes(pools: Iterable[PoolState]) -> dict[Supply, int]:
    found: dict[Supply, int] = {}
    for state in pools:
        if state.pool is not None:
            supply = Supply(state.pool, state.slice)
            found[supply] = found.get(supply, 0) + state.total
    return found
