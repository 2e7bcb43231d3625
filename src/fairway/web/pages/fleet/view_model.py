"""Build the view model of the Fleet page from a snapshot. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.budget_text import SPENT_CODE, SpentBudget, spent_text
from fairway.cost.budgets import period
from fairway.ledger.pools import WaitingGroup
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.model.team import Supply, TeamTree
from fairway.services.budget_holds import spent_budgets
from fairway.services.charges import calendar_of
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import fleet as convert
from fairway.web.pages.fleet.data import FleetLook, Spend
from fairway.web.pages.fleet.supply_bars import WAITS, SupplyBar, by_team, supply_bar
from fairway.wire import budgets as budget_wire
from fairway.wire import fleet as wire

MOST_QUEUES: Final = 8
MOST_REASONS: Final = 2
_NUMBERED: Final = re.compile(r"\S*\d\S*(,? \S*\d\S*)*")
"""What reasons of the same kind differ in: counts, and names of nodes."""
_NEAR: Final = Decimal("0.9")
"""The fraction of its warning threshold from which a budget is listed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that wait together."""

    jobs: int = 0
    devices: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The jobs of a team that wait on a pool, and why."""

    pool: str | None
    team: TeamName | None
    queue: Queue
    reasons: tuple[tuple[str, int], ...]
    """The most frequent reasons, with the number of jobs of each."""
    other_reasons: int


@dataclass(frozen=True, slots=True)
class PoolCard:
    """A pool's summary."""

    pool: wire.Pool
    bars: tuple[SupplyBar, ...]
    queue: Queue
    nodes: int
    nodes_drained: int
    nodes_down: int

    @property
    def free(self) -> int:
        return sum(bar.count("idle") for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Figures:
    """The key figures of the fleet: whole GPUs, slices, jobs."""

    gpus: Mapping[str, int]
    slices: Mapping[str, int]
    running: int
    waiting: Queue
    held_back: int


@dataclass(frozen=True, slots=True)
class Money:
    """Today's cost, as far as the caller may see it."""

    currency: str
    today: Decimal
    nobodys: Decimal | None
    """The part of `today` that is not allocated to a team. None if the caller may not see it."""
    a_day: Decimal | None
    """The budgets' allowance for a day. None if there are none."""
    of_all: bool


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets that need attention, and the number of others."""

    near: tuple[budget_wire.Budget, ...]
    others: int


def cards(look: FleetLook) -> list[PoolCard]:
    """Build a card for every pool of the fleet, in file order."""
    told = {p.name: p for p in convert.pools(look.known)}
    held = by_team(look.now.counts, JobState.RUNNING)
    return [pool_card(look, pool, told[pool.name], held) for pool in look.fleet.pools]


def pool_card(
    look: FleetLook, pool: Pool, told: wire.Pool, held: Mapping[Supply, Mapping[TeamName | None, int]]
) -> PoolCard:
    """Build the card of one pool. A pool that was never observed has no bars."""
    rows = [s for s in look.known.pools if s.pool == pool.name and s.cluster == pool.cluster]
    bars = []
    for state in rows:
        supply = Supply(pool.name, state.slice)
        mine = held.get(supply, {})
        lent = look.grants.lent(supply, mine)
        bars.append(supply_bar(supply, state, lent, look.now.drained.get(supply, 0)))
    return PoolCard(
        told,
        tuple(bars),
        queue_of(look, [g for g in look.now.waiting if g.supply and g.supply.pool == pool.name], pool.name),
        max((s.nodes for s in rows), default=0),
        max((s.nodes_drained for s in rows), default=0),
        max((s.nodes_down for s in rows), default=0),
    )


def queue_of(look: FleetLook, groups: Iterable[WaitingGroup], pool: str | None = None) -> Queue:
    """Summarize what waits: counts are exact, the oldest is among the groups that were read."""
    counts = [c for c in look.now.counts if c.state in WAITS and pool in (None, c.pool)]
    return Queue(
        sum(c.jobs for c in counts),
        sum(c.devices for c in counts),
        min((g.oldest for g in groups), default=None),
    )


def figures(look: FleetLook, of: Sequence[PoolCard]) -> Figures:
    """Compute the key figures."""
    kinds = ("used", "lent", "idle", "drained", "broken")
    whole = [bar for card in of for bar in card.bars if bar.supply.slice is None]
    slices = [bar for card in of for bar in card.bars if bar.supply.slice is not None]
    return Figures(
        {"total": sum(b.total for b in whole), **{k: sum(b.count(k) for b in whole) for k in kinds}},
        {"total": sum(b.total for b in slices), **{k: sum(b.count(k) for b in slices) for k in kinds}},
        sum(c.jobs for c in look.now.counts if c.state is JobState.RUNNING),
        queue_of(look, look.now.waiting),
        sum(c.jobs for c in look.now.counts if c.state is JobState.HELD),
    )


def queue_rows(look: FleetLook, pool: str | None = None) -> list[QueueRow]:
    """Return waiting jobs by pool and team, most GPUs first; of one pool, or of all."""
    held = spent_budgets(look.policy, look.now.standings, int(look.known.now.timestamp()))
    low = {p.name for p in look.policy.priorities if p.preemptible}
    rows: dict[tuple[str | None, TeamName | None], list[WaitingGroup]] = {}
    for group in look.now.waiting:
        where = group.supply.pool if group.supply else None
        if pool in (None, where):
            rows.setdefault((where, group.team), []).append(group)
    found = [_queue_row(where, team, groups, held, low) for (where, team), groups in rows.items()]
    return sorted(found, key=lambda r: (-r.queue.devices, -r.queue.jobs, r.pool or "", r.team or ""))


def _queue_row(
    pool: str | None,
    team: TeamName | None,
    groups: Sequence[WaitingGroup],
    held: Mapping[TeamName, SpentBudget],
    low: Collection[str],
) -> QueueRow:
    told: dict[str, tuple[str, int]] = {}
    for group in groups:  # the largest first: its words stand for all that differ from them in numbers alone
        said = _reason(group, held, low)
        shape = _NUMBERED.sub("#", said)
        words, jobs = told.get(shape, (said, 0))
        told[shape] = (words, jobs + group.jobs)
    often = sorted(told.values(), key=lambda item: (-item[1], item[0]))
    return QueueRow(
        pool,
        team,
        Queue(sum(g.jobs for g in groups), sum(g.devices for g in groups), min(g.oldest for g in groups)),
        tuple(often[:MOST_REASONS]),
        max(0, len(often) - MOST_REASONS),
    )


def _reason(group: WaitingGroup, held: Mapping[TeamName, SpentBudget], low: Collection[str]) -> str:
    """Return why a group waits: a spent budget, which engines do not know of, else the engine's reason."""
    budget = held.get(group.team) if group.team else None
    if budget is not None and not (budget.hold is Hold.LOW_ONLY and group.priority in low):
        return f"{SPENT_CODE}: {spent_text(budget)}"
    if group.code and group.reason:
        return f"{group.code}: {group.reason}"
    return group.reason or group.code or "not sent to its engine yet"


def money(look: FleetLook, spend: Spend, seen: frozenset[str] | None) -> Money:
    """Compare today's cost with a day's part of the budgets. With `seen` None, for all teams."""
    fleet = look.policy
    smallest = cent(fleet.currency)
    teams = sum((v for team, v in spend.by_team.items() if seen is None or team in seen), Fraction(0))
    total = teams + (spend.nobodys if seen is None else 0)
    a_day = _budget_a_day(fleet, look.known.now, seen)
    return Money(
        currency=fleet.currency,
        today=_rounded(total, smallest),
        nobodys=_rounded(spend.nobodys, smallest) if seen is None else None,
        a_day=None if a_day is None else _rounded(a_day, smallest),
        of_all=seen is None,
    )


def budgets(look: FleetLook, seen: frozenset[str] | None) -> Budgets:
    """Return the budgets that are spent, warned of or close to it, as far as the caller may see them."""
    now = int(look.known.now.timestamp())
    every = convert_budgets.budgets(look.policy, look.now.standings, (), now, seen).budgets
    near = [b for b in every if b.part is not None and b.part >= 100 * b.warn_at * _NEAR]
    near.sort(key=lambda b: (-(b.part or 0), b.team))
    return Budgets(tuple(near), len(every) - len(near))


def _budget_a_day(fleet: Fleet, now: datetime, seen: frozenset[str] | None) -> Fraction | None:
    """Sum a day's part of the outermost budgets, which contain inner ones. Returns None without budgets."""
    calendar = calendar_of(fleet)
    today: date = calendar.day_of(int(now.timestamp()))
    tree = TeamTree(fleet.teams)
    found: list[Fraction] = []
    for team in fleet.teams:
        mine = seen is None or team.name in seen
        if team.budget is None or not mine:
            continue
        above = [a for a in tree.ancestors(team) if seen is None or a.name in seen]
        if any(a.budget is not None for a in above):
            continue
        days = len(calendar.days(period(team.budget.every, today, calendar)))
        found.append(Fraction(team.budget.amount) / days)
    return sum(found, Fraction(0)) if found else None


def _rounded(amount: Fraction, smallest: Decimal) -> Decimal:
    exact = Decimal(amount.numerator) / Decimal(amount.denominator)
    return exact.quantize(smallest, ROUND_HALF_EVEN)
