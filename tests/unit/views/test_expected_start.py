"""When a job is expected to start, in words; or plainly why nobody can know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairway.explain.binding import Stage, stage
from fairway.explain.reasons import REASONS
from fairway.explain.start_times import unknown_start
from fairway.views.expected_start import expected_lines, why_unknown
from fairway.wire import jobs as wire
from tests.unit.views.test_why import job

NOW = datetime(2026, 3, 1, 22, tzinfo=UTC)


def after(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def forecast(*minutes: float | None, **other: Any) -> wire.ForecastStart:
    earliest, expected, latest = (None if m is None else after(m) for m in minutes)
    values: dict[str, Any] = {
        "started": 1.0,
        "futures": 24,
        "computed_at": NOW - timedelta(seconds=40),
        "age_seconds": 40.0,
        "samples": 120,
        "source": "jobs of alice named train-*",
    }
    return wire.ForecastStart(earliest=earliest, expected=expected, latest=latest, **{**values, **other})


def test_a_range_with_what_it_rests_on() -> None:
    text, rests = expected_lines(forecast(10, 35, 100))
    assert text == "22:10 to 23:40 UTC (80 % confidence), most likely 22:35"
    assert rests == "24 simulated futures, computed 40 s ago; run times from 120 jobs of alice named train-*"


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ((-1, 0, 0.5), "within a minute (90 % confidence)"),
        ((0, 5, 9), "now to 22:09 UTC (80 % confidence), most likely 22:05"),
        ((5, 5, 5), "22:05 UTC (80 % confidence)"),
        ((90, 150, 200), "23:30 to Mon 2 Mar 01:20 UTC (80 % confidence), most likely Mon 2 Mar 00:30"),
        ((10, 35, None), "not before 22:10 UTC (90 % confidence), most likely after 22:35"),
        ((10, None, None), "not before 22:10 UTC (90 % confidence)"),
    ],
)
def test_times_in_words(minutes: tuple[float | None, ...], said: str) -> None:
    assert expected_lines(forecast(*minutes))[0] == said


def test_without_history_nothing_is_said_of_it() -> None:
    rests = expected_lines(forecast(10, 35, 100, samples=0, source=""))[1]
    assert rests == "24 simulated futures, computed 40 s ago"


def test_what_is_not_known_is_said_with_the_reason() -> None:
    unknown = wire.ForecastStart(earliest=None, expected=None, latest=None, unknown="it is on hold")
    assert expected_lines(unknown) == ("not known: it is on hold", "")


GOOD = forecast(10, 35, 100)


@pytest.mark.parametrize(
    ("state", "changes", "reasons", "away", "found", "said"),
    [
        ("waiting", {}, [], "", GOOD, ""),
        ("held", {}, [], "", GOOD, "on hold"),
        ("waiting", {"desired_state": "hold"}, [], "", GOOD, "on hold"),
        ("waiting", {}, [], "no route", GOOD, "cannot be reached"),
        ("waiting", {}, ["it cannot start as it is"], "", GOOD, "it cannot start as it is"),
        ("queued", {}, [], "", None, "has not been sent"),
        ("waiting", {"pool": None}, [], "", None, "in no pool"),
        ("waiting", {}, [], "", None, "no forecast yet"),
        ("waiting", {}, [], "", forecast(None, None, None, unknown="too large"), "as it is: too large"),
        ("waiting", {}, [], "", forecast(1, 2, 3, age_seconds=1800.0), "30 min old"),
        ("waiting", {}, [], "", forecast(None, None, None), "later than the simulated futures reach"),
    ],
)
def test_why_nobody_can_know(
    state: str,
    changes: dict[str, Any],
    reasons: list[str],
    away: str,
    found: wire.ForecastStart | None,
    said: str,
) -> None:
    waiting = job(state).model_copy(update=changes)
    text = why_unknown(waiting, reasons, away, found)
    assert bool(text) == bool(said)
    assert said in text


def test_of_each_reason_it_is_decided_whether_a_forecast_makes_sense() -> None:
    known = {code for code in REASONS if not unknown_start(code)}
    assert {"NotItsTurn", "NotEnoughFree", "TeamAtCeiling", "UserLimit", "NoRackFits", "QuotaInUse"} <= known
    assert {"Held", "AfterAnother", "NoNodeFits", "BudgetSpent", "AccountLimit"}.isdisjoint(known)
    assert all(stage(code) > Stage.NEVER or code.startswith(("Engine", "NotConsidered")) for code in known)
