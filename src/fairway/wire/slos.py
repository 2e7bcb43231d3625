"""Define the JSON of service level objectives and their state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairway.policy.slo_alerts import SloAlert
from fairway.wire.fleet import Moment, Price, Wire

MAX_POINTS = 500


class SloBurn(Wire):
    """How fast the error budget is spent."""

    window: str = Field(description="the window it is measured over, until now: 1h")
    rate: float = Field(description="1: exactly the whole budget in the objective's window")
    spent: float = Field(description="the part of the whole budget that was spent in this window")


class Slo(Wire):
    """A service level objective and its state."""

    name: str
    team: str | None = Field(description="whose jobs count, with all teams inside it; null: of all teams")
    text: str = Field(description="the objective in one line")
    target: Price = Field(description="part of the events that must be good, below 1")
    window_seconds: int = Field(description="the period before now that the target is for")
    unit: Literal["jobs", "GPU-seconds"] = Field(description="what `good` and `bad` count")
    good: int = Field(description="events in time, in the window")
    bad: int = Field(description="events that were late")
    compliance: float | None = Field(description="the good part; null: nothing was counted")
    met: bool | None = Field(description="whether the target is met; null: nothing was counted")
    budget_left: float | None = Field(
        description="the part of the error budget that is left; below 0: overspent; null: nothing was counted"
    )
    burns: list[SloBurn] = Field(description="over half an hour, one hour, six hours and a day")
    alert: SloAlert = Field(description="the most urgent alert; empty: none")
    alert_since: Moment | None = Field(description="when it began; null: there is none")
    last_day: float | None = Field(description="the good part of the last day")
    missed_at: Moment | None = Field(
        description="when the target is missed if the last day goes on; null: not within one window"
    )
    outlook: str = Field(description="`alert` and `missed_at` in words")
    since: Moment | None = Field(description="from when on events are counted; null: not counted yet")
    counted_to: Moment | None = Field(description="up to when; null: not counted yet")


class Slos(Wire):
    """Every objective the caller may see, in the order of the fleet file."""

    slos: list[Slo]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")


class SloPoint(Wire):
    """An objective at a past time, over the window that ended then."""

    at: Moment
    good: int = Field(description="since the point before")
    bad: int = Field(description="since the point before")
    budget_left: float | None = Field(description="null: nothing was counted in the window")


class SloHistory(Wire):
    """An objective over time, oldest first."""

    slo: Slo
    points: list[SloPoint]
