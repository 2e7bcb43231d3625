"""What the page of the fleet shows, made from one look at it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Final

from fairway.api import budget_known, budget_wire, known, wire
from fairway.control.costs import calendar_of
from fairway.cost.budget_words import SPENT_CODE, SpentBudget, spent_text
from fairway.cost.budgets import period
from fairway.ledger.pool_answers import WaitingGroup
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.model.team import Supply, TeamTree
from fairway.web.fleet_look import FleetLook, Spend
from fairway.web.supply_known import WAITS, SupplyBar, by_team, supply_bar

MOST_QUEUES: Final = 8
MOST_REASONS: Final = 2
_NUMBERED: Final = re.compile(r"\S*\d\S*(,? \S*\d\S*)*")
"""What two reasons of one kind differ in: counts, and names of nodes."""
_NEAR: Final = Decimal("0.9")
"""Of what is warned at: from there on a budget is worth a line."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits together."""

    jobs: int = 0
    devices: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """What a team waits for on a pool, and why."""

    pool: str | None
    team: TeamName | None
    queue: Queue
    reasons: tuple[tuple[str, int], ...]
    """The most frequent, with how many jobs each is told of."""
    other_reasons: int


@dataclass(frozen=True, slots=True)
class PoolCard:
    """A pool in a few lines."""

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
    """The fleet in a few numbers: whole GPUs, then slices."""

    gpus: Mapping[str, int]
    slices: Mapping[str, int]
    running: int
    waiting: Queue
    held_back: int


@dataclass(frozen=True, slots=True)
class Money:
    """What today cost, as far as the caller may see it."""

    currency: str
    today: Decimal
    nobodys: Decimal | None
    """Part of `today` that no team carries; None: not theirs to see."""
    a_day: Decimal | None
    """What budgets allow a day; None: there are none."""
    of_all: bool


@dataclass(frozen=True, slots=True)
class Budgets:
    """Those that need a look, and how many do not."""

    near: tuple[budget_wire.Budget, ...]
    others: int


def cards(look: FleetLook) -> list[PoolCard]:
    """Every pool of the fleet, in the order of the file."""
    told = {p.name: p for p in known.pools(look.known)}
    held = by_team(look.now.counts, JobState.RUNNING)
    return [pool_card(look, pool, told[pool.name], held) for pool in look.fleet.pools]


def pool_card(
    look: FleetLook, pool: Pool, told: wire.Pool, held: Mapping[Supply, Mapping[TeamName | None, int]]
) -> PoolCard:
    """One pool. Of what was never observed there are no bars."""
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
    """Exact counts; the oldest among the groups that were read."""
    counts = [c for c in look.now.counts if c.state in WAITS and pool in (None, c.pool)]
    return Queue(
        sum(c.jobs for c in counts),
        sum(c.devices for c in counts),
        min((g.oldest for g in groups), default=None),
    )


def figures(look: FleetLook, of: Sequence[PoolCard]) -> Figures:
    """The numbers at the top."""
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
    """What waits by pool and team, the most GPUs first; of one pool, or of all."""
    held = budget_known.spent_budgets(look.policy, look.now.standings, int(look.known.now.timestamp()))
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
    """The engine's words, unless a spent budget says more than they can know."""
    budget = held.get(group.team) if group.team else None
    if budget is not None and not (budget.hold is Hold.LOW_ONLY and group.priority in low):
        return f"{SPENT_CODE}: {spent_text(budget)}"
    if group.code and group.reason:
        return f"{group.code}: {group.reason}"
    return group.reason or group.code or "not sent to its engine yet"


def money(look: FleetLook, spend: Spend, seen: frozenset[str] | None) -> Money:
    """Today's cost against a day's part of the budgets; `seen` None: all teams."""
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
    """Budgets that are spent, warned of or soon will be; those that the caller may see."""
    now = int(look.known.now.timestamp())
    every = budget_known.budgets(look.policy, look.now.standings, (), now, seen).budgets
    near = [b for b in every if b.part is not None and b.part >= 100 * b.warn_at * _NEAR]
    near.sort(key=lambda b: (-(b.part or 0), b.team))
    return Budgets(tuple(near), len(every) - len(near))


def _budget_a_day(fleet: Fleet, now: datetime, seen: frozenset[str] | None) -> Fraction | None:
    """Of the outermost budgets: one inside another is part of it."""
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
