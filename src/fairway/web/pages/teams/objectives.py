"""Build the view model of service level objectives: how each does, and a plot of its error budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairway.views.slos import budget_left_text, burn_text, compliance_text, target_text, tone
from fairway.wire import slos as wire

PLOT_WIDTH: Final = 240
PLOT_HEIGHT: Final = 48
PLOT_POINTS: Final = 60
_TONES: Final = {"bad": "bad", "warn": "warn", "ok": "good", "": "dim"}


@dataclass(frozen=True, slots=True)
class ObjectiveCard:
    """An objective as a page shows it."""

    slo: wire.Slo
    tone: str
    """A CSS class of states: `good`, `warn`, `bad` or `dim`."""
    target: str
    compliance: str
    budget_left: str
    burn: str
    line: str
    """The points of the plot of its error budget; empty: nothing to draw."""
    zero: float
    """Where in the plot the budget is used up."""


def objective_card(history: wire.SloHistory) -> ObjectiveCard:
    """Return the card of an objective."""
    slo = history.slo
    line, zero = budget_line(history.points)
    return ObjectiveCard(
        slo,
        _TONES[tone(slo)],
        target_text(slo),
        compliance_text(slo),
        budget_left_text(slo),
        burn_text(slo, "1h"),
        line,
        zero,
    )


def budget_line(points: Sequence[wire.SloPoint]) -> tuple[str, float]:
    """Return the points of an SVG polyline of the budget that is left, and the height of no budget.

    The plot reaches from all of the budget down to none of it, or to the worst point.
    """
    known = [
        (place, point.budget_left) for place, point in enumerate(points) if point.budget_left is not None
    ]
    if len(known) < 2:
        return "", PLOT_HEIGHT
    lowest = min(0.0, *(left for _, left in known))
    scale = PLOT_HEIGHT / (1 - lowest)
    step = PLOT_WIDTH / (len(points) - 1)
    line = " ".join(f"{place * step:.1f},{(1 - left) * scale:.1f}" for place, left in known)
    return line, round(scale, 1)
