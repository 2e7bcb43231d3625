"""What a `Ledger` answers, and keeps, of usage and money."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

from fairway.ledger import archive, budget_rows, capacity_sums, closing, partitions, price_points, usage_sums
from fairway.ledger.archive import Archive
from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import (
    ArchivedPart,
    BudgetEvent,
    BudgetStanding,
    ClosedCharge,
    ClosedMonth,
    LocalTime,
    PricePointRow,
    UsageFilter,
    UsageView,
)
from fairway.ledger.errors import ArchiveMissing
from fairway.model.charge import CapacitySum, Label, Span, UsageSum
from fairway.model.names import PoolName
from fairway.model.price import PricePoint


class CostAnswers:
    """The part of `Ledger` that is about usage and money."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._archive: Archive | None = None

    def use_archive(self, url: str) -> None:
        """Where old months are put, and read from: `s3://bucket/prefix`, `file:///folder`, …"""
        self._archive = Archive(url)

    async def due_for_archive(self, keep_months: int, today: date) -> tuple[date, ...]:
        """Months older than that of which raw rows are still in PostgreSQL, oldest first; cheap."""
        return await archive.due(self._connections, keep_months, today)

    async def archive_month(self, month: date) -> tuple[ArchivedPart, ...]:
        """Move a month's raw rows to the archive; what was put there, nothing if there was nothing to do.

        Takes minutes, never in one transaction; killed anywhere, the next call goes on. Any number of servers
        may call it. Raises ArchiveMissing without an archive, ArchiveUnreachable if it does not do as asked.
        """
        if self._archive is None:
            raise ArchiveMissing(
                "ArchiveMissing", "no archive is configured", "set FAIRWAY_ARCHIVE_URL=s3://BUCKET/PREFIX"
            )
        return await archive.archive_month(self._connections, self._archive, month)

    async def ensure_partitions(self, hours: Iterable[int]) -> None:
        """See that usage of these hours can be written; before the transaction that does."""
        await partitions.ensure(self._connections, hours)

    async def usage_sums(
        self,
        spans: Mapping[PoolName, Sequence[Span]],
        by: Sequence[Label],
        which: UsageFilter,
        live_until: int | None,
        *,
        local: LocalTime,
    ) -> tuple[UsageSum, ...]:
        """Device-seconds in each span of each pool, by the labels asked for.

        With `live_until`, what runs counts up to then, metered or not.
        """
        view = UsageView(spans, tuple(by), which)
        return (await self.usage_views([view], live_until, local=local))[0]

    async def usage_views(
        self, asked: Sequence[UsageView], live_until: int | None, *, local: LocalTime
    ) -> tuple[tuple[UsageSum, ...], ...]:
        """The same for several views, all of one moment: what is in one is in the others."""
        return await usage_sums.views(self._connections, asked, live_until, local, self._archive)

    async def capacity_sums(
        self,
        window: Span,
        *,
        local: LocalTime,
        by_day: bool,
        clusters: Collection[str] | None = None,
        live_until: int | None = None,
    ) -> tuple[CapacitySum, ...]:
        """What there was by hour or day, in order; with `live_until`, up to then as it was last seen."""
        return await capacity_sums.sums(self._connections, window, by_day, clusters, live_until, local)

    async def price_points(
        self, pools: Collection[PoolName], window: Span
    ) -> Mapping[PoolName, tuple[PricePoint, ...]]:
        """Spot prices within the window, after the one that held when it began; by moment."""
        return await price_points.points(self._connections, pools, window)

    async def keep_price_points(self, points: Sequence[PricePointRow], *, by: str) -> int:
        """Add to what is known of spot prices; how many said something new."""
        return await price_points.keep(self._connections, points, by=by)

    async def close_month(
        self, month: date, charges: Sequence[ClosedCharge], *, by: str, currency: str, timezone: str
    ) -> ClosedMonth:
        """Keep a month's charges for good; raises MonthClosed, or MonthOpen if an earlier one is not."""
        return await closing.close(
            self._connections, month, charges, by=by, currency=currency, timezone=timezone
        )

    async def closed_months(self) -> tuple[ClosedMonth, ...]:
        """Every one, oldest first."""
        return await closing.months(self._connections)

    async def closed_charges(
        self, *, month: date | None = None, used_in: date | None = None
    ) -> tuple[tuple[date, ClosedCharge], ...]:
        """Charges with the month they were told in: those of `month`, those for `used_in`, or both."""
        return await closing.charges(self._connections, month=month, used_in=used_in)

    async def budget_standings(self) -> tuple[BudgetStanding, ...]:
        """Every team's that has a budget, by name."""
        return await budget_rows.standings(self._connections)

    async def budget_events(
        self, *, team: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[BudgetEvent, ...]:
        """At most `limit` (≤ 2000), newest first; `before` is the last id seen."""
        return await budget_rows.events(self._connections, team=team, before=before, limit=limit)
