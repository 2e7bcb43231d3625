"""Sum what GPUs did for a query, as `UsageStore` sums what was held: by span, supply and labels.

Whole days come from the sums by day, the rest of a span from those by hour. Names of jobs, which those do not
have, come from the sums by job and hour: as many rows as jobs ran in each hour of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import UsageTooFine
from fairway.ledger.records.costs import LocalTime, UsageView
from fairway.ledger.schema.telemetry import PEAK
from fairway.ledger.sql_values import seconds, supply
from fairway.ledger.usage.spans import (
    NARROW,
    PLACES,
    SETTINGS,
    SLOTS,
    SpanSplitter,
    SplitSpans,
    TimeSlots,
    UsageCondition,
    column_of,
)
from fairway.model.charge import Label
from fairway.model.gpu_use import GpuUse, GpuUseSum, MetricCode

SECONDS: Final = 60.0
MAX_SUMS: Final = 1_000_000
"""In one answer."""

_NEWEST: Final = "SELECT max(hour) FROM use_hour"

# By class first, lest the planner join while there are still many rows.
_BY_CLASS: Final = """
    WITH summed AS MATERIALIZED (
        SELECT {slot}, class, {sums}
        FROM {table} {slots} WHERE {time} BETWEEN :first AND :last {narrow}
        GROUP BY 1, class
    )
    SELECT place, pool, slice, {labels} {sums}
    FROM summed JOIN job_class ON job_class.id = class JOIN {places} USING (slot, pool)
    WHERE {of_class}
    GROUP BY {labels} place, pool, slice LIMIT :limit
"""

_BY_JOB: Final = """
    WITH summed AS MATERIALIZED (
        SELECT slot, job, {sums}
        FROM job_use {slots} WHERE hour BETWEEN :first AND :last
        GROUP BY slot, job
    )
    SELECT place, pool, slice, {labels} {sums}
    FROM summed JOIN (SELECT id AS job, class, name FROM job) AS named USING (job)
    JOIN job_class ON job_class.id = class JOIN {places} USING (slot, pool)
    WHERE {of_class} AND {of_name}
    GROUP BY {labels} place, pool, slice LIMIT :limit
"""


class GpuUseTotals(LedgerStore):
    """Reads totals of what GPUs did."""

    async def sums(
        self, view: UsageView, codes: Sequence[MetricCode] = tuple(MetricCode), *, local: LocalTime
    ) -> tuple[GpuUseSum, ...]:
        """Return the metrics of `codes` in each span of each pool, grouped by the view's labels.

        Raises UsageTooFine if there are too many of them.
        """
        pools = view.which.pools
        spans = {p: spans for p, spans in view.spans.items() if pools is None or p in pools}
        if not any(s.start < s.end for of_pool in spans.values() for s in of_pool):
            return ()
        async with self._connections.transaction(seconds=SECONDS) as connection:
            for setting in (*SETTINGS, f"SET LOCAL statement_timeout = {round(SECONDS * 1000)}"):
                await connection.execute(text(setting))
            newest = (await connection.execute(text(_NEWEST))).scalar()
            if newest is None:
                return ()
            splitter = SpanSplitter(
                local, with_day=Label.DAY in view.by, by_hour=view.by_job, newest=seconds(newest)
            )
            query = _TotalsQuery(view, splitter.split(spans), UsageCondition.of(view.which, spans), codes)
            return await query.read(connection)


class _TotalsQuery:
    """A view while it is answered."""

    def __init__(
        self, view: UsageView, split: SplitSpans, condition: UsageCondition, codes: Sequence[MetricCode]
    ) -> None:
        self._split = split
        self._condition = condition
        self._codes = tuple(codes)
        self._raw = view.by_job
        self._columns = [column_of(label) for label in view.by if label is not Label.DAY]
        self._days = [n for n, label in enumerate(view.by) if label is Label.DAY]
        self._found: dict[tuple[int, str, str, tuple[str, ...]], GpuUseSum] = {}

    async def read(self, connection: AsyncConnection) -> tuple[GpuUseSum, ...]:
        split = self._split
        for table, time, type_, slots in (
            ("use_day", "day", "date", split.days),
            ("use_hour", "hour", "timestamptz", split.hours),
        ):
            if slots.times:
                await self._add(connection, self._statement(table, time, type_, slots), slots)
        if len(self._found) >= MAX_SUMS:
            raise UsageTooFine(
                "UsageTooFine",
                f"the result would have more than {MAX_SUMS:,} lines",
                "use a shorter window or fewer groups, or select a team or pool",
            )
        return tuple(self._found[key] for key in sorted(self._found))

    def _statement(self, table: str, time: str, type_: str, slots: TimeSlots) -> str:
        added = [name for code in self._codes for name in (code.value, f"{code.value}_seconds")]
        sums = ", ".join(f"sum({name}) AS {name}" for name in (*added, "idle"))
        consecutive = not self._raw and slots.are_consecutive_days()
        condition = self._condition
        return (_BY_JOB if self._raw else _BY_CLASS).format(
            sums=f"{sums}, max({PEAK}) AS {PEAK}",
            slot="0 AS slot" if consecutive else "slot",
            slots="" if consecutive else SLOTS.format(type=type_, time=time),
            time=time,
            table=table,
            narrow=NARROW.format(of_class=condition.of_class) if condition.narrow else "",
            of_class=condition.of_class,
            of_name=condition.of_name,
            labels="".join(f"{column}, " for column in self._columns),
            places=PLACES,
        )

    async def _add(self, connection: AsyncConnection, statement: str, slots: TimeSlots) -> None:
        values = slots.values() | self._condition.values | {"limit": MAX_SUMS}
        count = len(self._columns)
        for place, pool, slice_, *rest in await connection.execute(text(statement), values):
            span, day = self._split.places[place]
            labels = list(rest[:count])
            for n in self._days:
                labels.insert(n, day)
            *sums, idle, peak = rest[count:]
            use = GpuUse(
                dict(zip(self._codes, sums[::2], strict=True)),
                dict(zip(self._codes, sums[1::2], strict=True)),
                peak,
            )
            key = (span, pool, slice_, tuple(labels))
            one = GpuUseSum(span, supply(pool, slice_), key[3], use, idle)
            self._found[key] = self._found[key].plus(one) if key in self._found else one
