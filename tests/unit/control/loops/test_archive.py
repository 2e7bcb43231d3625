"""Months that are old enough leave by themselves, one a round."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from fairway.control.loops.archive import ArchiveUsage
from fairway.ledger import Ledger
from tests.unit.ledger.usage_samples import UTC_CALENDAR, Book, Dice

FIRST = date(2026, 8, 28)


async def test_one_month_a_round_the_oldest_first(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    ledger.usage.use_archive((tmp_path / "archive").as_uri())
    book = Book(database_url)
    await book.add(ledger, Dice(7, UTC_CALENDAR, FIRST, 8).rows(200))
    clock = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
    archive = ArchiveUsage(ledger, keep_months=1, clock=lambda: clock)
    lease = await ledger.leases.take("archive", "", "me", 30)
    assert lease is not None
    months: list[int] = []
    for _ in range(3):
        months.append(int(book.one("SELECT count(DISTINCT date_trunc('month', hour, 'UTC')) FROM usage")))
        await archive(lease)
    book.close()
    assert months == [2, 1, 0]
