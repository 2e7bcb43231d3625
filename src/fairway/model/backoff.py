"""Compute the delays between retries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

_MAX_STEPS: Final = 30
"""Growth stops here at the latest: an exponent without a bound overflows a float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow with each attempt in a row, up to a limit."""

    first_seconds: float
    longest_seconds: float
    factor: float = 2.0

    def seconds(self, attempt: int, jitter: float = 1.0) -> float:
        """Return the delay after the given attempt, counted from 1.

        `jitter`, between 0 and 1, spreads delays between half of it and all of it, so that many callers that
        failed together do not come back together.
        """
        grown = self.first_seconds * self.factor ** min(attempt - 1, _MAX_STEPS)
        return min(grown, self.longest_seconds) * (0.5 + jitter / 2)

    def delays(self) -> Iterator[float]:
        """Return the delays of one attempt after the other, without end."""
        return (self.seconds(attempt) for attempt in count(1))
