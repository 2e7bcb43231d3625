"""The forecast on published traces, as `python -m bench forecast` measures it."""

from __future__ import annotations

from statistics import fmean

import pytest

from bench.forecast import Outcome, calendar_months, cases, fairway, seven_day_rate, trace_series
from bench.forecast_series import SHARED, PayerDays, demo_days
from tests.unit.cost.test_forecast import DECEMBER


def check(series: list[PayerDays], months: list[tuple[int, int]]) -> None:
    those = list(cases(series, months))
    ours, bare = ([Outcome(case, method(case)) for case in those] for method in (fairway, seven_day_rate))
    assert fmean(o.error for o in ours) < fmean(o.error for o in bare)
    assert 0.75 <= fmean(o.contained for o in ours) <= 0.85


@pytest.mark.parametrize("trace", ["philly", "helios"])
def test_the_range_contains_four_of_five_months_of_real_clusters(trace: str) -> None:
    if not (SHARED / trace).is_dir():
        pytest.skip(f"the published traces are not here (../shared/data/{trace}): nothing to forecast")
    series, months = trace_series()[trace]
    check(list(series), list(months))


@pytest.mark.nightly("simulates four months of the demo")
def test_the_range_contains_four_of_five_months_of_the_demo() -> None:
    series = demo_days(20, DECEMBER, 153)
    check(series, calendar_months(series[0].first, 153))
