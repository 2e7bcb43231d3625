"""The steps of the budget loops: one for the fleet computes spending, one per cluster writes holds.

Both are stateless across restarts: spending is summed from the ledger each time, and the holds of a cluster
are compared with those it has. So the next round completes whatever a crash left undone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Final, Protocol

import structlog

from fairway.control.metrics import BudgetMetrics
from fairway.cost.budget_text import money_text, period_text
from fairway.cost.budgets import burn_window, per_day, period, period_start, standing, with_holds
from fairway.cost.calendar import Calendar
from fairway.engines.port import Governs
from fairway.ledger import BudgetLevel, Lease, Ledger, StoredBudgetStatus
from fairway.ledger.records.jobs import DesiredState, JobFilter
from fairway.model.budget import Budget, Every, Hold, Running
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.job import JobId, JobState
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import Team, TeamTree
from fairway.policy.objects import Change, FoundPolicy, Translation
from fairway.policy.plan import complete
from fairway.policy.team_holds import hold_changes
from fairway.services.applied_fleet import Clock, LastApplied, has_budgets, holds_of
from fairway.services.charges import calendar_of
from fairway.services.engine_pool import LazyEngine
from fairway.services.fleets import Fleets
from fairway.services.plans import write_plan

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BY: Final = "budget"
"""The user shown in a job's timeline when a spent budget ended the job."""
BURN_SECONDS: Final = 60.0
"""How often the rate of spending is computed: it changes slowly and costs a second sum."""
PAGE: Final = 2000
_SMALLEST: Final = Decimal("0.000001")


class ReadsCharges(Protocol):
    """Provides the charges of teams; implemented by `Costs`."""

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        """Return the charges of each team itself in a period up to now, running work included."""
        ...


class CountBudgets:
    """Records the state of each budget, and cancels running jobs where a spent budget says so."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        costs: ReadsCharges,
        metrics: BudgetMetrics,
        *,
        clock: Clock = time.time,
    ) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._fleets = fleets
        self._costs = costs
        self._clock = clock
        self._burnt: dict[Every, tuple[float, Mapping[TeamName, Fraction]]] = {}

    async def __call__(self, lease: Lease) -> None:
        """Compute the sums from the ledger, then write briefly."""
        fleet = await self._fleet()
        if fleet is None:
            return
        known = {s.team: s for s in await self._ledger.budgets.standings()}
        if not has_budgets(fleet) and not known:
            return
        now = int(self._clock())
        standings = [s async for s in self._standings(fleet, now)]
        events = [e for s in standings for e in events_of(fleet, known.get(s.team), s)]
        async with self._ledger.writing(lease) as tx:
            await tx.budgets.keep(standings, events)
        calendar = calendar_of(fleet)
        days = {s.team: calendar.day_start(s.runs_out) for s in standings if s.runs_out is not None}
        self._metrics.counted(standings, days)
        for team, text in events:
            log.info("budget", team=team, said=text)
        await self._end_running(fleet, standings, now)

    async def close(self) -> None:
        """Clear the cached rates and metrics at the end of a tenure."""
        self._burnt.clear()
        self._metrics.forget()

    async def _fleet(self) -> Fleet | None:
        """The fleet whose budgets hold: the newest that was applied to a cluster.

        Before the first apply the newest revision; None: there is none.
        """
        applied = [a.revision for a in await self._ledger.applies.applied()]
        number = max(applied) if applied else await self._ledger.revisions.newest_id()
        return None if number is None else await self._fleets.read(number)

    async def _standings(self, fleet: Fleet, now: int) -> AsyncIterator[StoredBudgetStatus]:
        calendar, tree = calendar_of(fleet), TeamTree(fleet.teams)
        spent: dict[Every, Mapping[TeamName, Fraction]] = {}
        for team in fleet.teams:
            budget = team.budget
            if budget is None:
                continue
            every = budget.every
            if every not in spent:
                span = period(every, calendar.day_of(now), calendar)
                spent[every] = await self._costs.by_team(fleet, span, now)
            burnt = await self._per_day(fleet, every, calendar, now)
            yield stand(
                team, budget, _subtree(tree, team, spent[every]), _subtree(tree, team, burnt), now, calendar
            )

    async def _per_day(
        self, fleet: Fleet, every: Every, calendar: Calendar, now: int
    ) -> Mapping[TeamName, Fraction]:
        at, known = self._burnt.get(every, (0.0, {}))
        if now - at >= BURN_SECONDS:
            window = burn_window(every, now, calendar)
            sums = await self._costs.by_team(fleet, window, now)
            known = {team: per_day(amount, window, now) for team, amount in sums.items()}
            self._burnt[every] = (now, known)
        return known

    # what runs

    async def _end_running(self, fleet: Fleet, standings: Sequence[StoredBudgetStatus], now: int) -> None:
        tree = TeamTree(fleet.teams)
        for name, hold in holds_of(fleet, standings, now).items():
            budget = tree[name].budget
            if budget is None or budget.running is not Running.END:
                continue
            for team in tree.subtree(tree[name]):
                found = [number async for number in self._ending(fleet, team.name, hold)]
                changed = (
                    await self._ledger.jobs.set_desired_state(found, DesiredState.CANCEL, by=BY)
                    if found
                    else ()
                )
                if changed:
                    log.info("jobs ended for a spent budget", team=team.name, budget=name, jobs=len(changed))

    async def _ending(self, fleet: Fleet, team: TeamName, hold: Hold) -> AsyncIterator[JobId]:
        low = {p.name for p in fleet.priorities if p.preemptible} if hold is Hold.LOW_ONLY else set()
        which, before = JobFilter(team=team, states=(JobState.RUNNING,)), None
        while True:
            rows = await self._ledger.jobs.page(which, before=before, limit=PAGE)
            for row in rows:
                if row.desired_state is not DesiredState.CANCEL and row.priority not in low:
                    yield row.id
            if len(rows) < PAGE:
                return
            before = rows[-1].id


def _subtree(tree: TeamTree, team: Team, amounts: Mapping[TeamName, Fraction]) -> Fraction:
    return sum((amounts.get(t.name, Fraction(0)) for t in tree.subtree(team)), Fraction(0))


def stand(
    team: Team, budget: Budget, spent: Fraction, burnt: Fraction, now: int, calendar: Calendar
) -> StoredBudgetStatus:
    """Compute the state of a team's budget. Spending is rounded down: nobody is held because of rounding."""
    kept = _floor(spent)
    found = standing(budget, Fraction(kept), burnt, now, calendar)
    return StoredBudgetStatus(
        team=team.name,
        period=period_start(budget.every, calendar.day_of(now)),
        amount=budget.amount,
        spent=kept,
        per_day=_floor(burnt),
        runs_out=found.runs_out,
        level=BudgetLevel(found.level.value),
        hold=found.hold,
    )


def _floor(amount: Fraction) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(amount.numerator) / Decimal(amount.denominator)
        return exact.quantize(_SMALLEST, ROUND_FLOOR)


_SAID: Final = {
    None: "nothing else happens: at_limit is warn",
    Hold.LOW_ONLY: "held: only what is always preemptible starts",
    Hold.STOP: "held: nothing of it starts",
}


def events_of(
    fleet: Fleet, was: StoredBudgetStatus | None, now: StoredBudgetStatus
) -> Iterator[tuple[TeamName, str]]:
    """Generate the events of a budget: warned, spent, lifted."""
    same = was is not None and was.period == now.period
    before = was.level if was is not None and same else BudgetLevel.OK
    held = was.hold if was is not None else None
    budget = TeamTree(fleet.teams)[now.team].budget
    if budget is None or (before is now.level and held is now.hold):
        return
    spent = money_text(now.spent, like=now.amount)
    amount = money_text(now.amount, like=now.amount)
    of = f"{spent} of {amount} {fleet.currency} for {period_text(now.period, budget.every)}"
    if now.level is BudgetLevel.SPENT:
        yield now.team, f"spent {of}; {_SAID[now.hold]}"
    elif held is not None:
        why = "a new period began" if not same else "the budget is larger than what is spent"
        yield now.team, f"lifted: {why}; spent {of}"
    elif now.level is BudgetLevel.WARNED:
        yield now.team, f"spent {of}, which is the part that is told"


@dataclass(frozen=True, slots=True)
class _Made:
    """The holds that were last written to a cluster, and the apply they are based on."""

    apply: int
    holds: Mapping[TeamName, Hold]


class HoldTeams:
    """Makes one cluster hold exactly the teams whose budgets are spent."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Governs],
        ledger: Ledger,
        applied: LastApplied,
        writing: asyncio.Lock,
    ) -> None:
        """`writing` is the lock for writing policy to the cluster."""
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._writing = writing
        self._made: _Made | None = None

    async def __call__(self, lease: Lease) -> None:
        """Write the holds if they changed since the last round, or in the first; else run two small queries.

        Skip the round while an apply is open: the apply writes the holds with everything else.
        """
        if self._writing.locked() or await self._ledger.applies.next_work(self._cluster) is not None:
            return
        shall = await self._applied.get()
        if shall is None or not has_budgets(shall.fleet):
            self._made = None
            return
        wanted = _Made(shall.apply, {t.name: t.hold for t in shall.fleet.teams if t.hold is not None})
        if wanted == self._made:
            return
        async with self._writing:
            changed = await write_holds(self._engine.get(), shall.fleet, self._cluster)
        self._made = wanted
        if changed:
            log.info(
                "holds of spent budgets written",
                cluster=self._cluster,
                teams=len(wanted.holds),
                objects=len(changed),
                first=str(changed[0].key),
            )

    async def close(self) -> None:
        """Close the engine; the next round builds a new one and compares again."""
        self._made = None
        await self._engine.close()


async def write_holds(engine: Governs, fleet: Fleet, cluster: ClusterName) -> tuple[Change, ...]:
    """Make a cluster hold exactly the teams that `fleet` holds, nothing else. Returns the changes made."""
    found = await engine.find_policy()
    wanted, changes = await asyncio.to_thread(_compare, engine, fleet, found)
    if not changes:
        return ()
    plan = complete(cluster, fleet.cluster(cluster).engine, wanted, found, changes, {})
    done = await write_plan(engine, plan, force=True, progress=lambda change: None)
    if done.refusal is not None:
        raise done.refusal
    return done.done


def _compare(engine: Governs, fleet: Fleet, found: FoundPolicy) -> tuple[Translation, tuple[Change, ...]]:
    wanted = engine.translate(fleet, found)
    others = [engine.translate(other, found) for other in _otherwise(fleet)]
    return wanted, hold_changes(wanted, others, found)


def _otherwise(fleet: Fleet) -> Iterator[Fleet]:
    """Generate the fleet with no team held, and with all teams held in each way."""
    yield with_holds(fleet, {})
    for hold in Hold:
        yield with_holds(fleet, {team.name: hold for team in fleet.teams})
