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
from fairway.cost.budget_text import EFFECTS, money_text, period_text, state_text
from fairway.cost.budgets import budget_outlook, budget_status, period, period_start, with_holds
from fairway.cost.calendar import Calendar, calendar_of
from fairway.cost.forecast import DailySpending, SpendingModel
from fairway.engines.port import Governs
from fairway.ledger import Lease, Ledger, StoredBudgetStatus
from fairway.ledger.records.jobs import DesiredState, JobFilter
from fairway.model.budget import Budget, BudgetLevel, Every, Hold, Running
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.job import JobId, JobState
from fairway.model.names import ClusterName, TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.team import TeamTree
from fairway.policy.objects import Change, FoundPolicy, Translation
from fairway.policy.plan import build_plan
from fairway.policy.team_holds import hold_changes
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import (
    Clock,
    Fleets,
    LastApplied,
    budget_named,
    budget_period,
    has_budgets,
    holds_of,
    with_raised_budgets,
)
from fairway.services.plans import write_plan

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BY: Final = "budget"
"""The user shown in a job's timeline when a spent budget ended the job."""
PAGE: Final = 2000
_FORECAST_STEP: Final = Decimal("0.01")
_AMOUNT_STEP: Final = Decimal("0.000001")


class ReadsCharges(Protocol):
    """Provides what teams spent; implemented by `TeamSpending`."""

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Fraction]:
        """Return what each budget that is no team's own counts in a period up to now."""
        ...

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        """Return what each team, with those then inside it, spent in a period up to now."""
        ...


class ModelsSpending(Protocol):
    """Provides models of what teams spend; implemented by `SpendingHistory`."""

    async def team_models(self, fleet: Fleet, now: int) -> Mapping[TeamName, SpendingModel]:
        """Return a model of each team that spent anything, with the teams inside it."""
        ...

    async def budget_models(self, fleet: Fleet, now: int) -> Mapping[str, SpendingModel]:
        """Return a model of what each budget counts that is no team's own."""
        ...

    def clear(self) -> None:
        """Forget what was read."""
        ...


class TrackBudgets:
    """Records the state of each budget, and cancels running jobs where a spent budget says so."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        costs: ReadsCharges,
        spending: ModelsSpending,
        metrics: BudgetMetrics,
        *,
        clock: Clock = time.time,
    ) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._fleets = fleets
        self._costs = costs
        self._spending = spending
        self._clock = clock

    async def __call__(self, lease: Lease) -> None:
        """Compute the sums from the ledger, then write briefly."""
        fleet = await self._fleet()
        if fleet is None:
            return
        previous = {s.team: s for s in await self._ledger.budgets.statuses()}
        if not has_budgets(fleet) and not previous:
            return
        now = int(self._clock())
        raised = await with_raised_budgets(fleet, self._ledger, now)
        statuses = [s async for s in self._statuses(fleet, raised, now)]
        events = [e for s in statuses for e in events_of(fleet, previous.get(s.team), s, now)]
        async with self._ledger.writing(lease) as tx:
            await tx.budgets.write(statuses, events)
            await tx.notices.add(
                [budget_notice(fleet, s, text) for s in statuses for t, text in events if t == s.team]
            )
        calendar = calendar_of(fleet)
        days = {s.team: calendar.day_start(s.runs_out) for s in statuses if s.runs_out is not None}
        self._metrics.counted(statuses, days)
        for team, text in events:
            log.info("budget", team=team, said=text)
        await self._cancel_running(raised, statuses, now)

    async def close(self) -> None:
        """Clear the cached spending and the metrics at the end of a tenure."""
        self._spending.clear()
        self._metrics.forget()

    async def _fleet(self) -> Fleet | None:
        """Read the newest fleet that was applied to a cluster, or before the first apply the newest one.

        Returns None if there is none.
        """
        applied = [a.revision for a in await self._ledger.applies.applied()]
        number = max(applied) if applied else await self._ledger.revisions.newest_id()
        return None if number is None else await self._fleets.read(number)

    async def _statuses(self, fleet: Fleet, raised: Fleet, now: int) -> AsyncIterator[StoredBudgetStatus]:
        """Compute the state of each budget. `raised` is the fleet with the amounts in force.

        Spending is read of `fleet`: it is one object as long as its revision is, by which models are cached.
        """
        calendar = calendar_of(fleet)
        spent: dict[Every, Mapping[TeamName, Fraction]] = {}
        models = await self._spending.team_models(fleet, now) if has_budgets(fleet) else {}
        for team in raised.teams:
            budget = team.budget
            if budget is None:
                continue
            every = budget.every
            if every not in spent:
                span = period(every, calendar.day_of(now), calendar)
                spent[every] = await self._costs.by_team(fleet, span, now)
            model = models.get(team.name)
            amount = spent[every].get(team.name, Fraction(0))
            yield stored_status(team.name, budget, amount, model, now, calendar)
        named_models = await self._spending.budget_models(fleet, now) if fleet.budgets else {}
        for every in Every:
            counting = [named for named in fleet.budgets if named.budget.every is every]
            if not counting:
                continue
            span = period(every, calendar.day_of(now), calendar)
            amounts = await self._costs.by_budget(fleet, counting, span, now)
            for named in counting:
                name, model = TeamName(named.name), named_models.get(named.name)
                yield stored_status(name, named.budget, amounts[named.name], model, now, calendar)

    async def _cancel_running(self, fleet: Fleet, statuses: Sequence[StoredBudgetStatus], now: int) -> None:
        tree = TeamTree(fleet.teams)
        for name, hold in holds_of(fleet, statuses, now).items():
            budget = tree[name].budget
            if budget is None or budget.running is not Running.END:
                continue
            for team in tree.subtree(tree[name]):
                found = [job async for job in self._jobs_to_cancel(fleet, team.name, hold)]
                if not found:
                    continue
                changed = await self._ledger.jobs.set_desired_state(found, DesiredState.CANCEL, by=BY)
                if changed:
                    log.info("jobs ended for a spent budget", team=team.name, budget=name, jobs=len(changed))

    async def _jobs_to_cancel(self, fleet: Fleet, team: TeamName, hold: Hold) -> AsyncIterator[JobId]:
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


def stored_status(
    name: TeamName, budget: Budget, spent: Fraction, model: SpendingModel | None, now: int, calendar: Calendar
) -> StoredBudgetStatus:
    """Compute the state of a budget; without a model it is expected to spend nothing.

    Spending is rounded down: nobody is held because of rounding.
    """
    today = calendar.day_of(now)
    model = model or SpendingModel(DailySpending(today, ()))
    rounded_spent = _floor(spent)
    status = budget_status(budget, Fraction(rounded_spent), model, now, calendar)
    forecast = status.forecast
    return StoredBudgetStatus(
        team=name,
        period=period_start(budget.every, today),
        amount=budget.amount,
        spent=rounded_spent,
        per_day=_estimate(model.per_day),
        runs_out=status.runs_out,
        level=status.level,
        hold=status.hold,
        expected=None if forecast is None else _estimate(forecast.expected),
        low=None if forecast is None else _estimate(forecast.low),
        high=None if forecast is None else _estimate(forecast.high),
    )


def _estimate(amount: float) -> Decimal:
    return Decimal(amount).quantize(_FORECAST_STEP)


def _floor(amount: Fraction) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(amount.numerator) / Decimal(amount.denominator)
        return exact.quantize(_AMOUNT_STEP, ROUND_FLOOR)


def events_of(
    fleet: Fleet, previous: StoredBudgetStatus | None, now: StoredBudgetStatus, at: int
) -> Iterator[tuple[TeamName, str]]:
    """Generate the events of a budget: warned, spent, lifted."""
    same = previous is not None and previous.period == now.period
    before = previous.level if previous is not None and same else BudgetLevel.OK
    held = previous.hold if previous is not None else None
    budget = budget_named(fleet, now.team)
    if budget is None or (before is now.level and held is now.hold):
        return
    spent = money_text(now.spent, like=now.amount)
    amount = money_text(now.amount, like=now.amount)
    text = f"{period_text(now.period, budget.every)}: {spent} of {amount} {fleet.currency} spent"
    if now.level is BudgetLevel.SPENT:
        yield now.team, f"{text}; {'' if now.hold is None else 'on hold: '}{EFFECTS[now.hold]}"
    elif held is not None:
        why = "a new period began" if not same else "the budget was raised"
        yield now.team, f"{text}; hold lifted: {why}"
    elif now.level is BudgetLevel.WARNED:
        outlook = budget_outlook(now.level, now.runs_out)
        _, until = budget_period(fleet, budget, at)
        state = state_text(outlook, now.hold, now.runs_out, until, budget.every, budget.warn_at)
        yield now.team, f"{text}, passing the {(100 * budget.warn_at).normalize():f} % warning; {state}"


_SUBJECTS: Final = {
    BudgetLevel.OK: "the hold on {} is lifted",
    BudgetLevel.WARNED: "{} approaches its budget",
    BudgetLevel.SPENT: "the budget of {} is spent",
}


def budget_notice(fleet: Fleet, now: StoredBudgetStatus, event: str) -> Notice:
    """Build the notice of a budget's event: to its team, and to the operators if jobs are on hold.

    That of a budget which is no team's own goes to the operators, and to the team that it counts.

    The key is that of the state it reached: a sum that is corrected up and down is reported once.
    """
    key = f"budget/{now.team}/{now.period}/{now.amount}/{now.level}/{now.hold or 'none'}"
    text = f"{now.team}: {event}\n  fairway get budgets"
    subject = _SUBJECTS[now.level].format(now.team)
    named = next((n for n in fleet.budgets if n.name == now.team), None)
    team, operators = (now.team, now.hold is not None) if named is None else (named.team, True)
    return Notice(NoticeKind.BUDGET, key, subject, text, team, operators=operators)


@dataclass(frozen=True, slots=True)
class _WrittenHolds:
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
        self._written: _WrittenHolds | None = None

    async def __call__(self, lease: Lease) -> None:
        """Write the holds if they changed since the last round, or in the first; else run two small queries.

        Skip the round while an apply is open: the apply writes the holds with everything else.
        """
        if self._writing.locked() or await self._ledger.applies.next_work(self._cluster) is not None:
            return
        applied = await self._applied.get()
        if applied is None or not has_budgets(applied.fleet):
            self._written = None
            return
        holds = {t.name: t.hold for t in applied.fleet.teams if t.hold is not None}
        wanted = _WrittenHolds(applied.apply, holds)
        if wanted == self._written:
            return
        async with self._writing:
            changed = await write_holds(self._engine.get(), applied.fleet, self._cluster)
        self._written = wanted
        if changed:
            log.info(
                "holds of spent budgets written",
                cluster=self._cluster,
                teams=len(holds),
                objects=len(changed),
                first=str(changed[0].key),
            )

    async def close(self) -> None:
        """Close the engine; the next round builds a new one and compares again."""
        self._written = None
        await self._engine.close()


async def write_holds(engine: Governs, fleet: Fleet, cluster: ClusterName) -> tuple[Change, ...]:
    """Make a cluster hold exactly the teams that `fleet` holds, nothing else. Returns the changes made."""
    found = await engine.find_policy()
    wanted, changes = await asyncio.to_thread(_compare, engine, fleet, found)
    if not changes:
        return ()
    plan = build_plan(cluster, fleet.cluster(cluster).engine, wanted, found, changes, {})
    result = await write_plan(engine, plan, force=True)
    if result.refusal is not None:
        raise result.refusal
    return result.done


def _compare(engine: Governs, fleet: Fleet, found: FoundPolicy) -> tuple[Translation, tuple[Change, ...]]:
    wanted = engine.translate(fleet, found)
    others = [engine.translate(other, found) for other in _alternatives(fleet)]
    return wanted, hold_changes(wanted, others, found)


def _alternatives(fleet: Fleet) -> Iterator[Fleet]:
    """Generate the fleet with no team held, and with all teams held in each way."""
    yield with_holds(fleet, {})
    for hold in Hold:
        yield with_holds(fleet, {team.name: hold for team in fleet.teams})
