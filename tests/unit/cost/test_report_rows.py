"""Rows of a document: they sum both ways, whatever they are; and which time a window means."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.calendar import Calendar, parse_window
from fairway.cost.report import ReportColumn, ReportEntry, column_of, table
from fairway.cost.rounding import MILLIONTH, rounded
from fairway.model.charge import ChargeKind
from fairway.model.errors import PermanentError

entries = st.lists(
    st.builds(
        ReportEntry,
        labels=st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""])),
        kind=st.sampled_from(ChargeKind),
        carried=st.booleans(),
        amount=st.fractions(Fraction(-50), Fraction(10**5), max_denominator=3600),
        gpu_seconds=st.fractions(0, 10**6, max_denominator=7),
        device_seconds=st.integers(0, 10**6),
        slice_seconds=st.integers(0, 10**6),
    ),
    max_size=40,
)


@given(found=entries, most=st.integers(1, 6))
def test_every_figure_is_exact_to_six_digits(found: list[ReportEntry], most: int) -> None:
    made = table(found, max_rows=most)
    for column in ReportColumn:
        exact = sum((e.amount for e in found if column_of(e.kind) is column), Fraction(0))
        assert made.total.amounts[column] == rounded(exact, MILLIONTH)
        shown = sum((r.amounts[column] for r in made.rows), Decimal(0))
        assert abs(Fraction(shown) - exact) <= Fraction(len(found), 2_000_000)
    hours = sum((e.gpu_seconds for e in found), Fraction(0)) / 3600
    assert made.total.gpu_hours == rounded(hours, MILLIONTH)
    assert sum(r.device_seconds for r in made.rows) == sum(e.device_seconds for e in found)
    for row in table(found, max_rows=1000).rows:
        mine = [e for e in found if e.labels == row.labels and (None if e.carried else e.kind) == row.kind]
        for column in ReportColumn:
            exact = sum((e.amount for e in mine if column_of(e.kind) is column), Fraction(0))
            assert row.amounts[column] == rounded(exact, MILLIONTH)


BERLIN = Calendar(ZoneInfo("Europe/Berlin"))
NOW = int(datetime(2026, 10, 25, 12, 20, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("text", "first", "until"),
    [
        ("1d", date(2026, 10, 25), date(2026, 10, 26)),
        ("30d", date(2026, 9, 26), date(2026, 10, 26)),
        ("2026-02", date(2026, 2, 1), date(2026, 3, 1)),
        ("2025-12", date(2025, 12, 1), date(2026, 1, 1)),
        ("2026-10-03", date(2026, 10, 3), date(2026, 10, 4)),
        ("2026-10-01..2026-10-15", date(2026, 10, 1), date(2026, 10, 16)),
        ("today", date(2026, 10, 25), date(2026, 10, 26)),  # a Sunday
        ("yesterday", date(2026, 10, 24), date(2026, 10, 25)),
        ("this-week", date(2026, 10, 19), date(2026, 10, 26)),
        ("last-week", date(2026, 10, 12), date(2026, 10, 19)),
        ("this-month", date(2026, 10, 1), date(2026, 11, 1)),
        ("last-month", date(2026, 9, 1), date(2026, 10, 1)),
    ],
)
def test_windows(text: str, first: date, until: date) -> None:
    found = parse_window(text, BERLIN, NOW)
    assert (found.first, found.until) == (first, until)
    assert found.span.start == BERLIN.day_start(first)


def test_a_whole_month() -> None:
    for text in ("2026-09", "last-month", "2026-09-01..2026-09-30"):
        assert parse_window(text, BERLIN, NOW).is_month
    for text in ("30d", "2026-09-01", "2026-09-01..2026-10-30"):
        assert not parse_window(text, BERLIN, NOW).is_month


def test_a_window_ends_where_this_hour_does() -> None:
    found = parse_window("2026-10", BERLIN, NOW)
    assert found.span.end == int(datetime(2026, 10, 25, 13, tzinfo=UTC).timestamp())
    assert found.end == NOW
    later = parse_window("2027-01", BERLIN, NOW)
    assert later.span.start == later.span.end


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0d",
        "9999d",
        "2026-13",
        "2026-02-30",
        "2026-10-02..2026-10-01",
        "1960-01",
        "9999-12",
        "7",
        "x",
        "last-wek",
    ],
)
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(PermanentError, match=r"window|long|day|month|years") as told:
        parse_window(text, BERLIN, NOW)
    assert told.value.code == "InvalidWindow"
    assert "2026-10" in told.value.hint
