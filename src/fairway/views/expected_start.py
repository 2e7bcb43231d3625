"""Say when a waiting job is expected to start, or plainly why nobody can know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from fairway.model.job import JobState
from fairway.model.text import clean, count, span

if TYPE_CHECKING:
    from fairway.wire import jobs as wire

STALE: Final = timedelta(minutes=15)
"""A forecast that is older is not shown."""
_SOON: Final = timedelta(seconds=60)


def why_unknown(job: wire.Job, reasons: Sequence[str], away: str, forecast: wire.ForecastStart | None) -> str:
    """Return why nobody can know when a job starts; empty: its forecast is as good as any.

    `reasons`: what `explain.start_times` says of each reason why it waits, those that say nothing left out;
    `away`: why its cluster cannot be reached.
    """
    held = job.state is JobState.HELD or job.desired_state == "hold"
    causes = (
        (held, "it is on hold, and nobody knows when it is released"),
        (bool(away), f"cluster {job.cluster} cannot be reached"),
        (bool(reasons), next(iter(reasons), "")),
        (job.state is JobState.QUEUED, f"it has not been sent to {job.cluster} yet"),
        (job.pool is None, "it is in no pool of the fleet"),
    )
    return next((text for applies, text in causes if applies), "") or _no_forecast(forecast)


def _no_forecast(forecast: wire.ForecastStart | None) -> str:
    if forecast is None:
        return (
            "there is no forecast yet; every minute or so they are computed for the first jobs of each team"
        )
    if forecast.unknown:
        return f"it can never start as it is: {forecast.unknown}"
    if forecast.age_seconds is not None and forecast.age_seconds > STALE.total_seconds():
        return f"the last forecast is {span(forecast.age_seconds)} old"
    return "it is later than the simulated futures reach" if forecast.earliest is None else ""


def expected_lines(found: wire.ForecastStart) -> tuple[str, str]:
    """Return the forecast in words, and what it rests on; the second is empty if nothing is known."""
    if found.unknown or found.earliest is None or found.computed_at is None:
        return f"not known: {clean(found.unknown)}", ""
    age = found.age_seconds or 0.0
    now = found.computed_at + timedelta(seconds=age)
    rests = f"{count(found.futures, 'simulated future')}, computed {span(age)} ago"
    if found.samples:
        rests += f"; run times from {count(found.samples, 'job')}"
        source = clean(found.source).removeprefix("jobs ").removeprefix("all jobs")
        rests += f" {source}" if source else ""
    return _range_text(found.earliest, found.expected, found.latest, now), rests


def _range_text(earliest: datetime, expected: datetime | None, latest: datetime | None, now: datetime) -> str:
    if latest is None:
        likely = "" if expected is None else f", most likely after {_clock(expected, now)}"
        return f"not before {_clock(earliest, now)} UTC (90 % confidence){likely}"
    if latest <= now + _SOON:
        return "within a minute (90 % confidence)"
    first = "now" if earliest <= now + _SOON else _clock(earliest, now)
    last = _clock(latest, now)
    likely = "" if expected is None else _clock(max(expected, now), now)
    if first == last:
        return f"{last} UTC (80 % confidence)"
    return f"{first} to {last} UTC (80 % confidence), most likely {likely}"


def _clock(at: datetime, now: datetime) -> str:
    """Return a time, with its day unless that is today."""
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%a} {at.day} {at:%b %H:%M}"
