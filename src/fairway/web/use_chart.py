"""Draw held GPUs over time: busy, poorly used, idle, and not measured. Pure.

The job page, and the pages of teams, pools and the fleet, share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fairway.model.gpu_use import HeldKind

HEIGHT: Final = 120
"""Of the bars, in pixels."""
KIND_TEXTS: Final = {
    HeldKind.BUSY: "busy",
    HeldKind.POOR: "poorly used",
    HeldKind.IDLE: "idle",
    HeldKind.UNMEASURED: "not measured",
}
_GAP: Final = 0.12
"""Of a bar's width, between two."""


@dataclass(frozen=True, slots=True)
class UsePoint:
    """What became of the GPU-seconds held in an hour, on a day or in a window."""

    start: datetime
    seconds: float
    held: Mapping[HeldKind, float]

    def mean(self, *kinds: HeldKind) -> float:
        """Return how many GPUs it was on average; without kinds, how many were held."""
        return sum(self.held.get(kind, 0.0) for kind in kinds or HeldKind) / self.seconds


@dataclass(frozen=True, slots=True)
class UsePart:
    """A part of a bar, from the top of the drawing down."""

    kind: HeldKind
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
    """GPU-seconds in all."""
    by_kind: Mapping[HeldKind, float]

    @property
    def texts(self) -> Mapping[HeldKind, str]:
        """Return the kinds in the order in which they are drawn."""
        return KIND_TEXTS

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

    def part(self, kind: HeldKind) -> str:
        """Format the part of a kind in what was held: `42 %`."""
        return f"{100 * self.by_kind.get(kind, 0.0) / self.held:.0f} %"

    @property
    def description(self) -> str:
        """Say in words what the drawing shows."""
        parts = ", ".join(f"{self.part(kind)} {text}" for kind, text in KIND_TEXTS.items())
        return f"Of {self.held / 3600:,.0f} GPU-hours held: {parts}"


def draw_use(points: Sequence[UsePoint]) -> UseChart | None:
    """Compute the drawing. Returns None if nothing was held."""
    by_kind = {kind: sum(p.held.get(kind, 0.0) for p in points) for kind in HeldKind}
    held = sum(by_kind.values())
    if held <= 0:
        return None
    most = max(p.mean() for p in points)
    width = 100 / len(points)
    bars = tuple(
        UseBar(p, round(n * width, 3), round(width * (1 - _GAP), 3), _parts(p, most), _title(p))
        for n, p in enumerate(points)
    )
    return UseChart(bars, most, held, by_kind)


def _parts(point: UsePoint, most: float) -> tuple[UsePart, ...]:
    found = []
    top = float(HEIGHT)
    for kind in HeldKind:
        height = HEIGHT * point.mean(kind) / most
        if height > 0:
            top -= height
            found.append(UsePart(kind, round(top, 2), round(height, 2)))
    return tuple(found)


def _title(point: UsePoint) -> str:
    when = f"{point.start:%Y-%m-%d}" if point.seconds > 3600 else f"{point.start:%Y-%m-%d %H:%M}"
    kinds = ", ".join(f"{point.mean(kind):,.1f} {text}" for kind, text in KIND_TEXTS.items())
    return f"{when}: {point.mean():,.1f} held; {kinds}"
