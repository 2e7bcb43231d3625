"""Calibrate the ranges of forecast starts by how earlier forecasts of the same cluster came out. Pure.

Simulated futures know the policy and the history of run times. They do not know all that decides on a real
cluster: how often its scheduler runs, a site's own priority factors, users who cancel. So forecasts are
compared with the starts that then came, and later ranges are widened by what was missing: each end by the
factor of the wait with which it would have been the quantile that it says (split conformal prediction, on
logarithms). Ranges are never narrowed, and their middle stays: long waits differ more than short ones, so
moving it would help few jobs and mislead many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.simulate.starts import HIGH, LOW, StartForecast, quantile

SAMPLES: Final = 500
"""The newest forecasts that count."""
FEWEST: Final = 40
"""With fewer, forecasts stay as they are."""
_SHORT_SECONDS: Final = 60.0
"""Added to waits before they are compared: a start after 20 s instead of 2 s was not ten times late."""
_MOST: Final = 20.0
"""The largest factor, and its inverse the smallest."""
_PRIOR: Final = 10.0
"""With as many waits one after another, half of the correction is made. Jobs that wait at the same time are
early or late together: a hundred of them say little more than one."""


@dataclass(frozen=True, slots=True)
class PastForecast:
    """A forecast of a job's start, and when it started. Times are seconds since 1970."""

    at: float
    """Of which moment it was."""
    earliest: float
    latest: float
    started: float
    """When the job started, or the present if it still waits."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors for the waits at both ends of a range."""

    earliest: float = 1.0
    """At most 1."""
    latest: float = 1.0
    """At least 1."""

    def apply(self, forecast: StartForecast, at: float) -> StartForecast:
        """Return a forecast of the moment `at` with a calibrated range."""
        return replace(
            forecast,
            earliest=_scaled(forecast.earliest, at, self.earliest),
            latest=_scaled(forecast.latest, at, self.latest),
        )

    def latest_wait(self, seconds: float) -> float:
        """Return the seconds within which a job starts, by those of a high quantile of futures."""
        return self.latest * (seconds + _SHORT_SECONDS) - _SHORT_SECONDS


def calibrate(past: Sequence[PastForecast]) -> Calibration:
    """Compute the factors from forecasts that came out: whose latest start has passed. O(n log n).

    Forecasts whose jobs started early are not to be taken before others of the same moment are decided, or
    waits would look shorter than they are.
    """
    if len(past) < FEWEST:
        return Calibration()
    newest = sorted(past, key=lambda one: one.at)[-SAMPLES:]
    rounds = _one_after_another(newest)
    trust = rounds / (rounds + _PRIOR)

    def factor(forecast: Sequence[float], part: float) -> float:
        ratios = sorted(
            _wait(one.started, one.at) / _wait(said, one.at)
            for one, said in zip(newest, forecast, strict=True)
        )
        found = quantile(ratios, part)
        return 1.0 if found is None else min(max(found, 1 / _MOST), _MOST) ** trust

    return Calibration(
        min(1.0, factor([one.earliest for one in newest], LOW)),
        max(1.0, factor([one.latest for one in newest], HIGH)),
    )


def _one_after_another(past: Sequence[PastForecast]) -> int:
    """Return how many of the waits can be chosen of which no two overlap."""
    found, free = 0, float("-inf")
    for one in sorted(past, key=lambda one: one.started):
        if one.at >= free:
            found, free = found + 1, one.started
    return found


def _wait(until: float, since: float) -> float:
    return max(0.0, until - since) + _SHORT_SECONDS


def _scaled(until: float | None, since: float, factor: float) -> float | None:
    """Return a time whose wait is multiplied by a factor. Returns None for None."""
    if until is None or factor == 1.0:
        return until
    return max(since, since + factor * _wait(until, since) - _SHORT_SECONDS)
