"""Draw held GPUs over time: busy, not busy, and not measured. Pure.

The job page, and the pages of teams, pools and the fleet, share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

HEIGHT: Final = 120
"""Of the bars, in pixels."""
_GAP: Final = 0.12
"""Of a bar's width, between two."""


@dataclass(frozen=True, slots=True)
class UsePoint:
    """The GPU-seconds of an hour, a day or a window."""

    start: datetime
    seconds: float
    held: float
    measured: float
    busy: float
    idle: float = 0.0

    @property
    def unmeasured(self) -> float:
        """Return what was held, and of which nothing is known."""
        return max(0.0, self.held - self.measured)


@dataclass(frozen=True, slots=True)
class UsePart:
    """A part of a bar, from the top of the drawing down."""

    kind: str
    """`busy`, `waits` (held and measured, but not busy) or `unmeasured`."""
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class UseBar:
    """One point in time."""

    point: UsePoint
    x: float
    width: float
    """In percent."""
    parts: tuple[UsePart, ...]
    title: str


@dataclass(frozen=True, slots=True)
class UseChart:
    """The drawing, its totals, and what it says in words."""

    bars: tuple[UseBar, ...]
    most: float
    """GPUs at the top of the drawing."""
    held: float
    measured: float
    busy: float
    idle: float
    """GPU-seconds in all."""

    @property
    def unmeasured(self) -> float:
        return max(0.0, self.held - self.measured)

    @property
    def start(self) -> datetime:
        return self.bars[0].point.start

    @property
    def end(self) -> datetime:
        return self.bars[-1].point.start

    @property
    def by_day(self) -> bool:
        """Return whether a bar is a day, so that its hour says nothing."""
        return self.bars[0].point.seconds > 3600

    def part(self, seconds: float) -> str:
        """Format a part of what was held: `42 %`."""
        return f"{100 * seconds / self.held:.0f} %" if self.held else "–"

    @property
    def description(self) -> str:
        """Say in words what the drawing shows."""
        return (
            f"Of {self.held / 3600:,.0f} GPU-hours held, {self.part(self.busy)} busy,"
            f" {self.part(self.measured - self.busy)} held but not busy,"
            f" {self.part(self.unmeasured)} not measured"
        )


def draw_use(points: Sequence[UsePoint]) -> UseChart | None:
    """Compute the drawing. Returns None if nothing was held."""
    held = sum(p.held for p in points)
    if held <= 0:
        return None
    most = max(p.held / p.seconds for p in points)
    width = 100 / len(points)
    bars = tuple(
        UseBar(p, round(n * width, 3), round(width * (1 - _GAP), 3), _parts(p, most), _title(p))
        for n, p in enumerate(points)
    )
    sums = (sum(p.measured for p in points), sum(p.busy for p in points), sum(p.idle for p in points))
    return UseChart(bars, most, held, *sums)


def _parts(point: UsePoint, most: float) -> tuple[UsePart, ...]:
    found = []
    top = float(HEIGHT)
    lengths = {
        "busy": min(point.busy, point.measured),
        "waits": max(0.0, point.measured - point.busy),
        "unmeasured": point.unmeasured,
    }
    for kind, seconds in lengths.items():
        height = HEIGHT * seconds / point.seconds / most
        if height > 0:
            top -= height
            found.append(UsePart(kind, round(top, 2), round(height, 2)))
    return tuple(found)


def _title(point: UsePoint) -> str:
    when = f"{point.start:%Y-%m-%d}" if point.seconds > 3600 else f"{point.start:%Y-%m-%d %H:%M}"
    held, busy, unmeasured = (n / point.seconds for n in (point.held, point.busy, point.unmeasured))
    return f"{when}: {held:,.1f} held, {busy:,.1f} busy, {unmeasured:,.1f} not measured"
