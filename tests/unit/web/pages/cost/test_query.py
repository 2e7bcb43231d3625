"""What the page of cost is asked, from its address and back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from fairway.model.charge import Dimension, JobLabel, Label
from fairway.services.errors import ErrorKind, RequestError
from fairway.web.pages.cost.query import (
    CostQuery,
    ReportKind,
    comparison,
    month_beside,
    months_until,
)
from fairway.wire import costs as wire


def query(text: str) -> CostQuery:
    return CostQuery.of(QueryParams(text))


def shown(first: str, last: str) -> wire.Window:
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    days = date.fromisoformat(first), date.fromisoformat(last)
    return wire.Window(first_day=days[0], last_day=days[1], start=moment, end=moment, timezone="UTC")


@pytest.mark.parametrize(
    "text",
    [
        "window=30d&by=team",
        "window=2026-10&by=user&by=day&team=nlp",
        "what=usage&window=7d&by=pool&user=a%26b&most=1000",
        "what=waste&window=2026-10-01..2026-10-15&by=pool&pool=a100",
        "window=30d&by=project&by=label%3Amodel&project=llm&label=experiment%3De1&label=a%3Db",
        "window=30d&by=team&per=1000%3Asteps",
    ],
)
def test_an_address_says_the_whole_question(text: str) -> None:
    assert query(query(text).address().partition("?")[2]) == query(text)
    assert query(text).address() == f"/cost?{text}"


def test_empty_fields_of_a_form_say_nothing() -> None:
    assert query("window=&by=team&by=&team=&user=+&pool=") == CostQuery()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("by=colour", "colour"),
        ("what=love", "love"),
        ("by=label:", "label:"),
        ("what=waste&by=label:a", "label:a"),
        ("what=waste&by=team", "team"),
        (f"user={'x' * 201}", "user"),
    ],
)
def test_words_that_mean_nothing(text: str, wrong: str) -> None:
    with pytest.raises(RequestError, match=wrong) as caught:
        query(text)
    assert (caught.value.kind, bool(caught.value.hint)) == (ErrorKind.INVALID, True)


def test_waste_is_nobodys() -> None:
    asked = query("team=nlp&user=ann&pool=a100&by=user&by=day").address(what=ReportKind.WASTE)
    assert asked == "/cost?what=waste&window=30d&by=day&pool=a100"
    assert query("what=waste&team=nlp&user=ann") == CostQuery(what=ReportKind.WASTE, by=(Label.POOL,))


@pytest.mark.parametrize(
    ("text", "label", "name", "address"),
    [
        ("", Label.TEAM, "nlp", "/cost?window=30d&by=user&team=nlp"),
        ("by=user&team=nlp", Label.USER, "ann", "/cost?window=30d&by=pool&team=nlp&user=ann"),
        ("by=pool&window=7d", Label.POOL, "a100", "/cost?window=7d&by=team&pool=a100"),
        ("by=pool&team=nlp", Label.POOL, "a100", "/cost?window=30d&by=user&team=nlp&pool=a100"),
        ("by=pool&team=a&user=b", Label.POOL, "c", "/cost?window=30d&by=day&team=a&user=b&pool=c"),
        ("by=day", Label.DAY, "2026-10-03", "/cost?window=2026-10-03&by=team"),
        ("what=waste", Label.POOL, "mig", "/cost?what=waste&window=30d&by=day&pool=mig"),
        ("by=priority", Label.PRIORITY, "low", None),
        ("by=project", Label.PROJECT, "llm", "/cost?window=30d&by=user&project=llm"),
        ("label=a%3Db", JobLabel("label:m"), "x", "/cost?window=30d&by=user&label=a%3Db&label=m%3Dx"),
        ("", Label.TEAM, "", None),
    ],
)
def test_a_row_leads_into_itself(text: str, label: Dimension, name: str, address: str | None) -> None:
    assert query(text).narrowed(label, name) == address


@pytest.mark.parametrize(
    ("first", "last", "before"),
    [
        ("2026-10-17", "2026-11-15", "2026-09-18..2026-10-16"),  # 29 whole days and some hours of today
        ("2026-11-09", "2026-11-15", "2026-11-03..2026-11-08"),
        ("2026-10-01", "2026-10-31", "2026-08-31..2026-09-30"),  # September has a day less
        ("2026-11-01", "2026-11-30", "2026-10-01..2026-10-14"),
        ("2026-10-03", "2026-10-03", "2026-10-02..2026-10-02"),
        ("2026-11-14", "2026-11-15", "2026-11-13..2026-11-13"),
        ("2026-11-15", "2026-11-15", None),
        ("2026-12-01", "2026-12-31", None),
    ],
)
def test_what_it_is_compared_with(first: str, last: str, before: str | None) -> None:
    found = comparison(shown(first, last), date(2026, 11, 15))
    assert (found and found.window_before) == before


DAYS = st.dates(date(2020, 1, 1), date(2030, 12, 31))


@given(first=DAYS, days=st.integers(1, 400), today=DAYS)
def test_only_equal_periods_are_compared(first: date, days: int, today: date) -> None:
    """Neither has a day that is not over, and no day is in both."""
    window = shown(first.isoformat(), (first + timedelta(days=days - 1)).isoformat())
    found = comparison(window, today)
    if found is None:
        assert first >= today
        return
    assert found.last - found.first == found.last_before - found.first_before
    assert found.last_before < found.first == first
    assert found.last < today
    assert found.last == min(window.last_day, today - timedelta(days=1))


def test_a_month_is_compared_with_the_beginning_of_the_month_before() -> None:
    names = []
    for first, last in (
        ("2026-11-01", "2026-11-30"),
        ("2026-11-09", "2026-11-15"),
        ("2026-11-14", "2026-11-15"),
    ):
        found = comparison(shown(first, last), date(2026, 11, 15))
        names.append(found and found.name_before)
    assert names == ["the first 14 days of the month before", "the 6 days before", "the day before"]


def test_days_before_the_first_record_are_not_compared_with() -> None:
    """A fleet that began in the middle of the previous period would seem to have doubled its cost."""
    window, today = shown("2026-11-09", "2026-11-15"), date(2026, 11, 16)
    found = comparison(window, today, date(2026, 11, 1))
    assert found is not None and found.first_before == date(2026, 11, 2)
    for began in (date(2026, 11, 2), date(2026, 11, 5)):  # part of the first day counts as unknown
        assert comparison(window, today, began) is None


def test_months() -> None:
    assert months_until(date(2027, 1, 5), 3) == ["2027-01", "2026-12", "2026-11"]
    assert month_beside("2026-12") == ("2026-11", "2027-01")
