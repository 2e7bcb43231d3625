"""Build the view model of the Fleet page from a snapshot. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.budget_text import SPENT_CODE, SpentBudget, spent_text
from fairway.cost.budgets import period
from fairway.cost.calendar import calendar_of
from fairway.cost.rates import gpus_behind, parts
from fairway.cost.rounding import rounded
from fairway.ledger.pools import WaitingGroup
from fairway.ledger.records.jobs import by_team
from fairway.model.budget import BudgetOutlook, Hold
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import PENDING_JOBS, JobState
from fairway.model.names import PoolName, TeamName
from fairway.model.price import cent
from fairway.model.team import Supply, TeamTree
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import fleet as convert
from fairway.services.fleets import spent_budgets
from fairway.web.pages.fleet.data import DayCost, FleetPageData
from fairway.web.pages.fleet.supply_bars import MEANINGS, DevicesByTeam, SupplyBar, supply_bar
from fairway.wire import budgets as budget_wire
from fairway.wire import fleet as wire

MAX_QUEUES: Final = 8
MAX_REASONS: Final = 2
_NUMBERED: Final = re.compile(r"\S*\d\S*(,? \S*\d\S*)*")
"""What reasons of the same kind differ in: counts, and names of nodes."""
_TO_WATCH: Final = tuple(o.value for o in (BudgetOutlook.SPENT, BudgetOutlook.RUNS_OUT, BudgetOutlook.WARNED))
"""The levels of budgets that are listed, the worst first."""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Jobs that wait together."""

    jobs: int = 0
    devices: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The jobs of a team that wait on a pool, and why."""

    pool: str | None
    team: TeamName | None
    queue: QueueSummary
    reasons: tuple[tuple[str, int], ...]
    """The most frequent reasons, with the number of jobs of each."""
    other_reasons: int


@dataclass(frozen=True, slots=True)
class PoolCard:
    """A pool's summary."""

    pool: wire.Pool
    bars: tuple[SupplyBar, ...]
    queue: QueueSummary
    nodes: int
    nodes_drained: int
    nodes_down: int


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """The key figures of the fleet: whole GPUs, slices, jobs."""

    gpus: Mapping[str, int]
    slices: Mapping[str, int]
    all_gpus: float
    """Whole GPUs and those that are cut into slices: the total of charts."""
    all_used: float
    """Of them; a slice counts as its part of a GPU."""
    running: int
    waiting: QueueSummary
    held_back: int


@dataclass(frozen=True, slots=True)
class TodaysCost:
    """Today's cost, as far as the caller may see it."""

    currency: str
    today: Decimal
    unallocated: Decimal | None
    """The part of `today` that is not allocated to a team. None if the caller may not see it."""
    a_day: Decimal | None
    """The budgets' allowance for a day. None if there are none."""
    of_all: bool


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets that need attention, and the number of others."""

    near: tuple[budget_wire.Budget, ...]
    others: int


def cards(data: FleetPageData) -> list[PoolCard]:
    """Build a card for every pool of the fleet, in file order."""
    wire_pools = {p.name: p for p in convert.pools(data.state)}
    held = by_team(data.snapshot.counts, JobState.RUNNING)
    return [pool_card(data, pool, wire_pools[pool.name], held) for pool in data.fleet.pools]


def pool_card(
    data: FleetPageData, pool: Pool, wire_pool: wire.Pool, held: Mapping[Supply, DevicesByTeam]
) -> PoolCard:
    """Build the card of one pool. A pool that was never observed has no bars."""
    rows = [s for s in data.state.pools if s.pool == pool.name and s.cluster == pool.cluster]
    bars = []
    for state in rows:
        supply = Supply(pool.name, state.slice)
        lent = data.grants.lent(supply, held.get(supply, {}))
        bars.append(supply_bar(supply, state, lent, data.snapshot.drained.get(supply, 0)))
    waiting = [g for g in data.snapshot.waiting if g.supply and g.supply.pool == pool.name]
    return PoolCard(
        wire_pool,
        tuple(bars),
        queue_of(data, waiting, pool.name),
        max((s.nodes for s in rows), default=0),
        max((s.nodes_drained for s in rows), default=0),
        max((s.nodes_down for s in rows), default=0),
    )


def queue_of(data: FleetPageData, groups: Iterable[WaitingGroup], pool: str | None = None) -> QueueSummary:
    """Summarize what waits: counts are exact, the oldest is among the groups that were read."""
    counts = [c for c in data.snapshot.counts if c.state in PENDING_JOBS and pool in (None, c.pool)]
    return QueueSummary(
        sum(c.jobs for c in counts),
        sum(c.devices for c in counts),
        min((g.oldest for g in groups), default=None),
    )


def fleet_totals(data: FleetPageData, pool_cards: Sequence[PoolCard]) -> FleetTotals:
    """Compute the key figures."""
    bars = [bar for card in pool_cards for bar in card.bars]
    total, used = _gpu_totals(data, pool_cards)
    return FleetTotals(
        _device_totals([bar for bar in bars if bar.supply.slice is None]),
        _device_totals([bar for bar in bars if bar.supply.slice is not None]),
        float(total),
        float(used),
        sum(c.jobs for c in data.snapshot.counts if c.state is JobState.RUNNING),
        queue_of(data, data.snapshot.waiting),
        sum(c.jobs for c in data.snapshot.counts if c.state is JobState.HELD),
    )


def _gpu_totals(data: FleetPageData, pool_cards: Sequence[PoolCard]) -> tuple[Fraction, Fraction]:
    """Sum all GPUs, and those in use; slices count as their part of the GPU that they are cut from."""
    types = {pool.name: pool.gpu for pool in data.fleet.pools}
    total = used = Fraction(0)
    for card in pool_cards:
        name = PoolName(card.pool.name)
        gpu = types[name]
        totals = {bar.supply.slice: bar.total for bar in card.bars}
        slices = {slice_: count for slice_, count in totals.items() if slice_ is not None}
        gpus = totals.get(None, 0)
        if slices:  # how many GPUs they are cut from is known by node, which the meter knows
            gpus = max(gpus + gpus_behind(gpu, slices), data.gpus.get(name, 0))
        part = parts(gpu, totals, gpus)
        total += gpus
        used += sum((part[b.supply.slice] * b.count("used", "on_loan") for b in card.bars), Fraction(0))
    return total, used


def _device_totals(bars: Sequence[SupplyBar]) -> dict[str, int]:
    return {"total": sum(b.total for b in bars), **{k: sum(b.count(k) for b in bars) for k in MEANINGS}}


def queue_rows(
    data: FleetPageData, visible: frozenset[str] | None, pool: str | None = None
) -> list[QueueRow]:
    """Return waiting jobs by pool and team, most GPUs first; of one pool, or of all."""
    now = int(data.state.now.timestamp())
    spent = spent_budgets(data.raised, data.snapshot.budgets, now, visible)
    low = {p.name for p in data.policy.priorities if p.preemptible}
    rows: dict[tuple[str | None, TeamName | None], list[WaitingGroup]] = {}
    for group in data.snapshot.waiting:
        where = group.supply.pool if group.supply else None
        if pool in (None, where):
            rows.setdefault((where, group.team), []).append(group)
    found = [_queue_row(where, team, groups, spent, low) for (where, team), groups in rows.items()]
    return sorted(found, key=lambda r: (-r.queue.devices, -r.queue.jobs, r.pool or "", r.team or ""))


def _queue_row(
    pool: str | None,
    team: TeamName | None,
    groups: Sequence[WaitingGroup],
    spent: Mapping[TeamName, SpentBudget],
    low: Collection[str],
) -> QueueRow:
    by_shape: dict[str, tuple[str, int]] = {}
    for group in groups:  # the largest first: its text represents all that differ only in numbers
        reason = _reason(group, spent, low)
        shape = _NUMBERED.sub("#", reason)
        text, jobs = by_shape.get(shape, (reason, 0))
        by_shape[shape] = (text, jobs + group.jobs)
    reasons = sorted(by_shape.values(), key=lambda item: (-item[1], item[0]))
    return QueueRow(
        pool,
        team,
        QueueSummary(
            sum(g.jobs for g in groups), sum(g.devices for g in groups), min(g.oldest for g in groups)
        ),
        tuple(reasons[:MAX_REASONS]),
        max(0, len(reasons) - MAX_REASONS),
    )


def _reason(group: WaitingGroup, spent: Mapping[TeamName, SpentBudget], low: Collection[str]) -> str:
    """Return why a group waits: a spent budget, which engines do not know of, else the engine's reason."""
    budget = spent.get(group.team) if group.team else None
    if budget is not None and not (budget.hold is Hold.LOW_ONLY and group.priority in low):
        return f"{SPENT_CODE}: {spent_text(budget)}"
    if group.code and group.reason:
        return f"{group.code}: {group.reason}"
    return group.reason or group.code or "not sent to its engine yet"


def todays_cost(data: FleetPageData, cost: DayCost, visible: frozenset[str] | None) -> TodaysCost:
    """Compare today's cost with a day's part of the budgets. With `visible` None, for all teams."""
    fleet = data.policy
    smallest = cent(fleet.currency)
    teams = sum((v for team, v in cost.by_team.items() if visible is None or team in visible), Fraction(0))
    total = teams + (cost.unallocated if visible is None else 0)
    a_day = _budget_a_day(data.raised, data.state.now, visible)
    return TodaysCost(
        currency=fleet.currency,
        today=rounded(total, smallest),
        unallocated=rounded(cost.unallocated, smallest) if visible is None else None,
        a_day=None if a_day is None else rounded(a_day, smallest),
        of_all=visible is None,
    )


def budgets(data: FleetPageData, visible: frozenset[str] | None) -> Budgets:
    """Return the budgets that are spent, will run out or passed their warning, as far as visible."""
    now = int(data.state.now.timestamp())
    every = convert_budgets.budgets(data.raised, data.snapshot.budgets, (), now, visible).budgets
    near = [b for b in every if b.outlook in _TO_WATCH]
    near.sort(key=lambda b: (_TO_WATCH.index(b.outlook or ""), b.runs_out or b.until, b.name))
    return Budgets(tuple(near), len(every) - len(near))


def _budget_a_day(fleet: Fleet, now: datetime, visible: frozenset[str] | None) -> Fraction | None:
    """Sum a day's part of the outermost budgets, which contain inner ones. Returns None without budgets."""
    calendar = calendar_of(fleet)
    today: date = calendar.day_of(int(now.timestamp()))
    tree = TeamTree(fleet.teams)
    found: list[Fraction] = []
    for team in fleet.teams:
        if team.budget is None or not (visible is None or team.name in visible):
            continue
        above = [a for a in tree.ancestors(team) if visible is None or a.name in visible]
        if any(a.budget is not None for a in above):
            continue
        days = len(calendar.days(period(team.budget.every, today, calendar)))
        found.append(Fraction(team.budget.amount) / days)
    return sum(found, Fraction(0)) if found else None
