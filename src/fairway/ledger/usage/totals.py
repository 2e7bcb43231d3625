"""Sum usage for a query, in one snapshot of the ledger.

Whole days come from the sums by day, the rest of a span from those by hour; job names, which the sums do not
have, from the raw rows: those in PostgreSQL, those being archived, and those in the archive. Running jobs are
metered by the hour: what they held since is added from the attempts themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.errors import ArchiveMissing, UsageTooFine
from fairway.ledger.records.costs import ArchivedPart, LocalTime, UsageFilter, UsageView
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import NONE
from fairway.ledger.usage import archive
from fairway.ledger.usage.archive import Archive
from fairway.model.charge import Label, Span, UsageSum
from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply


@dataclass(slots=True)
class Units:
    """Days or hours, in order, with their slots; and the place of the answer of a slot, for each pool."""

    times: list[date] | list[datetime]
    slots: list[int]
    pools: list[str] = field(default_factory=list)
    pool_slots: list[int] = field(default_factory=list)
    pool_places: list[int] = field(default_factory=list)

    def one_stretch_of_days(self) -> bool:
        """Return whether all days have one slot without gaps: then the first and last day suffice."""
        first, last = self.times[0], self.times[-1]
        if isinstance(first, datetime) or isinstance(last, datetime) or len(set(self.slots)) > 1:
            return False
        return (last - first).days == len(self.times) - 1

    def mostly_apart(self) -> bool:
        """Return whether most slots are of one day or hour: then summing by slot first reduces nothing."""
        return 2 * len(set(self.slots)) > len(self.slots)

    def values(self) -> dict[str, object]:
        """Return the parameters of a statement."""
        return {
            "times": self.times,
            "slots": self.slots,
            "first": self.times[0],
            "last": self.times[-1],
            "pools": self.pools,
            "pool_slots": self.pool_slots,
            "pool_places": self.pool_places,
        }


@dataclass(frozen=True, slots=True)
class Cut:
    """A query's spans as units. A place is a span, or a day of one."""

    days: Units
    hours: Units
    places: tuple[tuple[int, str], ...]
    """The number of the span, and the day in ISO format (empty: not requested)."""


class Cutter:
    """Cuts spans into units. `with_day`: days are separate places; `by_hour`: hours only, for raw rows.

    `newest`: no sum is of a later hour. A day that a span leaves after that counts as a whole one: its sum
    contains nothing that the span does not.
    """

    def __init__(self, local: LocalTime, *, with_day: bool, by_hour: bool, newest: int | None = None) -> None:
        self._local = local
        self._with_day = with_day
        self._by_hour = by_hour
        self._newest = newest
        self._places: dict[tuple[int, str], int] = {}

    def cut(self, spans: Mapping[PoolName, Sequence[Span]]) -> Cut:
        days: dict[date, list[tuple[str, int]]] = {}
        hours: dict[int, list[tuple[str, int]]] = {}
        alike: dict[tuple[Span, ...], list[str]] = {}
        for pool, those in spans.items():
            alike.setdefault(tuple(those), []).append(pool)
        for those, pools in alike.items():  # most pools are cut at the same times
            for number, span in enumerate(those):
                self._cut_span(pools, number, span, days, hours)
        moments = {datetime.fromtimestamp(hour, UTC): where for hour, where in hours.items()}
        return Cut(_units(days), _units(moments), tuple(self._places))

    def places_of(self, span: int, start: int, end: int) -> list[tuple[tuple[int, str], int]]:
        """Return the places of a period within a span, and the seconds in each."""
        found: list[tuple[tuple[int, str], int]] = []
        while start < end:
            day = self._local.day_of(start)
            until = min(end, self._local.day_start(day + timedelta(days=1))) if self._with_day else end
            found.append((self._key(span, day), until - start))
            start = until
        return found

    def _place(self, span: int, day: date) -> int:
        return self._places.setdefault(self._key(span, day), len(self._places))

    def _key(self, span: int, day: date) -> tuple[int, str]:
        return span, day.isoformat() if self._with_day else ""

    def _cut_span(
        self,
        pools: Sequence[str],
        number: int,
        span: Span,
        days: dict[date, list[tuple[str, int]]],
        hours: dict[int, list[tuple[str, int]]],
    ) -> None:
        at = span.start
        while at < span.end:
            day = self._local.day_of(at)
            end = self._local.day_start(day + timedelta(days=1))
            place = self._place(number, day)
            where = [(pool, place) for pool in pools]
            if not self._by_hour and at == self._local.day_start(day) and self._is_whole(span, end):
                days.setdefault(day, []).extend(where)
                at = end
                continue
            while at < min(end, span.end):
                hours.setdefault(at, []).extend(where)
                at = self._local.next_hour(at)

    def _is_whole(self, span: Span, day_end: int) -> bool:
        """Return whether a day that begins within a span belongs to it until its end."""
        return day_end <= span.end or (self._newest is not None and self._newest < span.end)


def _units(found: Mapping[Any, list[tuple[str, int]]]) -> Units:
    slots: dict[tuple[tuple[str, int], ...], int] = {}
    times = sorted(found)
    units = Units(times, [slots.setdefault(tuple(found[time]), len(slots)) for time in times])
    for where, slot in slots.items():
        for pool, place in where:
            units.pools.append(pool)
            units.pool_slots.append(slot)
            units.pool_places.append(place)
    return units


# A job whose class changed is in the meter's queue: only of other running jobs is the class checked first.
# They are metered up to their cluster's mark, so they add nothing to spans that end before it.
_TAILS: Final = """
    WITH candidate AS (
        SELECT id, class, state FROM job
        WHERE state = 'running' AND class IN (SELECT id FROM job_class WHERE {of_class})
            AND cluster NOT IN (SELECT cluster FROM meter_mark WHERE metered_to >= to_timestamp(:ends))
        UNION SELECT to_meter.job, job.class, job.state FROM to_meter LEFT JOIN job ON job.id = to_meter.job
    ), truth AS (
        SELECT attempt.job, attempt.number AS attempt, candidate.class, attempt.devices,
            floor(extract(epoch FROM attempt.started_at)) AS began,
            floor(extract(epoch FROM attempt.ended_at)) AS ended,
            attempt.ending IS NULL AND candidate.state IN ({open}) AS runs
        FROM candidate JOIN attempt ON attempt.job = candidate.id
    ), told AS (
        SELECT job, attempt, metered.class, devices, extract(epoch FROM started_at) AS began,
            extract(epoch FROM COALESCE(metered.metered_to, greatest(started_at, mark.metered_to))) AS upto
        FROM candidate JOIN metered ON metered.job = candidate.id
        JOIN job_class ON job_class.id = metered.class LEFT JOIN meter_mark AS mark USING (cluster)
    ), both_ AS (
        SELECT job, truth.class, truth.devices, truth.began, told.class AS told_class,
            told.devices AS told_devices, told.began AS told_began, told.upto,
            COALESCE(truth.class = told.class AND truth.devices = told.devices
                AND truth.began = told.began, false) AS alike,
            CASE WHEN runs AND ended IS NULL THEN greatest(:until, truth.began, told.upto)
                ELSE COALESCE(ended, told.upto, truth.began) END AS ended
        FROM truth FULL JOIN told USING (job, attempt)
    ), stretch AS (
        SELECT job, class, devices, upto AS began, ended FROM both_ WHERE alike AND ended > upto
        UNION ALL SELECT job, class, -devices, ended, upto FROM both_ WHERE alike AND ended < upto
        UNION ALL SELECT job, class, devices, began, ended FROM both_ WHERE NOT alike AND class IS NOT NULL
        UNION ALL SELECT job, told_class, -told_devices, told_began, upto FROM both_
            WHERE NOT alike AND told_class IS NOT NULL
    )
    SELECT job_class.pool, job_class.slice, began, ended, sum(devices) AS devices {labels}
    FROM stretch JOIN job_class ON job_class.id = stretch.class {names}
    WHERE ended > began AND {of_class} AND {of_name}
    GROUP BY pool, slice, began, ended {labels}
    HAVING sum(devices) <> 0
"""


_NAMES: Final = "LEFT JOIN (SELECT id AS job, name FROM job) AS named USING (job)"


@dataclass(frozen=True, slots=True)
class Tail:
    """Devices held over a period beyond what is metered; negative: less than that."""

    pool: str
    slice: str
    start: int
    end: int
    devices: int
    labels: tuple[str, ...]


async def tails(
    connection: AsyncConnection,
    of_class: str,
    of_name: str,
    values: dict[str, object],
    columns: Sequence[str],
    until: int,
    *,
    ends: int,
    raw: bool,
) -> list[Tail]:
    """Return unmetered usage of the matching classes, grouped by `columns`; `raw`: with the job's name.

    `ends`: the end of the queried spans; usage after it may be left out.
    """
    wanted = _TAILS.format(
        of_class=of_class,
        of_name=of_name,
        open=OPEN_JOBS_SQL,
        labels="".join(f", {column}" for column in columns),
        names=_NAMES if raw else "",
    )
    rows = await connection.execute(text(wanted), values | {"until": until, "ends": ends})
    return [
        Tail(pool, slice_, int(began), int(ended), int(devices), tuple(label or "" for label in labels))
        for pool, slice_, began, ended, devices, *labels in rows
    ]


SECONDS: Final = 60.0

RAW_SECONDS: Final = 600.0
"""Raw rows are read by whole months."""

MOST_SUMS: Final = 1_000_000
"""In one answer."""


_COLUMNS: Final = {
    Label.TEAM: "team",
    Label.USER: "user_name",
    Label.POOL: "pool",
    Label.PRIORITY: "priority",
    Label.CLUSTER: "cluster",
    Label.SLICE: "slice",
    Label.NAME: "name",
}


_SETTINGS: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    # Sums of a large month are quicker in memory, and never so long that compiling them would pay.
    "SET LOCAL work_mem = '64MB'",
    "SET LOCAL jit = off",
    # A plan for any window takes each for a short one, and reads a month by its key, row by row.
    "SET LOCAL plan_cache_mode = force_custom_plan",
)

# For a million sums by day workers double the work, and save little time.
_ALONE: Final = "SET LOCAL max_parallel_workers_per_gather = 0"

_TOGETHER: Final = "SET LOCAL max_parallel_workers_per_gather TO DEFAULT"


# Step by step, lest the planner join what is still many rows: first by class, then by label, then by place.
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

# Where days are told apart there is one sum of each class a day already: by label at once.
_BY_LABEL: Final = """
    labelled AS MATERIALIZED (
        SELECT slot, pool, slice, {named} sum(device_seconds) AS device_seconds
        FROM {table} {slots} JOIN job_class ON job_class.id = class
        WHERE {time} BETWEEN :first AND :last AND {of_class}
        GROUP BY {labels} slot, pool, slice
    )
"""

_KEPT: Final = """
    WITH {steps}
    SELECT place, pool, slice, {numbered} sum(device_seconds) AS device_seconds
    FROM labelled JOIN {places} USING (slot, pool)
    GROUP BY {numbered} place, pool, slice LIMIT :most
"""


_SLOTS: Final = """
    JOIN unnest(CAST(:times AS {type}[]), CAST(:slots AS int[])) AS slot ({time}, slot) USING ({time})
"""


_NARROW: Final = "AND class IN (SELECT id FROM job_class WHERE {of_class})"

FEW_POOLS: Final = 5
"""With more, and no other filter, most classes match, and checking each row costs more than it saves."""


_RAW: Final = """
    WITH slot AS (
        SELECT * FROM unnest(CAST(:times AS timestamptz[]), CAST(:slots AS int[])) AS slot (hour, slot)
    ), summed AS (
        SELECT slot, class, job, sum(CAST(seconds AS bigint) * devices) AS device_seconds
        FROM ({tables}) AS rows JOIN slot USING (hour)
        WHERE hour BETWEEN :first AND :last AND class IN (SELECT id FROM job_class WHERE {of_class})
        GROUP BY slot, class, job
    ), named AS (
        SELECT slot, summed.class, COALESCE(job.name, '') AS name, device_seconds
        FROM summed LEFT JOIN job ON job.id = summed.job
    )
    SELECT place, pool, slice, {labels} sum(device_seconds) AS device_seconds
    FROM named JOIN job_class ON job_class.id = class JOIN {places} USING (slot, pool)
    WHERE {names}
    GROUP BY {labels} place, pool, slice LIMIT :most
"""


_PLACES: Final = """
    unnest(CAST(:pools AS text[]), CAST(:pool_slots AS int[]), CAST(:pool_places AS int[]))
        AS places (pool, slot, place)
"""


_CLASSES: Final = "SELECT id, cluster, team, user_name, pool, slice, priority FROM job_class WHERE {where}"


@dataclass(frozen=True, slots=True)
class UsageCondition:
    """A filter as SQL: a condition on classes, one on names, and their values."""

    of_class: str
    of_name: str
    values: dict[str, object]
    narrow: bool
    """Whether few classes match."""

    @classmethod
    def of(cls, which: UsageFilter, pools: Iterable[str]) -> UsageCondition:
        given = {
            "team": which.teams,
            "user_name": which.users,
            "cluster": which.clusters,
            "priority": which.priorities,
            "slice": which.slices,
            "pool": frozenset(pools),
        }
        said = {column: sorted(names) for column, names in given.items() if names is not None}
        values: dict[str, object] = {f"of_{column}": names for column, names in said.items()}
        of_class = " AND ".join(f"{column} = ANY(CAST(:of_{column} AS text[]))" for column in said)
        narrow = len(said) > 1 or len(said["pool"]) <= FEW_POOLS
        if which.names is None:
            return cls(of_class, "true", values, narrow)
        values["of_name"] = sorted(which.names)
        return cls(of_class, "name = ANY(CAST(:of_name AS text[]))", values, narrow)


class Tally:
    """Accumulates the sums of an answer."""

    def __init__(self, by: Sequence[Label]) -> None:
        self._day = tuple(n for n, label in enumerate(by) if label is Label.DAY)
        self._sums: dict[tuple[int, str, str, tuple[str, ...]], int] = {}
        self.columns: Final = tuple(_COLUMNS[label] for label in by if label is not Label.DAY)
        """The columns of the labels except the day, which follows from the place."""

    def add(
        self, place: tuple[int, str], pool: str, slice_: str, labels: Sequence[str], seconds: int
    ) -> None:
        span, day = place
        told = list(labels)
        for n in self._day:
            told.insert(n, day)
        key = (span, pool, slice_, tuple(told))
        self._sums[key] = self._sums.get(key, 0) + seconds

    def answer(self) -> tuple[UsageSum, ...]:
        """Return the sums in order, without zeros. Raises UsageTooFine."""
        if len(self._sums) >= MOST_SUMS:
            raise UsageTooFine(
                "UsageTooFine",
                f"the answer would have more than {MOST_SUMS:,} lines",
                "ask for a shorter window or fewer labels, or narrow it to a team or pool",
            )
        return tuple(
            UsageSum(span, Supply(PoolName(pool), SliceName(slice_) if slice_ else None), labels, seconds)
            for (span, pool, slice_, labels), seconds in sorted(self._sums.items())
            if seconds
        )


async def views(
    connections: Connections,
    asked: Sequence[UsageView],
    live_until: int | None,
    local: LocalTime,
    store: Archive | None,
) -> tuple[tuple[UsageSum, ...], ...]:
    """Return each view's sums, all from one snapshot: what one of them has, the others have."""
    looks = [_Look(view, local) for view in asked]
    if any(look.asks for look in looks):
        raw = any(look.view.raw for look in looks)
        seconds = RAW_SECONDS if raw else SECONDS
        async with connections.transaction(seconds=seconds) as connection:
            await _begin(connection, seconds, raw=raw)
            newest = await _newest(connection)
            for look in looks:
                await look.read(connection, newest)
            if live_until is not None:
                await _add_live(connection, [look for look in looks if look.asks], live_until)
    for look in looks:
        if look.parts:
            # Outside: no network call belongs into a transaction, and objects do not change.
            await _archived(store, look)
    return tuple(look.tally.answer() for look in looks)


class _Look:
    """The state of a view while it is answered."""

    def __init__(self, view: UsageView, local: LocalTime) -> None:
        pools = view.which.pools
        self.view: Final = view
        self.spans: Final = {p: those for p, those in view.spans.items() if pools is None or p in pools}
        self.asks: Final = any(span.start < span.end for those in self.spans.values() for span in those)
        self.asked: Final = UsageCondition.of(view.which, self.spans)
        self.tally: Final = Tally(view.by)
        self._local: Final = local
        self.cutter: Cutter
        self.cut: Cut
        self.parts: Sequence[ArchivedPart] = ()
        self.classes: dict[int, Mapping[str, str]] = {}

    async def read(self, connection: AsyncConnection, newest: int | None) -> None:
        """Read everything but live and archived usage."""
        raw = self.view.raw
        with_day = Label.DAY in self.view.by
        self.cutter = Cutter(self._local, with_day=with_day, by_hour=raw, newest=newest)
        self.cut = self.cutter.cut(self.spans)
        if not self.cut.places:
            return
        if raw:
            self.parts = await _raw(connection, self.cut, self.asked, self.tally)
            self.classes = await _classes(connection, self.asked) if self.parts else {}
        else:
            await _kept(connection, self.cut, self.asked, self.tally)


async def _begin(connection: AsyncConnection, seconds: float, *, raw: bool) -> None:
    for setting in (*_SETTINGS, f"SET LOCAL statement_timeout = {round(seconds * 1000)}"):
        await connection.execute(text(setting))
    if raw:
        # Before the first look: nothing moves from PostgreSQL to the archive until this has seen all of it.
        await connection.execute(text("LOCK TABLE usage_archive IN ACCESS SHARE MODE"))


async def _newest(connection: AsyncConnection) -> int | None:
    """Return the latest hour that has a sum. Returns None if there is none."""
    found = (await connection.execute(text("SELECT max(hour) FROM usage_hour"))).scalar()
    return None if found is None else _seconds(found)


async def _kept(connection: AsyncConnection, cut: Cut, asked: UsageCondition, tally: Tally) -> None:
    await connection.execute(text(_ALONE if not cut.hours.times else _TOGETHER))
    for table, time, type_, units in (
        ("usage_day", "day", "date", cut.days),
        ("usage_hour", "hour", "timestamptz", cut.hours),
    ):
        if units.times:
            alike = units.one_stretch_of_days()
            names = [f"l{n}" for n in range(len(tally.columns))]
            at_once = units.mostly_apart() and not alike and not asked.narrow
            steps = (_BY_LABEL if at_once else _BY_CLASS).format(
                slot="0 AS slot" if alike else "slot",
                slots="" if alike else _SLOTS.format(type=type_, time=time),
                time=time,
                table=table,
                narrow=_NARROW.format(of_class=asked.of_class) if asked.narrow else "",
                of_class=asked.of_class,
                named="".join(f"{c} AS {n}, " for c, n in zip(tally.columns, names, strict=True)),
                labels="".join(f"{column}, " for column in tally.columns),
            )
            numbered = "".join(f"{name}, " for name in names)
            wanted = _KEPT.format(steps=steps, numbered=numbered, places=_PLACES)
            await _add(connection, wanted, units, cut, asked, tally)


async def _raw(
    connection: AsyncConnection, cut: Cut, asked: UsageCondition, tally: Tally
) -> Sequence[ArchivedPart]:
    """Add the raw rows in PostgreSQL. Returns the archived objects that are still to be added."""
    columns = "SELECT hour, class, job, seconds, devices FROM"
    tables = ["usage", *await archive.leaving(connection)]
    wanted = _RAW.format(
        tables=" UNION ALL ".join(f"{columns} {table}" for table in tables),
        of_class=asked.of_class,
        labels="".join(f"{column}, " for column in tally.columns),
        places=_PLACES,
        names=asked.of_name,
    )
    await _add(connection, wanted, cut.hours, cut, asked, tally)
    hours = [_seconds(time) for time in cut.hours.times]
    return await archive.parts(connection, min(hours), max(hours))


async def _add(
    connection: AsyncConnection, wanted: str, units: Units, cut: Cut, asked: UsageCondition, tally: Tally
) -> None:
    rows = await connection.execute(text(wanted), units.values() | asked.values | {"most": MOST_SUMS})
    for place, pool, slice_, *labels, seconds in rows:
        tally.add(cut.places[place], pool, slice_, labels, int(seconds))


async def _classes(connection: AsyncConnection, asked: UsageCondition) -> dict[int, Mapping[str, str]]:
    wanted = text(_CLASSES.format(where=asked.of_class))
    values = {name: value for name, value in asked.values.items() if name != "of_name"}
    return {row.id: dict(row._mapping) for row in await connection.execute(wanted, values)}


async def _archived(store: Archive | None, look: _Look) -> None:
    where: dict[tuple[int, str], list[int]] = {}
    units, classes, tally = look.cut.hours, look.classes, look.tally
    for slot, pool, place in zip(units.pool_slots, units.pools, units.pool_places, strict=True):
        where.setdefault((slot, pool), []).append(place)
    slots = {_seconds(time): slot for time, slot in zip(units.times, units.slots, strict=True)}
    names = look.view.which.names
    for slot, class_, name, seconds in await archive.sums(store, look.parts, slots, classes, names):
        known = {**classes[class_], "name": name}
        labels = [str(known[column]) for column in tally.columns]
        for place in where.get((slot, known["pool"]), ()):
            tally.add(look.cut.places[place], known["pool"], known["slice"] or NONE, labels, seconds)


async def _add_live(connection: AsyncConnection, looks: Sequence[_Look], until: int) -> None:
    """Add live usage, read once for all views with the same filter, as finely as one of them needs it."""
    alike: dict[tuple[UsageFilter, bool], list[_Look]] = {}
    for look in looks:
        alike.setdefault((look.view.which, look.view.raw), []).append(look)
    for (_, raw), those in alike.items():
        columns = tuple(dict.fromkeys(column for look in those for column in look.tally.columns))
        asked = those[0].asked if len(those) == 1 else UsageCondition.of(those[0].view.which, _pools(those))
        ends = max(span.end for look in those for spans in look.spans.values() for span in spans)
        held = await tails(
            connection, asked.of_class, asked.of_name, asked.values, columns, until, ends=ends, raw=raw
        )
        for look in those:
            _add_tails(held, look, [columns.index(column) for column in look.tally.columns])


def _pools(looks: Sequence[_Look]) -> set[PoolName]:
    return {pool for look in looks for pool in look.spans}


def _add_tails(held: Sequence[Tail], look: _Look, where: Sequence[int]) -> None:
    if not held:
        return
    earliest = min(tail.start for tail in held)
    recent = {
        pool: [(number, span) for number, span in enumerate(those) if span.end > earliest]
        for pool, those in look.spans.items()
    }
    for tail in held:
        labels = [tail.labels[n] for n in where]
        for number, span in recent.get(PoolName(tail.pool), ()):
            at, end = max(tail.start, span.start), min(tail.end, span.end)
            for place, seconds in look.cutter.places_of(number, at, end):
                look.tally.add(place, tail.pool, tail.slice, labels, tail.devices * seconds)


def _seconds(time: object) -> int:
    if not isinstance(time, datetime):
        raise TypeError(time)
    return int(time.astimezone(UTC).timestamp())


class UsageStore:
    """Reads totals of usage, and moves old usage to the archive."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
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
        by: Sequence[Label],
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
        self, asked: Sequence[UsageView], live_until: int | None, *, local: LocalTime
    ) -> tuple[tuple[UsageSum, ...], ...]:
        """Return the sums of several views, all from one snapshot: what is in one is in the others."""
        return await views(self._connections, asked, live_until, local, self._archive)
