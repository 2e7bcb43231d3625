"""Combine the histograms of groups from wide to narrow, and read quantiles from the result.

Each group is the prior of the next narrower one and counts there as much as a few jobs. A job that reached
its limit counts as "at least as long" (the estimator of Susarla and Van Ryzin for right-censored times), so
that jobs which always do so do not look as if they ended by themselves there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from fairway.simulate.run_times.histogram import BINS, Histogram, position, seconds_at

_TINY: Final = 1e-9
_OPEN_END: Final = seconds_at(BINS)
LEAST_LEFT: Final = 1.0
"""The seconds by which every quantile exceeds the elapsed time."""
FLAT: Final = (1 / BINS,) * BINS
"""Without any history: any order of magnitude is as likely as any other."""


def updated(prior: Sequence[float], seen: Histogram, weight: float) -> list[float]:
    """Return the parts of the jobs in each bin by `seen`, and by `prior`, which counts as `weight` jobs."""
    if not any(seen.cut):
        total = weight + seen.total
        return [(weight * p + d) / total for p, d in zip(prior, seen.ended, strict=True)]
    left, prior_left = 1.0, 1.0
    at_risk = seen.total
    parts: list[float] = []
    for p, ended, cut in zip(prior, seen.ended, seen.cut, strict=True):
        risk = weight * prior_left + at_risk
        part = left * min(1.0, (weight * p + ended) / risk) if risk > _TINY else left
        parts.append(part)
        left -= part
        prior_left -= p
        at_risk -= ended + cut
    parts[-1] += max(0.0, left)
    return parts


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the groups of a job say together, for any elapsed time."""

    cumulative: tuple[float, ...]
    """At the ends of the bins, from 0; the last is 1."""
    samples: int
    source: str

    @classmethod
    def of(cls, parts: Sequence[float], samples: int, source: str) -> Learnt:
        """Return it from the parts of the jobs in each bin."""
        total = sum(parts)
        sums = [0.0, *accumulate(part / total for part in parts)]
        sums[-1] = 1.0
        return cls(tuple(sums), samples, source)

    def until(self, seconds: float) -> float:
        """Return the part of the jobs that run at most so long."""
        place = position(seconds)
        number = min(int(place), BINS - 1)
        low, high = self.cumulative[number], self.cumulative[number + 1]
        return low + (high - low) * (place - number)

    def reached_by(self, part: float) -> float:
        """Return the run time that this part of the jobs does not exceed."""
        number = min(max(bisect_right(self.cumulative, part) - 1, 0), BINS - 1)
        low, high = self.cumulative[number], self.cumulative[number + 1]
        within = (part - low) / (high - low) if high > low else 1.0
        return seconds_at(number + min(within, 1.0))


class Distribution:
    """The run time of a job that has already run for `elapsed` seconds, up to its limit."""

    __slots__ = ("_before", "_elapsed", "_learnt", "_limit")

    def __init__(self, learnt: Learnt, elapsed: float, limit: float | None) -> None:
        self._learnt = learnt
        self._elapsed = max(0.0, elapsed)
        self._limit = limit
        self._before = learnt.until(elapsed) if elapsed > 0 else 0.0

    @property
    def samples(self) -> int:
        """Return how many finished jobs it rests on; 0: only the time limit, or nothing, is known."""
        return self._learnt.samples

    @property
    def source(self) -> str:
        """Return in words whose jobs these are: `jobs of alice named train-*`."""
        return self._learnt.source

    def quantile(self, part: float) -> float:
        """Return the run time in seconds that `part` (0 to 1) of such jobs do not exceed."""
        left = 1 - self._before
        if self._elapsed >= _OPEN_END or left < _TINY:
            # Longer than anything known: such jobs run on for about as long again.
            seconds = self._elapsed * (1 + part)
        else:
            seconds = self._learnt.reached_by(self._before + part * left)
        if self._limit is not None:
            seconds = min(seconds, self._limit)
        return max(seconds, self._elapsed + LEAST_LEFT)
