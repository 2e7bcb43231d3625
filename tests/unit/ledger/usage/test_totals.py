"""Sums of usage are those of the rows, whatever is asked; what runs is counted up to now, once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from fairway.ledger import Ledger, UsageFilter
from fairway.model.charge import Label, Span
from fairway.model.names import PoolName
from tests.unit.ledger.usage_samples import (
    UTC_CALENDAR,
    Book,
    Class,
    Dice,
    Row,
    by_hand,
    calendar,
    told,
)

HOUR = 3600
DAY = UTC_CALENDAR.day_start(date(2026, 10, 1))
A100 = PoolName("a100")
ALL = UsageFilter()


@pytest.fixture
def book(database_url: str) -> Iterator[Book]:
    opened = Book(database_url)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("UTC", date(2026, 10, 28)),
        ("Europe/Berlin", date(2026, 10, 23)),  # an hour twice
        ("America/New_York", date(2028, 2, 26)),  # a leap day
        ("America/New_York", date(2026, 3, 5)),  # an hour left out
        ("Asia/Kolkata", date(2026, 12, 29)),
        ("Australia/Lord_Howe", date(2026, 4, 2)),  # half an hour twice
    ],
)
async def test_sums_are_those_of_the_rows(database_url: str, ledger: Ledger, zone: str, first: date) -> None:
    local = calendar(zone)
    dice = Dice(7, local, first, 6)
    book = Book(database_url, local)
    rows = dice.rows(400)
    await book.add(ledger, rows)
    empty = 0
    for _ in range(60):
        spans, by, which = dice.spans(), dice.by(), dice.which()
        found = told(await ledger.usage.sums(spans, by, which, None, local=local))
        assert found == by_hand(rows, spans, by, which, local), (spans, by, which)
        empty += not found
    assert empty < 40
    book.close()


async def test_whole_days_come_from_the_sums_by_day_and_the_rest_from_hours(
    ledger: Ledger, book: Book
) -> None:
    await book.add(ledger, [Row(Class(), DAY + n * HOUR, HOUR, 1) for n in range(72)])
    book.db.execute("UPDATE usage_day SET device_seconds = 2000000")
    book.db.execute("UPDATE usage_team_day SET device_seconds = 1000000")
    spans = {A100: [Span(DAY - 5 * HOUR, DAY + 50 * HOUR)]}
    by_team = 2 * 1000000 + 2 * HOUR  # by team and place there are sums of fewer rows
    by_class = 2 * 2000000 + 2 * HOUR
    for by, which, wanted in (
        ([], ALL, by_team),
        ([Label.TEAM, Label.POOL, Label.SLICE, Label.CLUSTER], ALL, by_team),
        ([Label.TEAM], UsageFilter(teams=frozenset({Class().team}), pools=frozenset({A100})), by_team),
        ([Label.TEAM, Label.USER], ALL, by_class),
        ([Label.TEAM, Label.SERVICE], ALL, by_class),
        ([], UsageFilter(priorities=frozenset({Class().priority})), by_class),
        ([], UsageFilter(users=frozenset({Class().user})), by_class),
    ):
        (found,) = await ledger.usage.sums(spans, by, which, None, local=UTC_CALENDAR)
        assert found.device_seconds == wanted, (by, which)


async def test_sums_by_team_follow_whatever_writes_sums_by_day(ledger: Ledger, book: Book) -> None:
    """An older release, which may run during an upgrade, does not know them."""
    theirs = [Class(team="nlp"), Class(team="nlp", user="eve"), Class(team="vision", slice="1g.10gb")]
    await book.add(ledger, [Row(of, DAY + n * HOUR, HOUR, 1) for n in range(30) for of in theirs])
    first, second, third = (book.number(of) for of in theirs)

    def agree() -> int:
        """What the sums by day sum to by team is there; how many rows."""
        by_class = book.db.execute(
            "SELECT day, cluster, team, pool, slice, sum(device_seconds)::bigint FROM usage_day"
            " JOIN job_class ON id = class GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"
        ).fetchall()
        by_team = "SELECT * FROM usage_team_day WHERE device_seconds <> 0 ORDER BY 1, 2, 3, 4, 5"
        assert by_class == book.db.execute(by_team).fetchall()
        return len(by_class)

    assert agree() == 4
    for change in (
        f"UPDATE usage_day SET device_seconds = device_seconds - 1000 WHERE class = {second}",
        f"UPDATE usage_day SET class = {third} WHERE class = {first}"
        f" AND day NOT IN (SELECT day FROM usage_day WHERE class = {third})",
        f"INSERT INTO usage_day SELECT day, {first}, 7 FROM usage_day WHERE class = {third}"
        " ON CONFLICT (day, class) DO UPDATE SET device_seconds = usage_day.device_seconds + 7",
        f"DELETE FROM usage_day WHERE class = {third}",
    ):
        book.db.execute(change)
        agree()
    assert agree() == 2


async def test_a_day_that_runs_comes_from_its_sum_unless_there_is_something_later(
    ledger: Ledger, book: Book
) -> None:
    await book.add(ledger, [Row(Class(), DAY + n * HOUR, HOUR, 1) for n in range(10)])
    book.db.execute("UPDATE usage_team_day SET device_seconds = 1000000")
    today = {A100: [Span(DAY, DAY + 10 * HOUR)], PoolName("h100"): [Span(DAY, DAY + 9 * HOUR)]}
    (found,) = await ledger.usage.sums(today, [], ALL, None, local=UTC_CALENDAR)
    assert found.device_seconds == 1000000
    (found,) = await ledger.usage.sums({A100: today[PoolName("h100")]}, [], ALL, None, local=UTC_CALENDAR)
    assert found.device_seconds == 9 * HOUR
    from_two = {A100: [Span(DAY + 2 * HOUR, DAY + 10 * HOUR)]}
    (found,) = await ledger.usage.sums(from_two, [], ALL, None, local=UTC_CALENDAR)
    assert found.device_seconds == 8 * HOUR


async def test_nothing_asked_nothing_told(ledger: Ledger) -> None:
    every: list[dict[PoolName, list[Span]]] = [{}, {A100: []}, {A100: [Span(DAY, DAY)]}, SPANS]
    for spans in every:
        assert await ledger.usage.sums(spans, [Label.TEAM], ALL, DAY, local=UTC_CALENDAR) == ()


NOW = DAY + 10 * HOUR + 600
SPANS = {A100: [Span(DAY, DAY + 10 * HOUR), Span(DAY + 10 * HOUR, DAY + 24 * HOUR)]}


async def live(ledger: Ledger, until: int | None = NOW, by: tuple[Label, ...] = ()) -> dict[object, int]:
    found = await ledger.usage.sums(SPANS, by, ALL, until, local=UTC_CALENDAR)
    return {(s.span, *s.labels): s.device_seconds for s in found}


async def test_what_runs_counts_up_to_now(ledger: Ledger, book: Book) -> None:
    book.job(1, Class(), state="running")
    book.attempt(1, DAY + 9 * HOUR + 0.7, devices=4)
    assert await live(ledger, None) == {}
    assert await live(ledger) == {(0,): 4 * HOUR, (1,): 4 * 600}
    book.metered(1, Class(), DAY + 9 * HOUR, DAY + 10 * HOUR, 4)
    assert await live(ledger) == {(1,): 4 * 600}
    assert await live(ledger, NOW + 60) == {(1,): 4 * 660}
    left = "INSERT INTO left_cluster (cluster, revision, seen_at) VALUES ('hpc', 2, to_timestamp(%s))"
    book.db.execute(left, (NOW - 500,))
    assert await live(ledger) == {(1,): 4 * 100}  # its cluster left the fleet: only what was seen counts
    book.db.execute("DELETE FROM left_cluster")
    assert await live(ledger, DAY) == {}  # a clock that is behind takes nothing away


async def test_what_is_metered_beyond_a_window_is_not_looked_for_in_it(ledger: Ledger, book: Book) -> None:
    book.job(1, Class(), state="running")
    book.attempt(1, DAY + 9 * HOUR)
    before = {A100: [Span(DAY, DAY + 10 * HOUR)]}

    async def held() -> int:
        found = await ledger.usage.sums(before, [], ALL, NOW, local=UTC_CALENDAR)
        return sum(s.device_seconds for s in found)

    assert await held() == HOUR
    book.db.execute("INSERT INTO meter_mark VALUES ('hpc', to_timestamp(%s))", (DAY + 9 * HOUR,))
    assert await held() == HOUR  # not beyond it yet
    book.db.execute("UPDATE meter_mark SET metered_to = to_timestamp(%s)", (DAY + 10 * HOUR,))
    assert await held() == 0  # it would be in the sums
    book.to_meter(1)
    assert await held() == HOUR  # the meter has still to look at it


async def test_what_runs_is_told_apart_too(ledger: Ledger, book: Book) -> None:
    book.job(1, Class(user="bob"), "tune", state="running")
    book.job(2, Class(user="ann"), "tune", state="running")
    book.job(3, Class(user="ann", pool=""), state="running")
    book.job(4, Class(user="ann"), state="waiting")
    for id_ in (1, 2, 3, 4):
        book.attempt(id_, DAY + 9 * HOUR, *((DAY + 10 * HOUR,) if id_ == 4 else ()))
    book.db.execute("UPDATE attempt SET started_at = started_at - interval '1 day' WHERE job = 2")
    yesterday = {A100: [Span(DAY - 86400, DAY + 86400)]}
    by = [Label.USER, Label.DAY, Label.NAME]
    found = told(await ledger.usage.sums(yesterday, by, ALL, NOW, local=UTC_CALENDAR))
    assert found == {
        (0, "a100", "", ("bob", "2026-10-01", "tune")): HOUR + 600,
        (0, "a100", "", ("ann", "2026-09-30", "tune")): 15 * HOUR,
        (0, "a100", "", ("ann", "2026-10-01", "tune")): 10 * HOUR + 600,
    }
    only = UsageFilter(users=frozenset({"bob"}), names=frozenset({"tune"}))
    (bob,) = await ledger.usage.sums(yesterday, [], only, NOW, local=UTC_CALENDAR)
    assert bob.device_seconds == HOUR + 600


async def test_attempts_are_told_apart_by_their_outcome(ledger: Ledger, book: Book) -> None:
    """What is metered and what is not yet, as the attempt ended by now."""
    of = Class()
    rows = [Row(of, DAY + 8 * HOUR, HOUR, 2, job) for job in (1, 2, 3)]
    await book.add(ledger, rows)
    book.attempt(1, DAY + 8 * HOUR, DAY + 9 * HOUR, devices=2, ending="preempted")
    book.attempt(2, DAY + 8 * HOUR, DAY + 9 * HOUR + 100, devices=2, ending="failed")
    book.metered(2, of, DAY + 8 * HOUR, DAY + 9 * HOUR, devices=2)
    book.to_meter(2)
    book.attempt(3, DAY + 8 * HOUR, DAY + 9 * HOUR, devices=2, ending="preempted")
    book.job(4, of, state="running")
    book.attempt(4, NOW - 50)
    spans = {A100: [Span(DAY, DAY + 86400)]}
    found = await ledger.usage.sums(spans, [Label.OUTCOME], ALL, NOW, local=UTC_CALENDAR)
    assert {s.labels[0]: s.device_seconds for s in found} == {
        "preempted": 4 * HOUR,
        "failed": 2 * HOUR + 200,
        "running": 50,
    }


async def test_what_ended_and_is_not_metered_yet_counts(ledger: Ledger, book: Book) -> None:
    book.job(1, Class())
    book.attempt(1, DAY + 9 * HOUR, DAY + 10 * HOUR + 100)
    book.metered(1, Class(), DAY + 9 * HOUR, DAY + 10 * HOUR)
    assert await live(ledger) == {}  # nobody said so
    book.to_meter(1)
    book.to_meter(1)
    assert await live(ledger) == {(1,): 100}


async def test_what_is_to_be_corrected_is_corrected_already(ledger: Ledger, book: Book) -> None:
    of, other = Class(), Class(user="bob")
    await book.add(ledger, [Row(of, DAY + 9 * HOUR, HOUR, 1, 1)])
    book.attempt(1, DAY + 9 * HOUR, DAY + 9 * HOUR + 1000)
    book.metered(1, of, DAY + 9 * HOUR, DAY + 10 * HOUR)
    book.to_meter(1)
    assert await live(ledger) == {(0,): 1000}  # it ended earlier than was thought
    book.db.execute("UPDATE attempt SET devices = 3")
    assert await live(ledger) == {(0,): 3000}  # and held more
    book.db.execute("UPDATE job SET class = %s", (book.number(other),))
    assert await live(ledger, by=(Label.USER,)) == {(0, "bob"): 3000}  # and was another's
    book.db.execute("UPDATE attempt SET ended_at = NULL, ending = 'lost'")
    assert await live(ledger, by=(Label.USER,)) == {(0, "bob"): 3 * HOUR}  # nobody knows when it ended
    book.db.execute("DELETE FROM attempt")
    assert await live(ledger, by=(Label.USER,)) == {}  # and never was
