"""Objectives are measured: each job counts once, when its verdict is certain, and counts only ever grow."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.slo import DAY, SLOT_SECONDS, DeliveredWithin, Slo, StartsWithin
from fairway.policy.slo import (
    HOUR,
    Counts,
    JobHistory,
    Pause,
    Run,
    count,
    demand_of,
    due,
    judge_start,
    measure,
    slot_of,
)
from tests.tier import examples

START = StartsWithin(HOUR)
STARTS = Slo("starts", START, Decimal("0.95"))
HUNDRED = DeliveredWithin(Decimal(100), DAY)
DELIVERED = Slo("gpu-hours", HUNDRED, Decimal("0.99"))


def job(at: float, *, started: float | None = None, ran: float | None = None, devices: int = 8) -> JobHistory:
    end = None if started is None or ran is None else started + ran
    runs = () if started is None else (Run(started, end, devices),)
    return JobHistory(at, devices, runs, end)


# --- starts within ----------------------------------------------------------------------------------------


def test_a_job_is_good_at_its_start_and_bad_when_its_time_is_over() -> None:
    assert judge_start(START, job(0, started=HOUR)) is not None
    for started, at, counts in ((10, 10, Counts(1)), (HOUR, HOUR, Counts(1)), (HOUR + 1, HOUR, Counts(0, 1))):
        verdict = judge_start(START, job(0, started=started))
        assert verdict is not None and (verdict.at, verdict.counts) == (at, counts)
    waits = judge_start(START, job(5))
    assert waits is not None and (waits.at, waits.counts) == (HOUR + 5, Counts(bad=1))


def test_what_was_refused_or_cancelled_in_time_is_no_event_but_giving_up_late_is() -> None:
    assert judge_start(START, replace(job(0), refused=True)) is None
    assert judge_start(START, replace(job(0), ended=HOUR)) is None
    late = judge_start(START, replace(job(0), ended=HOUR + 1))
    assert late is not None and late.counts == Counts(bad=1)


def test_only_the_first_start_counts() -> None:
    twice = replace(job(0, started=60, ran=30), runs=(Run(60, 90, 8), Run(9 * HOUR, None, 8)), ended=None)
    verdict = judge_start(START, twice)
    assert verdict is not None and (verdict.at, verdict.counts) == (60, Counts(1))


def test_time_on_hold_and_for_dependencies_is_no_waiting() -> None:
    held = replace(job(0), pauses=(Pause(600, 5 * HOUR), Pause(5 * HOUR + 600, 6 * HOUR)))
    assert due(held, HOUR) == 6 * HOUR + HOUR - 1200
    assert due(replace(held, pauses=(*held.pauses, Pause(6 * HOUR + 60))), HOUR) is None
    # A hold that began when its time was over changes nothing: it was counted then.
    assert due(replace(job(0), pauses=(Pause(HOUR), Pause(9 * HOUR, 10 * HOUR))), HOUR) == HOUR
    # Who holds a job before it is submitted to the engine, as dependencies do.
    assert due(replace(job(0), pauses=(Pause(-5, 100),)), HOUR) == HOUR + 100


_TIMES = st.integers(0, 12 * HOUR)


@st.composite
def histories(draw: st.DrawFn) -> JobHistory:
    """A job with starts, an end and pauses before its start."""
    at = draw(_TIMES)
    bounds = sorted(draw(st.lists(st.integers(at, at + 6 * HOUR), max_size=6)))
    pauses = tuple(Pause(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False))
    started = draw(st.none() | st.integers(max(bounds, default=at), at + 8 * HOUR))
    ran = draw(st.none() | st.integers(1, 30 * HOUR))
    one = job(at, started=started, ran=ran, devices=draw(st.integers(1, 64)))
    limit = draw(st.none() | st.integers(60, 30 * HOUR))
    ended = draw(st.none() | st.integers(at, at + 9 * HOUR)) if started is None else one.ended
    return replace(one, pauses=pauses, limit_seconds=limit, ended=ended)


def as_known(history: JobHistory, now: float) -> JobHistory | None:
    """The job as it was known at a time."""
    if history.submitted > now:
        return None
    runs = tuple(
        replace(run, end=run.end if run.end is not None and run.end <= now else None)
        for run in history.runs
        if run.start <= now
    )
    ended = history.ended if history.ended is not None and history.ended <= now else None
    pauses = tuple(
        replace(p, end=p.end if p.end is not None and p.end <= now else None)
        for p in history.pauses
        if p.start <= now
    )
    return replace(history, runs=runs, ended=ended, pauses=pauses)


@settings(max_examples=examples(400))
@given(st.lists(histories(), max_size=12), st.lists(st.integers(0, 60 * HOUR), max_size=5), st.booleans())
def test_counted_as_it_became_known_is_as_counted_at_the_end(
    jobs: list[JobHistory], marks: list[int], delivered: bool
) -> None:
    """The whole point of certain verdicts: rounds at any times add up to what one look at the end counts."""
    slo = DELIVERED if delivered else STARTS
    end = 80 * HOUR
    whole = count(slo, jobs, -1, end, {})
    added: dict[int, Counts] = {}
    bounds = [*sorted(set(marks)), end]
    after: float = -1
    for until in bounds:
        known = [seen for one in jobs if (seen := as_known(one, until)) is not None]
        for slot, counts in count(slo, known, after, until, added).items():
            added[slot] = added.get(slot, Counts()) + counts
        after = until
    assert added == whole


@given(histories())
def test_a_longer_bound_never_makes_a_good_job_bad(one: JobHistory) -> None:
    short, long = judge_start(START, one), judge_start(StartsWithin(2 * HOUR), one)
    if short is not None and short.counts.good:
        assert long == short
    if long is not None and long.counts.bad:
        assert short is not None and short.counts.bad and short.at <= long.at


# --- GPU-hours --------------------------------------------------------------------------------------------


def test_a_job_that_ended_demanded_what_it_held() -> None:
    demand = demand_of(HUNDRED, job(0, started=2 * HOUR, ran=3 * HOUR, devices=4))
    assert demand is not None and (demand.due, demand.wanted, demand.delivered) == (DAY, 12 * HOUR, 12 * HOUR)
    gave_up = demand_of(HUNDRED, replace(job(0), ended=HOUR))
    assert gave_up is not None and (gave_up.wanted, gave_up.delivered) == (0, 0)


def test_one_that_did_not_demanded_its_limit_but_no_more_than_fits() -> None:
    waits = demand_of(HUNDRED, replace(job(0, devices=2), limit_seconds=5 * HOUR))
    assert waits is not None and (waits.wanted, waits.delivered) == (10 * HOUR, 0)
    endless = demand_of(HUNDRED, job(0, started=6 * HOUR, devices=2))
    assert endless is not None and (endless.wanted, endless.delivered) == (48 * HOUR, 36 * HOUR)
    at_once = demand_of(HUNDRED, job(0, started=0, ran=70 * HOUR, devices=2))
    assert at_once is not None and at_once.wanted == at_once.delivered == 48 * HOUR


def test_slices_count_as_their_part_of_a_gpu() -> None:
    slices = replace(job(0, started=0, ran=HOUR, devices=7), gpu_part=1 / 7)
    demand = demand_of(HUNDRED, slices)
    assert demand is not None and demand.delivered == HOUR


def test_only_the_first_gpu_hours_of_any_period_count() -> None:
    waiting = [replace(job(at, devices=10), limit_seconds=6 * HOUR) for at in (0, HOUR, 2 * HOUR)]
    counts = count(DELIVERED, waiting, -1, 3 * DAY, {})
    assert counts == {DAY: Counts(0, 60 * HOUR), DAY + HOUR: Counts(0, 40 * HOUR)}
    next_day = replace(job(DAY + SLOT_SECONDS, devices=10), limit_seconds=HOUR)
    later = count(DELIVERED, [next_day], DAY + HOUR, 3 * DAY, counts)
    assert later == {2 * DAY + SLOT_SECONDS: Counts(0, 10 * HOUR)}


@settings(max_examples=examples(200))
@given(st.lists(histories(), max_size=20))
def test_no_period_counts_more_than_was_promised(jobs: list[JobHistory]) -> None:
    counts = count(DELIVERED, jobs, -1, 200 * HOUR, {})
    for slot in counts:
        inside = [c.total for at, c in counts.items() if slot - DAY < at <= slot]
        assert sum(inside) <= HUNDRED.gpu_seconds
    assert all(c.good >= 0 and c.bad >= 0 for c in counts.values())


# --- budgets, burn rates, outlook -------------------------------------------------------------------------

NOW = 100 * DAY


def slots(*counts: tuple[float, int, int]) -> dict[int, Counts]:
    """Counts by how long ago."""
    return {slot_of(NOW - ago): Counts(good, bad) for ago, good, bad in counts}


def test_budget_and_burn_rates_are_those_of_the_sre_workbook() -> None:
    status = measure(STARTS, slots((20 * DAY, 900, 10), (5 * HOUR, 60, 0), (600, 20, 10)), 0, NOW)
    assert status.compliance == 980 / 1000 and status.met
    assert status.budget_left is not None and round(status.budget_left, 9) == 0.6
    rates = [(burn.seconds, round(burn.rate, 6), round(burn.spent, 6)) for burn in status.burns]
    assert rates == [
        (HOUR // 2, 6.666667, 0.2),
        (HOUR, 6.666667, 0.2),
        (6 * HOUR, 2.222222, 0.2),
        (DAY, 2.222222, 0.2),
    ]


def test_without_an_event_nothing_is_claimed() -> None:
    status = measure(STARTS, {}, NOW - HOUR, NOW)
    assert (status.compliance, status.met, status.budget_left, status.outlook) == (None, None, None, None)
    assert [burn.rate for burn in status.burns] == [0, 0, 0, 0] and status.since == NOW - HOUR


def test_events_leave_the_window() -> None:
    status = measure(STARTS, slots((31 * DAY, 0, 99), (DAY / 2, 1, 0)), 0, NOW)
    assert status.counts == Counts(1, 0) and status.since == NOW - 30 * DAY


def test_the_outlook_is_what_the_last_day_leads_to() -> None:
    steady = measure(STARTS, slots((20 * DAY, 1900, 0), (HOUR, 90, 10)), 0, NOW)
    assert steady.outlook is not None and steady.outlook.compliance == 0.9
    # 10 bad a day of 100: the 5 % of all are reached when 1900 good ones are outweighed, before they leave.
    missed = steady.outlook.missed_at
    assert missed is not None and NOW < missed <= NOW + 20 * DAY
    fine = measure(STARTS, slots((20 * DAY, 100, 4), (HOUR, 99, 1)), 0, NOW)
    assert fine.outlook is not None and fine.outlook.missed_at is None
    spent = measure(STARTS, slots((HOUR, 9, 1)), 0, NOW)
    assert spent.outlook is not None and spent.outlook.missed_at == NOW
