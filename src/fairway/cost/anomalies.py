"""Find unusual days of spending and unusual moves of prices. Pure functions.

A payer is compared with its own past only: the last four weeks, each day divided by the payer's factor for
that weekday. Median and median deviation are used, so that one earlier outlier does not hide the next.
`python -m bench forecast` measures how often traces without known anomalies alert, and how many planted ones
are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from statistics import median
from typing import Final

from fairway.cost.forecast import HISTORY_DAYS, DailySpending, weekday_profile

MIN_PART: Final = 0.02
"""How much more than usual an anomaly must cost, as a part of the fleet's mean day: so small teams do not
alert."""
PRICE_MOVE: Final = Fraction(1, 2)
"""The relative change of a price within a day that is reported."""

_COMPARED_DAYS: Final = 28
_MIN_DAYS: Final = 14
_MIN_RATIO: Final = 1.5
_SPREADS: Final = 4.0
_MIN_SPREAD: Final = 0.1
"""Of the usual amount: a payer that spends the same each day does not alert for a few percent."""
_NORMAL: Final = 1.4826
"""The standard deviation of a normal distribution, in median deviations."""
_QUIET_DAYS: Final = 7
"""One change is reported once: not again while the week before was unusual too."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A day on which a payer spent much more than on its days of that weekday."""

    day: date
    amount: float
    usual: float
    """The expected amount on that weekday."""

    @property
    def extra(self) -> float:
        """Return the amount beyond the usual."""
        return self.amount - self.usual


def find_anomaly(spending: DailySpending, least: float) -> Anomaly | None:
    """Compare yesterday, the last whole day, with the days before it. `least` is the smallest extra amount.

    Returns None if yesterday was usual, if there are fewer than two weeks to compare with, or if another of
    the last seven days was unusual already.
    """
    last = len(spending.days) - 1
    found = _anomaly(spending, last, least)
    if found is None or any(_anomaly(spending, last - n, least) for n in range(1, _QUIET_DAYS + 1)):
        return None
    return found


def moved_by_half(before: Fraction, after: Fraction) -> bool:
    """Return whether a price rose or fell by at least half of what it was a day before."""
    return before > 0 and abs(after - before) >= PRICE_MOVE * before


def _anomaly(spending: DailySpending, number: int, least: float) -> Anomaly | None:
    past = spending.days[max(0, number - HISTORY_DAYS) : max(0, number)]
    if len(past) < _MIN_DAYS:
        return None
    day = spending.first + timedelta(days=number)
    began = day - timedelta(days=len(past))
    profile = weekday_profile(past, began.weekday())
    even = [
        amount / profile[(began.weekday() + n) % 7]
        for n, amount in enumerate(past)
        if n >= len(past) - _COMPARED_DAYS
    ]
    middle = median(even)
    spread = max(_NORMAL * median(abs(amount - middle) for amount in even), _MIN_SPREAD * middle)
    factor, amount = profile[day.weekday()], spending.days[number]
    usual = factor * middle
    if amount < usual + max(least, _SPREADS * factor * spread) or amount < _MIN_RATIO * usual:
        return None
    return Anomaly(day, amount, usual)
