"""Sum usage for a query, in one snapshot of the ledger.

Whole days come from the sums by day, the rest of a span from those by hour; job names, which the sums do not
have, from the raw rows: those in PostgreSQL, those being archived, and those in the archive. Running jobs are
metered by the hour: what they held since is added from the attempts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections, LedgerStore
from fairway.ledger.errors import ArchiveMissing, UsageTooFine
from fairway.ledger.records.costs import ArchivedPart, LocalTime, UsageFilter, UsageView
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import seconds, supply
from fairway.ledger.usage import archive
from fairway.ledger.usage.archive import Archive
from fairway.ledger.usage.spans import (
    NARROW,
    PLACES,
    SERVICE_NAME,
    SETTINGS,
    SLOTS,
    SpanSplitter,
    SplitSpans,
    TimeSlots,
    UsageCondition,
    column_of,
)
from fairway.model.charge import Dimension, JobLabel, Label, Span, UsageSum
from fairway.model.names import PoolName

SECONDS: Final = 60.0

RAW_SECONDS: Final = 600.0
"""Raw rows are read by whole months."""

MAX_SUMS: Final = 1_000_000
"""In one answer."""

# For a million sums by day, parallel workers double the work and save little time.
_NOT_PARALLEL: Final = "SET LOCAL max_parallel_workers_per_gather = 0"

_PARALLEL: Final = "SET LOCAL max_parallel_workers_per_gather TO DEFAULT"

# Step by step, lest the planner join while there are still many rows: by class, then by label, then by place.
_BY_CLASS: Final = """
    summed AS MATERIALIZED (
        SELECT {slot}, class, CAST(sum(device_seconds) AS bigint) AS device_seconds
        FROM {table} {slots}
        WHERE {time} BETWEEN :first AND :last {narrow}
        GROUP BY 1, class
    ), labelled AS MATERIALIZED (
        SELECT slot, pool, slice, {named} sum(device_seconds) AS device_seconds
        FROM summed JOIN job_class ON job_class.id = class WHERE {of_class}
        GROUP BY {labels} slot, pool, slice
    )
"""

# If days are separate there is one sum per class and day already: group by label at once.
_BY_LABEL: Final = """
    labelled AS MATERIALIZED (
        SELECT slot, pool, slice, {named} sum(device_seconds) AS device_seconds
        FROM {table} {slots} {classes}
        WHERE {time} BETWEEN :first AND :last AND {of_class}
        GROUP BY {labels} slot, pool, slice
    )
"""

_JOIN_CLASSES: Final = "JOIN job_class ON job_class.id = class"

_TEAM_COLUMNS: Final = frozenset({"cluster", "team", "pool", "slice"})
"""What the sums by team and day have. With nothing else, classes need not be read."""

_TOTALS: Final = """
    WITH {steps}
    SELECT place, pool, slice, {numbered} sum(device_seconds) AS device_seconds
    FROM labelled JOIN {places} USING (slot, pool)
    GROUP BY {numbered} place, pool, slice LIMIT :limit
"""

_SERVICES: Final = """
    (SELECT {time}, class, name, device_seconds FROM service_{time}
    JOIN (SELECT id AS job, name FROM job) AS named USING (job)) AS of_service
"""

_RAW: Final = """
    WITH slot AS (
        SELECT * FROM unnest(CAST(:times AS timestamptz[]), CAST(:slots AS int[])) AS slot (hour, slot)
    ), summed AS (
        SELECT slot, class, job{attempt}, sum(CAST(seconds AS bigint) * devices) AS device_seconds
        FROM ({tables}) AS rows JOIN slot USING (hour)
        WHERE hour BETWEEN :first AND :last AND class IN (SELECT id FROM job_class WHERE {of_class})
        GROUP BY slot, class, job{attempt}
    ), named AS (
        SELECT slot, summed.class, COALESCE(job.name, '') AS name, device_seconds{outcome}
        FROM summed LEFT JOIN job ON job.id = summed.job {outcomes}
    )
    SELECT place, pool, slice, {labels} sum(device_seconds) AS device_seconds
    FROM named JOIN job_class ON job_class.id = class JOIN {places} USING (slot, pool)
    WHERE {names}
    GROUP BY {labels} place, pool, slice LIMIT :limit
"""

_OUTCOME: Final = "COALESCE(ending, 'running') AS outcome"
_OUTCOMES: Final = "LEFT JOIN attempt ON attempt.job = summed.job AND attempt.number = summed.attempt"

_CLASSES: Final = (
    "SELECT id, cluster, team, user_name, pool, slice, priority, kind, service, project, labels"
    " FROM job_class WHERE {where}"
)

# A job whose class changed is in the meter's queue: only of other running jobs is the class checked first.
# They are metered up to their cluster's mark, so they add nothing to spans that end before it. Of a service,
# only the replicas that run are read, and those in the queue.
_UNMETERED: Final = """
    WITH running AS (
        SELECT job.id, job.class, state, service FROM job JOIN job_class ON job_class.id = job.class
        WHERE state = 'running' AND job.class IN (SELECT id FROM job_class WHERE {of_class})
            AND job.cluster NOT IN (SELECT cluster FROM meter_mark WHERE metered_to >= to_timestamp(:ends))
    ), candidate AS (
        SELECT id, min(class) AS class, min(state) AS state, unnest(
            CASE WHEN bool_or(attempt IS NULL) THEN ARRAY[CAST(NULL AS int)]
                ELSE array_agg(DISTINCT attempt) END
        ) AS attempt
        FROM (
            SELECT id, class, state, NULL AS attempt FROM running WHERE NOT service
            UNION ALL SELECT id, class, state, open.number FROM running CROSS JOIN LATERAL (
                SELECT number FROM attempt
                WHERE attempt.job = running.id AND replica <> '' AND ending IS NULL OFFSET 0
            ) AS open WHERE service
            UNION ALL SELECT to_meter.job, job.class, job.state, to_meter.attempt
            FROM to_meter LEFT JOIN job ON job.id = to_meter.job
        ) AS every GROUP BY id
    ), actual AS (
        SELECT attempt.job, attempt.number AS attempt, candidate.class, attempt.devices, pool, slice, ending,
            attempt.replica <> '' AS replica,
            floor(extract(epoch FROM attempt.started_at)) AS began,
            floor(extract(epoch FROM attempt.ended_at)) AS ended,
            attempt.ending IS NULL AND candidate.state IN ({open}) AS runs,
            -- Of a cluster that left the fleet, only what was seen counts.
            least(:until, floor(extract(epoch FROM left_cluster.seen_at))) AS until
        FROM candidate CROSS JOIN LATERAL (
            SELECT * FROM attempt WHERE job = candidate.id AND number {of_attempt} OFFSET 0
        ) AS attempt
        LEFT JOIN job_class ON job_class.id = candidate.class LEFT JOIN left_cluster USING (cluster)
    ), stored AS (
        SELECT job, metered.attempt, metered.class, pool, slice, devices,
            extract(epoch FROM started_at) AS began,
            extract(epoch FROM COALESCE(metered.metered_to, greatest(started_at, mark.metered_to))) AS upto
        FROM candidate CROSS JOIN LATERAL (
            SELECT * FROM metered WHERE job = candidate.id AND attempt {of_attempt} OFFSET 0
        ) AS metered
        JOIN job_class ON job_class.id = metered.class LEFT JOIN meter_mark AS mark USING (cluster)
    ), together AS (
        -- As the meter has it: see `metering`.
        SELECT job, actual.devices, actual.began, runs, ended, until, stored.class AS stored_class,
            COALESCE(ending, 'running') AS outcome,
            stored.devices AS stored_devices, stored.began AS stored_began, stored.upto,
            CASE WHEN actual.replica AND stored.class IS NOT NULL
                AND (ended IS NOT NULL OR (actual.pool, actual.slice) <> (stored.pool, stored.slice))
            THEN stored.class ELSE actual.class END AS class
        FROM actual FULL JOIN stored USING (job, attempt)
    ), both_ AS (
        SELECT job, class, devices, began, stored_class, stored_devices, stored_began, upto, outcome,
            COALESCE(class = stored_class AND devices = stored_devices AND began = stored_began, false)
                AS alike,
            CASE WHEN runs AND ended IS NULL THEN greatest(until, began, upto)
                ELSE COALESCE(ended, upto, began) END AS ended
        FROM together
    ), stretch AS (
        SELECT job, class, devices, upto AS began, ended, outcome FROM both_ WHERE alike AND ended > upto
        UNION ALL SELECT job, class, -devices, ended, upto, outcome FROM both_ WHERE alike AND ended < upto
        UNION ALL SELECT job, class, devices, began, ended, outcome FROM both_
            WHERE NOT alike AND class IS NOT NULL
        UNION ALL SELECT job, stored_class, -stored_devices, stored_began, upto, outcome FROM both_
            WHERE NOT alike AND stored_class IS NOT NULL
    )
    SELECT job_class.pool, job_class.slice, began, ended, sum(devices) AS devices {labels}
    FROM stretch JOIN job_class ON job_class.id = stretch.class {names}
    WHERE ended > began AND {of_class} AND {of_name}
    GROUP BY pool, slice, began, ended {labels}
    HAVING sum(devices) <> 0
"""

_OF_ATTEMPT: Final = "BETWEEN COALESCE(candidate.attempt, 0) AND COALESCE(candidate.attempt, 2147483647)"

_NAMES: Final = "LEFT JOIN (SELECT id AS job, name FROM job) AS named USING (job)"


class _SumTable:
    """Accumulates the sums of one view."""

    def __init__(self, by: Sequence[Dimension]) -> None:
        self._day = tuple(n for n, label in enumerate(by) if label is Label.DAY)
        self._sums: dict[tuple[int, str, str, tuple[str, ...]], int] = {}
        self.columns: Final = tuple(column_of(label) for label in by if label is not Label.DAY)
        """The columns of the labels except the day, which follows from the place."""

    def add(
        self, place: tuple[int, str], pool: str, slice_: str, labels: Sequence[str], device_seconds: int
    ) -> None:
        span, day = place
        all_labels = list(labels)
        for n in self._day:
            all_labels.insert(n, day)
        key = (span, pool, slice_, tuple(all_labels))
        self._sums[key] = self._sums.get(key, 0) + device_seconds

    def rows(self) -> tuple[UsageSum, ...]:
        """Return the sums in order, without zeros. Raises UsageTooFine."""
        if len(self._sums) >= MAX_SUMS:
            raise UsageTooFine(
                "UsageTooFine",
                f"the result would have more than {MAX_SUMS:,} lines",
                "use a shorter window or fewer groups, or select a team or pool",
            )
        return tuple(
            UsageSum(span, supply(pool, slice_), labels, total)
            for (span, pool, slice_, labels), total in sorted(self._sums.items())
            if total
        )


@dataclass(frozen=True, slots=True)
class _UnmeteredUsage:
    """Devices held over a period beyond what is metered; negative: less than that."""

    pool: str
    slice: str
    start: int
    end: int
    devices: int
    labels: tuple[str, ...]


class _ViewQuery:
    """A view while it is answered."""

    def __init__(self, view: UsageView, local: LocalTime) -> None:
        pools = view.which.pools
        self.view: Final = view
        self.spans: Final = {p: spans for p, spans in view.spans.items() if pools is None or p in pools}
        self.has_spans: Final = any(s.start < s.end for spans in self.spans.values() for s in spans)
        self.condition: Final = UsageCondition.of(view.which, self.spans)
        self.sums: Final = _SumTable(view.by)
        self._local: Final = local
        self._splitter: SpanSplitter
        self._split: SplitSpans
        self.parts: Sequence[ArchivedPart] = ()
        self._classes: dict[int, Mapping[str, Any]] = {}

    async def read(self, connection: AsyncConnection, newest: int | None) -> None:
        """Read everything but live and archived usage."""
        raw, with_day = self.view.raw, Label.DAY in self.view.by
        self._splitter = SpanSplitter(self._local, with_day=with_day, by_hour=raw, newest=newest)
        self._split = self._splitter.split(self.spans)
        if self._split.places:
            await (self._read_raw(connection) if raw else self._read_totals(connection))

    async def _read_totals(self, connection: AsyncConnection) -> None:
        await connection.execute(text(_PARALLEL if self._split.hours.times else _NOT_PARALLEL))
        by_service = SERVICE_NAME in self.sums.columns
        of_teams = _TEAM_COLUMNS.issuperset((*self.sums.columns, *self.condition.columns))
        for time, type_, slots in (
            ("day", "date", self._split.days),
            ("hour", "timestamptz", self._split.hours),
        ):
            if not slots.times:
                continue
            joined = SLOTS.format(type=type_, time=time)
            if time == "day" and of_teams:
                await self._read_table(
                    connection,
                    slots,
                    _BY_LABEL,
                    of_class=self.condition.of_class,
                    classes="",
                    slots=joined,
                    time=time,
                    table="usage_team_day",
                )
                continue
            consecutive = slots.are_consecutive_days()
            at_once = slots.are_mostly_single() and not consecutive and not self.condition.narrow
            await self._read_table(
                connection,
                slots,
                _BY_LABEL if at_once else _BY_CLASS,
                of_class=f"{self.condition.of_class} AND NOT service"
                if by_service
                else self.condition.of_class,
                slot="0 AS slot" if consecutive else "slot",
                slots="" if consecutive else joined,
                time=time,
                table=f"usage_{time}",
            )
            if by_service:
                await self._read_table(
                    connection,
                    slots,
                    _BY_LABEL,
                    of_class=f"{self.condition.of_class} AND service",
                    service="name",
                    slots=joined,
                    time=time,
                    table=_SERVICES.format(time=time),
                )

    async def _read_table(
        self,
        connection: AsyncConnection,
        of_time: TimeSlots,
        steps: str,
        *,
        of_class: str,
        service: str = "CAST('' AS text)",
        classes: str = _JOIN_CLASSES,
        **pieces: str,
    ) -> None:
        """Add the sums of a table; `service` is the column with the names of services."""
        columns = [service if column == SERVICE_NAME else column for column in self.sums.columns]
        names = [f"l{n}" for n in range(len(columns))]
        filled = steps.format(
            narrow=NARROW.format(of_class=of_class) if self.condition.narrow else "",
            of_class=of_class,
            classes=classes,
            named="".join(f"{c} AS {n}, " for c, n in zip(columns, names, strict=True)),
            labels="".join(f"{column}, " for column in columns),
            **pieces,
        )
        numbered = "".join(f"{name}, " for name in names)
        await self._add_rows(
            connection, _TOTALS.format(steps=filled, numbered=numbered, places=PLACES), of_time
        )

    async def _read_raw(self, connection: AsyncConnection) -> None:
        """Add the raw rows in PostgreSQL; find the archived objects that are still to be added."""
        by_outcome = self.view.by_outcome
        columns = "SELECT hour, class, job, attempt, seconds, devices FROM"
        tables = ["usage", *await archive.leaving(connection)]
        query = _RAW.format(
            tables=" UNION ALL ".join(f"{columns} {table}" for table in tables),
            of_class=self.condition.of_class,
            labels="".join(f"{column}, " for column in self.sums.columns),
            places=PLACES,
            names=self.condition.of_name,
            attempt=", attempt" if by_outcome else "",
            outcome=f", {_OUTCOME}" if by_outcome else "",
            outcomes=_OUTCOMES if by_outcome else "",
        )
        await self._add_rows(connection, query, self._split.hours)
        hours = [_hour(time) for time in self._split.hours.times]
        self.parts = await archive.parts(connection, min(hours), max(hours))
        if self.parts and by_outcome:
            raise UsageTooFine(
                "UsageTooFine",
                f"usage of {self.parts[-1].month:%Y-%m} is archived, without the outcomes of attempts",
                "request a later window, or the report without outcome",
            )
        if self.parts:
            classes = text(_CLASSES.format(where=self.condition.of_class))
            rows = await connection.execute(classes, self.condition.values)
            self._classes = {row.id: dict(row._mapping) for row in rows}

    async def _add_rows(self, connection: AsyncConnection, query: str, slots: TimeSlots) -> None:
        values = slots.values() | self.condition.values | {"limit": MAX_SUMS}
        for place, pool, slice_, *labels, device_seconds in await connection.execute(text(query), values):
            self.sums.add(self._split.places[place], pool, slice_, labels, int(device_seconds))

    async def add_archived(self, store: Archive | None) -> None:
        """Add the usage in the archived objects."""
        places: dict[tuple[int, str], list[int]] = {}
        hours = self._split.hours
        for slot, pool, place in zip(hours.pool_slots, hours.pools, hours.pool_places, strict=True):
            places.setdefault((slot, pool), []).append(place)
        slots = {_hour(time): slot for time, slot in zip(hours.times, hours.slots, strict=True)}
        rows = await archive.sums(store, self.parts, slots, self._classes, self.view.which.names)
        for slot, class_, name, device_seconds in rows:
            row = {**self._classes[class_], "name": name}
            row[SERVICE_NAME] = name if row["service"] else ""
            row |= {
                column_of(by): row["labels"].get(by.key, "")
                for by in self.view.by
                if isinstance(by, JobLabel)
            }
            labels = [str(row[column]) for column in self.sums.columns]
            for place in places.get((slot, row["pool"]), ()):
                key = self._split.places[place]
                self.sums.add(key, row["pool"], row["slice"] or NONE, labels, device_seconds)

    def add_unmetered(self, usage: Sequence[_UnmeteredUsage], columns: Sequence[str]) -> None:
        """Add unmetered usage, whose labels are those of `columns`."""
        if not usage:
            return
        positions = [columns.index(column) for column in self.sums.columns]
        earliest = min(one.start for one in usage)
        recent = {
            pool: [(number, span) for number, span in enumerate(spans) if span.end > earliest]
            for pool, spans in self.spans.items()
        }
        for one in usage:
            labels = [one.labels[n] for n in positions]
            for number, span in recent.get(PoolName(one.pool), ()):
                start, end = max(one.start, span.start), min(one.end, span.end)
                for place, length in self._splitter.places_of(number, start, end):
                    self.sums.add(place, one.pool, one.slice, labels, one.devices * length)


class UsageStore(LedgerStore):
    """Reads totals of usage, and moves old usage to the archive."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._archive: Archive | None = None

    def use_archive(self, url: str) -> None:
        """Set the archive of old months, such as `s3://bucket/prefix` or `file:///folder`."""
        self._archive = Archive(url)

    async def due_for_archive(self, keep_months: int, today: date) -> tuple[date, ...]:
        """Return months older than that whose raw rows are still in PostgreSQL, oldest first; cheap."""
        return await archive.due(self._connections, keep_months, today)

    async def archive_month(self, month: date) -> tuple[ArchivedPart, ...]:
        """Move a month's raw rows to the archive. Returns the new objects; empty if there was nothing to do.

        Takes minutes, never in one transaction; killed anywhere, the next call resumes. Any number of servers
        may call it. Raises ArchiveMissing without an archive, ArchiveUnreachable if the store fails.
        """
        if self._archive is None:
            raise ArchiveMissing(
                "ArchiveMissing", "no archive is configured", "set FAIRWAY_ARCHIVE_URL=s3://BUCKET/PREFIX"
            )
        return await archive.archive_month(self._connections, self._archive, month)

    async def sums(
        self,
        spans: Mapping[PoolName, Sequence[Span]],
        by: Sequence[Dimension],
        which: UsageFilter,
        live_until: int | None,
        *,
        local: LocalTime,
    ) -> tuple[UsageSum, ...]:
        """Return device-seconds in each span of each pool, grouped by the given labels.

        With `live_until`, running jobs count up to then, metered or not.
        """
        view = UsageView(spans, tuple(by), which)
        return (await self.views([view], live_until, local=local))[0]

    async def views(
        self, views: Sequence[UsageView], live_until: int | None, *, local: LocalTime
    ) -> tuple[tuple[UsageSum, ...], ...]:
        """Return the sums of several views, all from one snapshot: what is in one is in the others."""
        queries = [_ViewQuery(view, local) for view in views]
        if any(query.has_spans for query in queries):
            raw = any(view.raw for view in views)
            limit = RAW_SECONDS if raw else SECONDS
            async with self._connections.transaction(seconds=limit) as connection:
                await _begin(connection, limit, raw=raw)
                found = (await connection.execute(text("SELECT max(hour) FROM usage_hour"))).scalar()
                newest = None if found is None else seconds(found)
                for query in queries:
                    await query.read(connection, newest)
                if live_until is not None:
                    await _add_live(connection, [query for query in queries if query.has_spans], live_until)
        for query in queries:
            if query.parts:
                # Outside: no network call belongs into a transaction, and objects do not change.
                await query.add_archived(self._archive)
        return tuple(query.sums.rows() for query in queries)


async def _begin(connection: AsyncConnection, limit: float, *, raw: bool) -> None:
    for setting in (*SETTINGS, f"SET LOCAL statement_timeout = {round(limit * 1000)}"):
        await connection.execute(text(setting))
    if raw:
        # Before the first read: nothing moves from PostgreSQL to the archive until all of it is read.
        await connection.execute(text("LOCK TABLE usage_archive IN ACCESS SHARE MODE"))


async def _add_live(connection: AsyncConnection, queries: Sequence[_ViewQuery], until: int) -> None:
    """Add live usage, read once for all views with the same filter, as finely as one of them needs it."""
    by_filter: dict[tuple[UsageFilter, bool], list[_ViewQuery]] = {}
    for query in queries:
        by_filter.setdefault((query.view.which, query.view.raw), []).append(query)
    for (which, raw), alike in by_filter.items():
        columns = tuple(dict.fromkeys(column for query in alike for column in query.sums.columns))
        condition = UsageCondition.of(which, {pool for query in alike for pool in query.spans})
        end = max(span.end for query in alike for spans in query.spans.values() for span in spans)
        usage = await _unmetered(connection, condition, columns, until, end, raw=raw)
        for query in alike:
            query.add_unmetered(usage, columns)


async def _unmetered(
    connection: AsyncConnection,
    condition: UsageCondition,
    columns: Sequence[str],
    until: int,
    end: int,
    *,
    raw: bool,
) -> list[_UnmeteredUsage]:
    """Return unmetered usage of the matching classes, grouped by `columns`; `raw`: with the job's name.

    `end`: the end of the queried spans; usage after it may be left out.
    """
    query = _UNMETERED.format(
        of_class=condition.of_class,
        of_name=condition.of_name,
        open=OPEN_JOBS_SQL,
        of_attempt=_OF_ATTEMPT,
        labels="".join(f", {column}" for column in columns),
        names=_NAMES if raw or SERVICE_NAME in columns else "",
    )
    rows = await connection.execute(text(query), condition.values | {"until": until, "ends": end})
    return [
        _UnmeteredUsage(
            pool, slice_, int(began), int(ended), int(devices), tuple(label or "" for label in labels)
        )
        for pool, slice_, began, ended, devices, *labels in rows
    ]


def _hour(time: date | datetime) -> int:
    if not isinstance(time, datetime):
        raise TypeError(time)
    return seconds(time)
