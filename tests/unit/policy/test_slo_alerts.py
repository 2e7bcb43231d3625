"""An objective alerts while its error budget goes, says so in words, and shows its budget over time."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.model.slo import DAY, Slo, StartsWithin
from fairway.policy.slo import HOUR, Counts, Slots, measure, slot_of
from fairway.policy.slo_alerts import SloAlert, alert_of, alert_text, budget_text, outlook_text, percent
from fairway.policy.slo_history import budget_points

SLO = Slo("starts", StartsWithin(HOUR), Decimal("0.99"))
NOW = 100 * DAY


def slots(*counts: tuple[float, int, int]) -> Slots:
    """Counts by how long ago."""
    return {slot_of(NOW - ago): Counts(good, bad) for ago, good, bad in counts}


USUAL = tuple(((n + 0.5) * DAY, 10_000, 0) for n in range(1, 30))
"""290,000 good events: the error budget is about 2,900."""


@pytest.mark.parametrize(
    ("recent", "alert"),
    [
        (((600, 50, 60),), SloAlert.FAST_BURN),
        (((600, 50, 50),), SloAlert.NONE),  # less than 2% of the budget
        (((600, 9000, 60),), SloAlert.NONE),  # fewer than 14.4% are late
        (((3000, 50, 60), (60, 50, 0)), SloAlert.NONE),  # it has stopped
        (((4 * HOUR, 300, 140), (600, 50, 10)), SloAlert.BURN),
        (((4 * HOUR, 300, 140), (600, 50, 0)), SloAlert.NONE),
        (((20 * HOUR, 3000, 280), (3 * HOUR, 100, 20)), SloAlert.SLOW_BURN),
        (((2 * DAY, 0, 3000),), SloAlert.SPENT),
        (((2 * DAY, 0, 2000),), SloAlert.NONE),
    ],
)
def test_an_alert_needs_a_part_of_the_budget_and_a_rate_that_lasts(
    recent: tuple[tuple[float, int, int], ...], alert: SloAlert
) -> None:
    assert alert_of(measure(SLO, slots(*USUAL, *recent), 0, NOW)) is alert


def test_the_rates_follow_the_window_of_the_objective() -> None:
    """2% of a week's budget in an hour is 3.4 times the rate that spends it exactly, not 14.4 times."""
    week = replace(SLO, window_seconds=7 * DAY)
    counts = slots(*USUAL[:5], (600, 1000, 50))
    assert alert_of(measure(week, counts, 0, NOW)) is SloAlert.FAST_BURN
    assert alert_of(measure(SLO, counts, 0, NOW)) is SloAlert.NONE


def test_nothing_counted_is_no_alert() -> None:
    status = measure(SLO, {}, NOW - HOUR, NOW)
    assert alert_of(status) is SloAlert.NONE and alert_text(SloAlert.NONE, status) is None
    assert outlook_text(SloAlert.NONE, status) == "nothing counted yet"
    assert budget_text(status) == "Nothing was counted yet."


def test_it_says_what_it_means() -> None:
    burning = measure(SLO, slots(*USUAL, (600, 50, 60)), 0, NOW)
    assert alert_text(SloAlert.FAST_BURN, burning) == "burning 55x over 1h"
    spent = measure(SLO, slots(*USUAL, (2 * DAY, 0, 4200)), 0, NOW)
    assert outlook_text(alert_of(spent), spent) == "error budget used up"
    assert budget_text(spent) == "98.6% were good, 1.4 times as much as the error budget was spent."
    fine = measure(SLO, slots(*USUAL, (600, 100, 0)), 0, NOW)
    assert outlook_text(alert_of(fine), fine) == "on target"
    assert budget_text(fine) == "100% were good, 100% of the error budget is left."
    sinking = measure(SLO, slots(*USUAL, (600, 9700, 250)), 0, NOW)
    assert outlook_text(SloAlert.NONE, sinking) == "missed in 11 d if the last day goes on"


def test_a_part_is_never_rounded_up_to_all() -> None:
    assert [percent(part) for part in (1, 0.99996, 0.9999999999, 0.942, 0)] == [
        "100%",
        "99.996%",
        "99.99999%",
        "94.2%",
        "0.0%",
    ]


def test_the_budget_over_time_is_that_measured_at_each_time() -> None:
    counts = slots(*((n * DAY / 3, 100, n % 5) for n in range(150)))
    first = NOW - 20 * DAY
    points = list(budget_points(SLO, counts, first, NOW, 41))
    assert points[0].at == first and points[-1].at == NOW
    for point in points:
        known = {slot: c for slot, c in counts.items() if slot <= point.at}
        assert point.budget_left == pytest.approx(measure(SLO, known, 0, point.at).budget_left)
    between = [c for slot, c in counts.items() if first < slot <= NOW]
    assert sum(p.counts.bad for p in points) == sum(c.bad for c in between)
    assert [p.budget_left for p in budget_points(SLO, {}, first, NOW, 2)] == [None, None]
