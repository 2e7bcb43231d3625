"""Old months leave PostgreSQL and stay answerable: every row once, whatever is killed or corrected."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import date
from pathlib import Path

import polars as pl
import psycopg
import pytest

from fairway.ledger import ArchivedPart, ArchiveMissing, ArchiveUnreachable, Ledger, UsageFilter
from fairway.ledger.errors import UsageTooFine
from fairway.ledger.usage import archive
from fairway.ledger.usage.archive import Archive
from fairway.model.charge import Label, Span
from fairway.model.names import PoolName
from tests.tier import sized
from tests.unit.ledger.usage_samples import UTC_CALENDAR, Book, Dice, Row, by_hand, told

FIRST = date(2026, 8, 28)
AUGUST, SEPTEMBER = date(2026, 8, 1), date(2026, 9, 1)
TODAY = date(2026, 11, 15)


class Stage:
    """A ledger with rows of two months, and a folder for an archive."""

    def __init__(self, ledger: Ledger, book: Book, folder: Path) -> None:
        self.ledger = ledger
        self.book = book
        self.folder = folder
        self.dice = Dice(11, UTC_CALENDAR, FIRST, 8)
        self.rows: list[Row] = []

    async def add(self, count: int) -> None:
        rows = self.dice.rows(count)
        self.rows += rows
        await self.book.add(self.ledger, rows)

    async def check(self, questions: int = 8) -> None:
        """Whatever is asked by name is what the rows say."""
        for _ in range(questions):
            spans, which = self.dice.spans(), self.dice.which()
            others = {*Label} - {Label.NAME, Label.OUTCOME}
            by = [*(label for label in self.dice.by() if label in others), Label.NAME]
            found = told(await self.ledger.usage.sums(spans, by, which, None, local=UTC_CALENDAR))
            assert found == by_hand(self.rows, spans, by, which, UTC_CALENDAR)

    def here(self) -> int:
        return int(self.book.one("SELECT count(*) FROM usage"))


@pytest.fixture
async def stage(ledger: Ledger, database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    book = Book(database_url)
    ledger.usage.use_archive((tmp_path / "archive").as_uri())
    found = Stage(ledger, book, tmp_path / "archive")
    await found.add(300)
    yield found
    book.close()


async def test_outcomes_are_asked_of_what_is_not_archived(stage: Stage) -> None:
    spans = {PoolName(row.of.pool): [Span(row.hour, row.hour + 3600)] for row in stage.rows}
    assert await stage.ledger.usage.sums(spans, [Label.OUTCOME], UsageFilter(), None, local=UTC_CALENDAR)
    await stage.ledger.usage.archive_month(AUGUST)
    with pytest.raises(UsageTooFine, match="usage of 2026-08 is archived, without the outcomes"):
        await stage.ledger.usage.sums(spans, [Label.OUTCOME], UsageFilter(), None, local=UTC_CALENDAR)


async def test_sums_are_the_same_before_and_after(stage: Stage) -> None:
    await stage.check()
    before = stage.here()
    (part,) = await stage.ledger.usage.archive_month(AUGUST)
    assert stage.here() == before - part.rows
    assert part.rows > 100
    assert (stage.folder / part.path).stat().st_size == part.bytes
    await stage.check()
    await stage.ledger.usage.archive_month(SEPTEMBER)
    assert stage.here() == 0
    await stage.check()


async def test_others_can_read_it(stage: Stage) -> None:
    (part,) = await stage.ledger.usage.archive_month(AUGUST)
    frame = pl.read_parquet(stage.folder / part.path)
    rows = [row for row in stage.rows if row.hour < UTC_CALENDAR.month_end(AUGUST)]
    assert frame.height == len(rows)
    assert frame["class"].is_sorted()
    assert sorted(frame["name"].unique()) == sorted({row.name for row in rows})
    sums = frame.select((pl.col("seconds") * pl.col("devices")).sum()).item()
    assert sums == sum(row.seconds * row.devices for row in rows)
    assert frame["hour"].min().timestamp() == min(row.hour for row in rows)  # type: ignore[union-attr]


async def test_late_corrections_are_counted_and_follow(stage: Stage) -> None:
    await stage.ledger.usage.archive_month(AUGUST)
    assert await stage.ledger.usage.archive_month(AUGUST) == ()
    await stage.add(50)
    assert stage.here() > 0
    await stage.check()
    (late,) = await stage.ledger.usage.archive_month(AUGUST)
    assert late.path == "usage/2026-08/2/00000.parquet"
    await stage.check()


async def test_which_are_due(stage: Stage) -> None:
    ledger = stage.ledger
    assert await ledger.usage.due_for_archive(3, TODAY) == ()
    assert await ledger.usage.due_for_archive(2, TODAY) == (AUGUST,)
    assert await ledger.usage.due_for_archive(1, TODAY) == (AUGUST, SEPTEMBER)
    await ledger.usage.archive_month(AUGUST)
    assert await ledger.usage.due_for_archive(1, TODAY) == (SEPTEMBER,)
    await stage.add(50)
    assert await ledger.usage.due_for_archive(1, TODAY) == (AUGUST, SEPTEMBER)
    assert await ledger.usage.archive_month(date(2020, 1, 1)) == ()


async def test_several_objects_a_month(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BLOCKS", 1)
    parts = await stage.ledger.usage.archive_month(AUGUST)
    assert len(parts) > 1
    assert [part.path for part in parts] == [f"usage/2026-08/1/{n:05}.parquet" for n in range(len(parts))]
    await stage.check()


class Killed(BaseException):
    """As good as kill -9: nothing is tidied up that a dead process would not tidy up."""


STEPS = ("_take_out", "_copied", "_rows", "_compare", "_finish")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_cut_short_anywhere_it_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    real: Callable[..., Awaitable[object]] = getattr(archive, step)

    async def cut_short(*given: object) -> object:
        if when == "after":
            await real(*given)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(archive, step, cut_short)
        with pytest.raises(Killed):
            await stage.ledger.usage.archive_month(AUGUST)
    await stage.add(40)
    await stage.check(5)
    while AUGUST in await stage.ledger.usage.due_for_archive(2, TODAY):
        await stage.ledger.usage.archive_month(AUGUST)
        await stage.check(2)
    assert stage.here() == sum(row.hour >= UTC_CALENDAR.month_end(AUGUST) for row in stage.rows)
    await stage.check(5)


KILLED = """
import asyncio, sys
from datetime import date
from fairway.ledger import Ledger
from fairway.ledger.usage import archive

async def main():
    archive.BLOCKS = 1
    ledger = await Ledger.connect(sys.argv[1])
    ledger.usage.use_archive(sys.argv[2])
    print("open", flush=True)
    while True:
        await ledger.usage.archive_month(date(2026, 8, 1))

asyncio.run(main())
"""


async def test_killed_at_any_moment_not_a_row_is_lost_or_doubled(stage: Stage, database_url: str) -> None:
    dice = random.Random(3)
    for _ in range(sized(ci=2, nightly=12)):
        await stage.add(60)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, database_url, stage.folder.as_uri(), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        await asyncio.sleep(dice.random() * 0.6)
        process.kill()
        await process.wait()
        await stage.check(4)
    # The lock of one that was killed goes with its connection.
    async with asyncio.timeout(120):
        while AUGUST in await stage.ledger.usage.due_for_archive(2, TODAY):
            await stage.ledger.usage.archive_month(AUGUST)
    await stage.check(5)


async def test_questions_meanwhile_see_every_row_once(stage: Stage) -> None:
    async def move() -> None:
        for _ in range(6):
            await stage.ledger.usage.archive_month(AUGUST)
            await stage.ledger.usage.archive_month(SEPTEMBER)
            await asyncio.sleep(0.01)

    moving = asyncio.create_task(move())
    asked = 0
    while not moving.done() or asked < 5:
        await stage.check(1)
        asked += 1
    await moving


async def test_servers_at_once_archive_it_once(stage: Stage, database_url: str) -> None:
    ledgers = [await Ledger.connect(database_url) for _ in range(4)]
    for ledger in ledgers:
        ledger.usage.use_archive(stage.folder.as_uri())
    done = await asyncio.gather(*(ledger.usage.archive_month(AUGUST) for ledger in ledgers))
    assert sum(bool(parts) for parts in done) == 1
    for ledger in ledgers:
        await ledger.close()
    await stage.check()


class Broken(Archive):
    """A store that gives back other bytes than it took."""

    async def get(self, path: str) -> bytes:
        return (await super().get(path))[:-1] + b"?"


async def test_a_store_that_does_not_keep_it_costs_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stage.ledger.usage, "_archive", Broken((stage.folder / "other").as_uri()))
        with pytest.raises(ArchiveUnreachable, match="other data than was written"):
            await stage.ledger.usage.archive_month(AUGUST)
    await stage.check()
    stage.ledger.usage.use_archive("s3://nowhere-at-all/x?endpoint=http://127.0.0.1:9")
    monkeypatch.setattr(archive, "STORE_SECONDS", 1)
    with pytest.raises(ArchiveUnreachable) as caught:
        await stage.ledger.usage.archive_month(AUGUST)
    assert "endpoint" not in caught.value.message  # what is behind the ? may be a key
    await stage.check()


async def test_rows_that_went_missing_on_the_way_are_noticed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = archive._rows

    async def lossy(*given: object) -> bytes:
        rows = await real(*given)  # type: ignore[arg-type]
        return rows[rows.index(b"\n100") + 1 :] if b"\n100" in rows else rows[rows.rindex(b"\n1") + 1 :]

    monkeypatch.setattr(archive, "_rows", lossy)
    with pytest.raises(ArchiveUnreachable):
        await stage.ledger.usage.archive_month(AUGUST)
    await stage.check()


async def test_an_archive_that_is_gone_or_changed_is_said(stage: Stage, database_url: str) -> None:
    (part,) = await stage.ledger.usage.archive_month(AUGUST)
    whole = Span(UTC_CALENDAR.day_start(FIRST), UTC_CALENDAR.day_start(SEPTEMBER))
    spans = {pool: [whole] for pool in stage.dice.spans()}

    async def ask(ledger: Ledger, *by: Label) -> object:
        return await ledger.usage.sums(spans, by, UsageFilter(), None, local=UTC_CALENDAR)

    other = await Ledger.connect(database_url)
    with pytest.raises(ArchiveMissing, match="not configured for"):
        await ask(other, Label.NAME)
    assert await ask(other, Label.TEAM)  # the sums stayed
    with pytest.raises(ArchiveMissing):
        await other.usage.archive_month(AUGUST)
    await other.close()
    await _tampered(stage, part, lambda: ask(stage.ledger, Label.NAME))


async def _tampered(stage: Stage, part: ArchivedPart, ask: Callable[[], Awaitable[object]]) -> None:
    file = stage.folder / part.path
    kept = file.read_bytes()
    file.write_bytes(kept[:-20] + b"x" * 20)
    with pytest.raises(ArchiveMissing, match="not what Fairway wrote"):
        await ask()
    file.unlink()
    with pytest.raises(ArchiveMissing, match="has no object"):
        await ask()
    file.write_bytes(kept)
    assert await ask()


async def test_a_month_nobody_could_name(stage: Stage, database_url: str) -> None:
    """Jobs that are gone have no name."""
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("DELETE FROM job")
    await stage.ledger.usage.archive_month(AUGUST)
    assert pl.read_parquet(next(stage.folder.rglob("*.parquet")))["name"].unique().to_list() == [""]
