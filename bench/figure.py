"""What a benchmark tells: one figure, the bare one beside it, and what held it back."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """The last line of a benchmark's output, as one JSON object."""

    name: str
    size: str
    figure: float
    """What Fairway took, in `unit`."""
    bare: float
    """What the same thing took without Fairway, in the same run."""
    unit: str
    target: float
    """The ratio to stay at or below."""
    limits: str
    """What held it back, in words."""
    details: Mapping[str, object] = field(default_factory=dict)
    most: float | None = None
    """What Fairway may take at most, in `unit`, whatever the bare one took."""

    @property
    def ratio(self) -> float:
        return self.figure / self.bare if self.bare else float("inf")

    @property
    def met(self) -> bool:
        return self.ratio <= self.target and (self.most is None or self.figure <= self.most)

    def line(self) -> str:
        """The JSON line: fixed keys first, details last."""
        return json.dumps(
            {
                "name": self.name,
                "size": self.size,
                "figure": round(self.figure, 6),
                "bare": round(self.bare, 6),
                "unit": self.unit,
                "ratio": round(self.ratio, 3),
                "target": self.target,
                **({} if self.most is None else {"most": round(self.most, 6)}),
                "met": self.met,
                "limits": self.limits,
                "details": dict(self.details),
            }
        )


async def in_turn(
    ours: Callable[[], Awaitable[object]], bare: Callable[[], Awaitable[object]], rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of each, measured alternately so that noise of the machine falls on both.

    One unmeasured round first: connections, caches and imports are not what is compared.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for times, call in zip(seconds, (ours, bare), strict=True):
            start = time.perf_counter()
            await call()
            if turn:
                times.append(time.perf_counter() - start)
    return seconds


def median(values: list[float]) -> float:
    """The middle one: a single stall of a shared machine does not move it."""
    return statistics.median(values)
