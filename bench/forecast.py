"""The month-end forecast and its range, against the rate of the last seven days; and alerts on unusual days.

Each case is a payer, a month and a number of days of it that are over: everything later is hidden from the
forecast. Payers below 1 % of the total are left out, as in a table that a person would read.
"""

from __future__ import annotations

import math
import sys
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import fmean, stdev

from bench.figure import Figure
from bench.forecast_series import SHARED, TOTAL, PayerDays, demo_days, helios_days, philly_days
from fairway.cost.anomalies import MIN_PART, find_anomaly
from fairway.cost.forecast import HISTORY_DAYS, DailySpending, Forecast, SpendingModel

AFTER_DAYS = (8, 15, 22)
LEAST_PART = 0.01
COVERAGE = 80
DEMO_SEED = 20
DEMO_UNTIL = date(2026, 11, 1)
DEMO_DAYS = 123
"""July, the history, then August, September and October."""
PHILLY_STEP = 3
"""Days between the starts of Philly's 30-day months: the calendar has only two whole ones."""
PLANTED = 3.0
WEEK = 7


@dataclass(frozen=True, slots=True)
class Case:
    """A month of a payer, `known` days of which are over."""

    payer: str
    start: date
    known: int
    past: Sequence[float]
    month: Sequence[float]

    @property
    def spending(self) -> DailySpending:
        return DailySpending(
            self.start - timedelta(days=len(self.past)), [*self.past, *self.month[: self.known]]
        )

    @property
    def actual(self) -> float:
        return math.fsum(self.month)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A forecast and what came of it."""

    case: Case
    forecast: Forecast

    @property
    def error(self) -> float:
        return 100 * abs(self.forecast.expected - self.case.actual) / self.case.actual

    @property
    def contained(self) -> bool:
        return self.forecast.low <= self.case.actual <= self.forecast.high

    @property
    def width(self) -> float:
        return 100 * (self.forecast.high - self.forecast.low) / self.case.actual


Method = Callable[[Case], Forecast]


def fairway(case: Case) -> Forecast:
    spent = math.fsum(case.month[: case.known])
    return SpendingModel(case.spending).forecast(spent, case.start + timedelta(days=len(case.month)))


def seven_day_rate(case: Case) -> Forecast:
    """Continue as in the last seven days of this month, the range as if days were independent."""
    week = case.month[max(0, case.known - WEEK) : case.known]
    left = len(case.month) - case.known
    spent = math.fsum(case.month[: case.known])
    rest, doubt = fmean(week) * left, 1.28 * stdev(week) * math.sqrt(left)
    return Forecast(spent + rest, spent + max(0.0, rest - doubt), spent + rest + doubt)


def cases(series: Sequence[PayerDays], starts: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Generate the cases of all payers: months given as first day and length."""
    totals = next(one for one in series if one.payer == TOTAL).amounts
    for one in series:
        for start, length in starts:
            month = one.amounts[start : start + length]
            if math.fsum(month) < LEAST_PART * math.fsum(totals[start : start + length]):
                continue
            past = one.amounts[max(0, start - HISTORY_DAYS) : start]
            for known in AFTER_DAYS:
                yield Case(one.payer, one.first + timedelta(days=start), known, past, month)


def calendar_months(first: date, days: int) -> list[tuple[int, int]]:
    """Return the whole months after the first one."""
    found = []
    for number in range(days):
        day = first + timedelta(days=number)
        length = monthrange(day.year, day.month)[1]
        if number and day.day == 1 and number + length <= days:
            found.append((number, length))
    return found


def figures(source: str, those: Sequence[Case]) -> Iterator[Figure]:
    """Generate the figures of one source: the error, and how far the coverage is from 80 %."""
    ours, bare = ([Outcome(case, method(case)) for case in those] for method in (fairway, seven_day_rate))
    yield Figure(
        "forecast error",
        source,
        fmean(one.error for one in ours),
        fmean(one.error for one in bare),
        "%",
        1.0,
        "how steady the payers are: nobody can know which jobs will be submitted",
        {
            f"{who}, {named} after day {known}": _errors([o for o in outcomes if _is(o, total, known)])
            for who, total in (("payers", False), ("all together", True))
            for known in AFTER_DAYS
            for named, outcomes in (("fairway", ours), ("seven days", bare))
        },
    )
    yield Figure(
        "forecast range",
        source,
        abs(_coverage(ours) - COVERAGE),
        abs(_coverage(bare) - COVERAGE),
        "points from 80 %",
        1.0,
        "weeks that are unlike all of a payer's past; few payers and months, which overlap in philly",
        {
            "cases": len(ours),
            "contained": f"{_coverage(ours):.1f} %, seven days {_coverage(bare):.1f} %",
            "mean width of the month": f"{fmean(o.width for o in ours):.0f} %,"
            f" seven days {fmean(o.width for o in bare):.0f} %",
            **{
                f"contained after day {n}": f"{_coverage([o for o in ours if o.case.known == n]):.0f} %"
                for n in AFTER_DAYS
            },
            "below the range": f"{100 * fmean(o.case.actual < o.forecast.low for o in ours):.0f} %",
        },
        most=5.0,
    )


def _is(outcome: Outcome, total: bool, known: int) -> bool:
    return (outcome.case.payer == TOTAL) is total and outcome.case.known == known


def _errors(outcomes: Sequence[Outcome]) -> str:
    errors = [o.error for o in outcomes]
    return f"mean {fmean(errors):.1f} %, worst {max(errors):.0f} % of {len(errors)}"


def _coverage(outcomes: Sequence[Outcome]) -> float:
    return 100 * fmean(o.contained for o in outcomes)


def alerts(source: str, fleets: Sequence[Sequence[PayerDays]]) -> Figure:
    """Count alerts on the series as they are, and the alerts on days that are planted three times as high.

    The bare rule alerts on a day that cost twice as much as the mean of the seven before.
    """
    days = ours = bare = planted = found = bare_found = 0
    for series in fleets:
        least = MIN_PART * fmean(next(one for one in series if one.payer == TOTAL).amounts)
        for one in series:
            for number in range(4 * WEEK, len(one.amounts)):
                upto = one.amounts[: number + 1]
                days += 1
                ours += find_anomaly(DailySpending(one.first, upto), least) is not None
                bare += _doubled(upto)
                if (PLANTED - 1) * upto[-1] >= 2 * least:
                    higher = (*upto[:-1], PLANTED * upto[-1])
                    planted += 1
                    found += find_anomaly(DailySpending(one.first, higher), least) is not None
                    bare_found += _doubled(higher)
    return Figure(
        "anomaly alerts",
        source,
        30 * ours / days,
        30 * bare / days,
        "a payer and month",
        1.0,
        "the traces have real bursts: an alert about one of them is counted as false",
        {
            "found of planted": f"{found} of {planted} = {100 * found / planted:.0f} %,"
            f" bare {100 * bare_found / planted:.0f} %",
            "payer-days": days,
        },
    )


def _doubled(days: Sequence[float]) -> bool:
    return days[-1] > 2 * fmean(days[-WEEK - 1 : -1])


def demo_figures(seeds: Sequence[int], name: str) -> Iterator[Figure]:
    """Generate the figures of the demo's history, simulated with each of the seeds."""
    fleets = [demo_days(seed, DEMO_UNTIL, DEMO_DAYS) for seed in seeds]
    months = calendar_months(fleets[0][0].first, DEMO_DAYS)
    yield from figures(name, [case for series in fleets for case in cases(series, months)])
    yield alerts(name, fleets)


def trace_series() -> Mapping[str, tuple[Sequence[PayerDays], Sequence[tuple[int, int]]]]:
    """Read the traces that are here, with the months to forecast in each."""
    if not (SHARED / "philly").is_dir():
        print(f"no published traces in {SHARED}: only the demo's history is forecast", file=sys.stderr)
        return {}
    philly, helios = philly_days(), helios_days()
    rolling = [(start, 30) for start in range(10, len(philly[0].amounts) - 29, PHILLY_STEP)]
    return {"philly": (philly, rolling), "helios": (helios, [(0, 31)])}


async def run(size: str) -> list[Figure]:
    """small: the demo's own seed and the traces. A number: so many more seeds, which were not fitted to."""
    found = list(demo_figures([DEMO_SEED], "demo"))
    if size.isdecimal():
        more = range(DEMO_SEED + 4, DEMO_SEED + 4 + int(size))
        found += demo_figures(more, f"demo, {size} other seeds")
    for name, (series, starts) in trace_series().items():
        found += figures(name, list(cases(series, starts)))
        if len(series[0].amounts) > 8 * WEEK:
            found.append(alerts(name, [series]))
    return found
