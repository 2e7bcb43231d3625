"""Forecast what a payer will have spent at the end of a period, with a range. Pure, and without randomness.

The expectation is a rate of spending in which a day counts half as much as one five days later, times the
payer's own weekday profile. The range follows from the payer's own past: the forecast is repeated for each
day of the history, and its relative errors over the week that followed give the width. On the traces of
`python -m bench forecast` the relative error over the rest of a month is about that over one week, so no
model of how errors grow is needed. `docs/concepts/cost.md` has the measured errors and the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import dropwhile
from typing import Final

HISTORY_DAYS: Final = 90
"""Days before today that a forecast uses; more would only be older."""

_HALF_LIFE_DAYS: Final = 5
_WEEK: Final = 7
_PROFILE_WEEKS: Final = 4
"""The weekday profile is shrunk towards a flat one as if so many weeks had been flat."""
_MIN_ORIGIN: Final = 3
"""Days of history before the first repeated forecast, and days after the last one."""
_FLOOR: Final = 0.1
"""Added to both sides of a relative error, as a part of the mean day: without it a week of nothing after a
week of little would be infinitely wrong."""
_PRIOR_ERROR: Final = 0.5
_PRIOR_WEEKS: Final = 0.25
"""Without a history the error is assumed to be 50 %; this counts as a quarter of an observed week."""
_QUANTILE: Final = 1.12
"""Standard errors on each side of the 80 % range. A normal distribution has 1.28; the observed errors have
heavier tails, so the root mean square overstates most of them."""


@dataclass(frozen=True, slots=True)
class DailySpending:
    """The amounts of one payer by day, in any unit."""

    first: date
    """The day of the first amount."""
    days: Sequence[float]
    """Whole days, up to yesterday."""
    today: float = 0.0
    elapsed: float = 0.0
    """The fraction of today that is over: at least 0, below 1."""

    @property
    def day(self) -> date:
        """Return today."""
        return self.first + timedelta(days=len(self.days))

    @property
    def any_spent(self) -> bool:
        """Return whether there is anything to forecast from."""
        return self.today > 0 or any(amount > 0 for amount in self.days)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a payer will have spent when a period ends: in 80 % of cases between `low` and `high`."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Depletion:
    """The days on which an amount will be spent, or None where that is after the period."""

    expected: date | None
    earliest: date | None
    """At the upper end of the 80 % range: later in nine cases of ten."""


class SpendingModel:
    """The rate, the weekday profile and the usual error of one payer, from which forecasts follow."""

    def __init__(self, spending: DailySpending) -> None:
        # A payer's history begins with its first spending: the days before say nothing about it.
        days = list(dropwhile(lambda amount: amount <= 0, spending.days[-HISTORY_DAYS:]))
        self._day, self._elapsed = spending.day, spending.elapsed
        first = spending.day - timedelta(days=len(days))
        self._profile = weekday_profile(days, first.weekday())
        rate = _Rate(self._profile, first.weekday())
        error = _ErrorSum(days, self._profile, first.weekday())
        for number, amount in enumerate(days):
            error.add(number, rate.per_day)
            rate.add(amount, 1.0)
        rate.add(spending.today, spending.elapsed)
        self.per_day: Final = rate.per_day
        """How much is being spent on the mean weekday."""
        self._floor = _FLOOR * error.mean
        self._spread = math.exp(_QUANTILE * error.standard)

    def forecast(self, spent: float, until: date) -> Forecast:
        """Forecast a period that ends before the day `until`, of which `spent` is spent already."""
        rest = list(self._rest(until))
        return Forecast(
            spent + math.fsum(expected for _, expected in rest),
            spent + math.fsum(self._at(expected, portion, low=True) for portion, expected in rest),
            spent + math.fsum(self._at(expected, portion, low=False) for portion, expected in rest),
        )

    def depletion(self, left: float, until: date) -> Depletion:
        """Forecast the days on which the amount `left` will be spent, if before the day `until`."""
        rest = list(self._rest(until))
        return Depletion(
            _reached(self._day, left, [expected for _, expected in rest]),
            _reached(self._day, left, [self._at(expected, part, low=False) for part, expected in rest]),
        )

    def _rest(self, until: date) -> Iterator[tuple[float, float]]:
        """Generate the rest of today and each later day: its portion of a day, and its expected amount."""
        portion, day = 1.0 - self._elapsed, self._day
        while day < until:
            yield portion, portion * self.per_day * self._profile[day.weekday()]
            portion, day = 1.0, day + timedelta(days=1)

    def _at(self, expected: float, portion: float, *, low: bool) -> float:
        """Return the lower or upper end of the range of a day's amount."""
        floor = portion * self._floor
        return max(0.0, (expected + floor) * (1 / self._spread if low else self._spread) - floor)


class _Rate:
    """The spending per day, of the mean weekday, in which recent days count more."""

    def __init__(self, profile: Sequence[float], weekday: int) -> None:
        self._profile, self._weekday = profile, weekday
        self._amount = self._days = 0.0
        self._decay = 0.5 ** (1 / _HALF_LIFE_DAYS)

    def add(self, amount: float, portion: float) -> None:
        """Add the next day, of which `portion` is over."""
        decay = self._decay**portion
        self._amount = decay * self._amount + amount
        self._days = decay * self._days + portion * self._profile[self._weekday % _WEEK]
        self._weekday += 1

    @property
    def per_day(self) -> float:
        """Return the rate. One costly hour is not taken for a costly day: it is divided by a whole day."""
        return self._amount / max(1.0, self._days)


class _ErrorSum:
    """The relative errors of repeated forecasts over the week that followed each of them."""

    def __init__(self, days: Sequence[float], profile: Sequence[float], weekday: int) -> None:
        self._profile, self._weekday = profile, weekday
        self._sums = [0.0]
        for amount in days:
            self._sums.append(self._sums[-1] + amount)
        self.mean: Final = self._sums[-1] / len(days) if days else 0.0
        self._squares = self._weight = 0.0

    def add(self, number: int, rate: float) -> None:
        """Compare a forecast made before the day `number` with what was spent in the week from it on."""
        length = min(_WEEK, len(self._sums) - 1 - number)
        if number < _MIN_ORIGIN or length < _MIN_ORIGIN:
            return
        spent = self._sums[number + length] - self._sums[number]
        expected = rate * sum(self._profile[(self._weekday + number + i) % _WEEK] for i in range(length))
        floor = _FLOOR * self.mean * length
        self._squares += length * math.log((spent + floor) / (expected + floor)) ** 2
        self._weight += length

    @property
    def standard(self) -> float:
        """Return the root mean square of the errors, as a difference of logarithms."""
        # Overlapping weeks are one week of evidence together, not seven.
        weeks = self._weight / _WEEK / _WEEK
        observed = self._squares / self._weight if self._weight else 0.0
        return math.sqrt((_PRIOR_WEEKS * _PRIOR_ERROR**2 + weeks * observed) / (_PRIOR_WEEKS + weeks))


def weekday_profile(days: Sequence[float], weekday: int) -> Sequence[float]:
    """Return each weekday relative to the mean day, from Monday on. `weekday` is that of the first day."""
    mean = math.fsum(days) / len(days) if days else 0.0
    if mean <= 0:
        return [1.0] * _WEEK
    factors = []
    for number in range(_WEEK):
        same = days[(number - weekday) % _WEEK :: _WEEK]
        factors.append((math.fsum(same) + _PROFILE_WEEKS * mean) / ((len(same) + _PROFILE_WEEKS) * mean))
    whole = math.fsum(factors)
    return [_WEEK * factor / whole for factor in factors]


def _reached(day: date, left: float, amounts: Sequence[float]) -> date | None:
    spent = 0.0
    for number, amount in enumerate(amounts):
        spent += amount
        if amount > 0 and spent >= left:
            return day + timedelta(days=number)
    return None
