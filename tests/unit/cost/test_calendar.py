"""Hours, days and months as the clocks of a place show them."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.calendar import Calendar, next_month
from fairway.model.charge import Span
from tests.unit.cost.small import patient
from tests.unit.cost.worlds import moments, stage_of

ZONES = sorted({zone for zone, _ in moments()})


@pytest.mark.parametrize(
    ("zone", "day", "hours", "seconds"),
    [
        ("UTC", "2026-11-15", 24, 86400),
        ("Europe/Berlin", "2026-03-29", 23, 82800),
        ("Europe/Berlin", "2026-10-25", 25, 90000),
        ("Asia/Kolkata", "2026-11-15", 24, 86400),
        ("Australia/Lord_Howe", "2026-04-05", 24, 88200),  # 24 and a half hours: one of 90 minutes
        ("Australia/Lord_Howe", "2026-10-04", 23, 84600),  # 23 and a half
        ("America/Sao_Paulo", "2018-11-04", 23, 82800),  # begins at 01:00
        ("America/Havana", "2026-11-01", 25, 90000),  # midnight twice
        ("America/St_Johns", "2006-10-29", 25, 90000),  # turned back over midnight, at 00:01
        ("Pacific/Apia", "2011-12-30", 0, 0),  # left out
        ("Pacific/Apia", "2011-12-31", 24, 86400),
    ],
)
def test_how_long_a_day_is(zone: str, day: str, hours: int, seconds: int) -> None:
    calendar = Calendar(ZoneInfo(zone))
    span = calendar.day_span(date.fromisoformat(day))
    assert span.end - span.start == seconds
    assert len(calendar.hours(span)) == hours


def test_a_day_that_begins_at_one() -> None:
    calendar = Calendar(ZoneInfo("America/Sao_Paulo"))
    start = calendar.day_start(date(2018, 11, 4))
    assert datetime.fromtimestamp(start, calendar.zone).isoformat() == "2018-11-04T01:00:00-02:00"
    assert calendar.day_of(start) == date(2018, 11, 4)
    assert calendar.day_of(start - 1) == date(2018, 11, 3)


def test_an_hour_of_ninety_minutes() -> None:
    calendar = Calendar(ZoneInfo("Australia/Lord_Howe"))
    one = int(datetime(2026, 4, 5, 1, tzinfo=calendar.zone).timestamp())
    assert calendar.next_hour(one) == one + 5400
    assert calendar.hour_start(one + 5399) == one


def test_hours_of_kolkata_begin_at_half_past() -> None:
    calendar = Calendar(ZoneInfo("Asia/Kolkata"))
    assert calendar.hour_span(0) == Span(-1800, 1800)


@pytest.mark.parametrize(("zone", "moment"), moments())
def test_the_same_hours_as_the_clock_shows(zone: str, moment: str) -> None:
    hours = stage_of(zone, moment).hours
    calendar = Calendar(ZoneInfo(zone))
    span = Span(hours[0].start, hours[-1].end)
    assert [(h.start, h.end) for h in calendar.hours(span)] == [(h.start, h.end) for h in hours]
    assert [calendar.day_of(h.start) for h in hours] == [h.day for h in hours]
    assert [calendar.day_of(h.end - 1) for h in hours] == [h.day for h in hours]


@patient
@given(st.sampled_from(ZONES), st.integers(min_value=0, max_value=2_100_000_000))
def test_every_second_is_in_one_hour_of_one_day_of_one_month(zone: str, at: int) -> None:
    calendar = Calendar(ZoneInfo(zone))
    hour, day = calendar.hour_span(at), calendar.day_of(at)
    assert hour.start <= at < hour.end
    assert hour == Span(calendar.hour_start(at), calendar.next_hour(at))
    assert calendar.day_start(day) <= hour.start < hour.end <= calendar.day_end(day)
    assert calendar.month_start(day) <= at < calendar.month_end(day)
    assert calendar.day_start(day) <= at < calendar.day_end(day)


@patient
@given(
    st.sampled_from(ZONES),
    st.integers(min_value=0, max_value=2_100_000_000),
    st.integers(min_value=0, max_value=40 * 86400),
)
def test_days_and_hours_fill_a_span(zone: str, start: int, length: int) -> None:
    calendar = Calendar(ZoneInfo(zone))
    span = Span(start, start + length)
    for cut in (calendar.days(span), calendar.hours(span)):
        edges = [start, *(piece.end for piece in cut)]
        assert [piece.start for piece in cut] == edges[:-1]
        assert edges[-1] == span.end
        assert all(piece.start < piece.end for piece in cut)


@pytest.mark.parametrize(
    ("zone", "month", "days"),
    [("UTC", "2028-02-01", 29), ("UTC", "2100-02-01", 28), ("Pacific/Apia", "2011-12-01", 30)],
)
def test_days_in_a_month(zone: str, month: str, days: int) -> None:
    assert Calendar(ZoneInfo(zone)).days_in_month(date.fromisoformat(month)) == days


def test_the_month_after() -> None:
    assert next_month(date(2027, 12, 31)) == date(2028, 1, 1)
    assert next_month(date(2028, 1, 31)) == date(2028, 2, 1)
