"""Calibrated ranges have the start as often as they say, and few or good forecasts change nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.job import JobId
from fairway.simulate.calibration import FEWEST, SAMPLES, Calibration, PastForecast, calibrate
from fairway.simulate.starts import StartForecast
from tests.tier import examples

NOW = 1_000_000.0
WEEK = 7 * 86_400.0


def forecast(earliest: float | None, expected: float | None, latest: float | None) -> StartForecast:
    """Seconds after NOW."""
    first, middle, last = (None if wait is None else NOW + wait for wait in (earliest, expected, latest))
    return StartForecast(JobId(1), first, middle, last, 1.0)


def came(
    count: int, slower: float, spread: float, seed: int = 1, width: float = 0.2, apart: float = WEEK
) -> list[PastForecast]:
    """Forecasts of waits of an hour or so by a model that is too fast or slow, and too sure of its range."""
    dice = Random(seed)
    found = []
    for number in range(count):
        wait = dice.lognormvariate(8.0, 0.8)
        at = apart * number
        truth = wait * slower * dice.lognormvariate(0.0, spread)
        found.append(PastForecast(at, at + wait * (1 - width), at + wait * (1 + width), at + truth))
    return found


def misses(calibration: Calibration, later: list[PastForecast]) -> tuple[float, float]:
    """Return the parts of the starts that are before their range, and after it."""
    early = late = 0
    for one in later:
        middle = (one.earliest + one.latest) / 2
        found = calibration.apply(StartForecast(JobId(1), one.earliest, middle, one.latest, 1.0), one.at)
        assert found.earliest is not None and found.expected is not None and found.latest is not None
        assert one.at <= found.earliest <= found.expected <= found.latest
        early += one.started < found.earliest
        late += one.started > found.latest
    return early / len(later), late / len(later)


@settings(max_examples=examples(15))
@given(
    slower=st.floats(0.3, 4.0),
    spread=st.floats(0.1, 0.8),
    width=st.floats(0.05, 0.8),
    seed=st.integers(0, 1000),
)
def test_a_tenth_of_the_starts_at_most_is_beyond_each_end(
    slower: float, spread: float, width: float, seed: int
) -> None:
    calibration = calibrate(came(SAMPLES, slower, spread, seed, width))
    early, late = misses(calibration, came(600, slower, spread, seed + 1, width))
    assert early <= 0.17
    assert late <= 0.17


def test_without_calibration_they_would_be_beyond() -> None:
    later = came(600, 1.5, 0.3, 2)
    assert misses(Calibration(), later)[1] > 0.6
    assert misses(calibrate(came(SAMPLES, 1.5, 0.3)), later)[1] == pytest.approx(0.1, abs=0.05)


def test_jobs_that_waited_together_count_as_little_more_than_one() -> None:
    apart, together = came(100, 3.0, 0.1), came(100, 3.0, 0.1, apart=1.0)
    assert calibrate(apart).latest > 2.2
    assert calibrate(together).latest < 1.5


def test_few_forecasts_and_good_ones_change_nothing() -> None:
    few = calibrate(came(FEWEST - 1, 3.0, 0.1))
    assert few == Calibration()
    assert few.apply(forecast(60, 600, 1200), NOW) == forecast(60, 600, 1200)
    assert few.latest_wait(90.0) == 90.0
    assert calibrate(came(SAMPLES, 1.0, 0.01)) == Calibration(), "ranges are never narrowed"


def test_only_the_newest_count() -> None:
    old = [PastForecast(at, at + 100, at + 100, at + 900) for at in range(SAMPLES)]
    new = [PastForecast(at, at + 100, at + 100, at + 100) for at in range(10_000, 10_000 + SAMPLES)]
    assert calibrate([*new, *old]) == Calibration()


def test_what_is_beyond_the_futures_stays_unknown_and_what_is_changed_has_more_time() -> None:
    found = Calibration(0.5, 2.0).apply(forecast(600, 700, None), NOW)
    assert (found.earliest, found.expected, found.latest) == (NOW + 270, NOW + 700, None)
    assert Calibration(0.5, 2.0).latest_wait(60.0) == 180.0
