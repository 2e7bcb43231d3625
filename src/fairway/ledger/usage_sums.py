"""Usage summed for a question, in one look at the ledger.

Whole days come from the sums by day, what is left of a span from those by hour; job names, which the sums do
not know, from the raw rows: those in PostgreSQL, those on their way to the archive, and those in it. What
runs is metered by the hour: what it held since is added from the attempts themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import archive, usage_live
from fairway.ledger.archive import Archive
from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import ArchivedPart, LocalTime, UsageFilter, UsageView
from fairway.ledger.errors import UsageTooFine
from fairway.ledger.tables import NONE
from fairway.ledger.usage_units import Cut, Cutter, Units
from fairway.model.charge import Label, UsageSum
from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply

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
"""With more, and nothing else asked, most classes pass, and asking of each row costs more than it saves."""

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
class Asked:
    """A filter as SQL: a condition on classes, one on names, and their values."""

    of_class: str
    of_name: str
    values: dict[str, object]
    narrow: bool
    """Few classes pass."""

    @classmethod
    def of(cls, which: UsageFilter, pools: Iterable[str]) -> Asked:
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
    """What adds up to the answer."""

    def __init__(self, by: Sequence[Label]) -> None:
        self._day = tuple(n for n, label in enumerate(by) if label is Label.DAY)
        self._sums: dict[tuple[int, str, str, tuple[str, ...]], int] = {}
        self.columns: Final = tuple(_COLUMNS[label] for label in by if label is not Label.DAY)
        """Of the labels but the day, which the place tells."""

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
        """In order; what came to nothing is left out."""
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
    """Each view's answer, all of one moment: what one of them has, the others have."""
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
    """A view while it is answered."""

    def __init__(self, view: UsageView, local: LocalTime) -> None:
        pools = view.which.pools
        self.view: Final = view
        self.spans: Final = {p: those for p, those in view.spans.items() if pools is None or p in pools}
        self.asks: Final = any(span.start < span.end for those in self.spans.values() for span in those)
        self.asked: Final = Asked.of(view.which, self.spans)
        self.tally: Final = Tally(view.by)
        self._local: Final = local
        self.cutter: Cutter
        self.cut: Cut
        self.parts: Sequence[ArchivedPart] = ()
        self.classes: dict[int, Mapping[str, str]] = {}

    async def read(self, connection: AsyncConnection, newest: int | None) -> None:
        """All but what is live and what the archive has."""
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
    """The latest hour there is a sum of."""
    found = (await connection.execute(text("SELECT max(hour) FROM usage_hour"))).scalar()
    return None if found is None else _seconds(found)


async def _kept(connection: AsyncConnection, cut: Cut, asked: Asked, tally: Tally) -> None:
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


async def _raw(connection: AsyncConnection, cut: Cut, asked: Asked, tally: Tally) -> Sequence[ArchivedPart]:
    """Adds what PostgreSQL has; gives what the archive has."""
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
    connection: AsyncConnection, wanted: str, units: Units, cut: Cut, asked: Asked, tally: Tally
) -> None:
    rows = await connection.execute(text(wanted), units.values() | asked.values | {"most": MOST_SUMS})
    for place, pool, slice_, *labels, seconds in rows:
        tally.add(cut.places[place], pool, slice_, labels, int(seconds))


async def _classes(connection: AsyncConnection, asked: Asked) -> dict[int, Mapping[str, str]]:
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
    """What runs is read once for all looks at the same people, as finely as one of them tells it apart."""
    alike: dict[tuple[UsageFilter, bool], list[_Look]] = {}
    for look in looks:
        alike.setdefault((look.view.which, look.view.raw), []).append(look)
    for (_, raw), those in alike.items():
        columns = tuple(dict.fromkeys(column for look in those for column in look.tally.columns))
        asked = those[0].asked if len(those) == 1 else Asked.of(those[0].view.which, _pools(those))
        ends = max(span.end for look in those for spans in look.spans.values() for span in spans)
        held = await usage_live.tails(
            connection, asked.of_class, asked.of_name, asked.values, columns, until, ends=ends, raw=raw
        )
        for look in those:
            _add_tails(held, look, [columns.index(column) for column in look.tally.columns])


def _pools(looks: Sequence[_Look]) -> set[PoolName]:
    return {pool for look in looks for pool in look.spans}


def _add_tails(held: Sequence[usage_live.Tail], look: _Look, where: Sequence[int]) -> None:
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
