"""List jobs by any filter, newest first; from a given job to older or newer ones.

With a filter that few jobs match, neither the ids nor any single index leads to them quickly. So a page is
found in steps. The matching classes are found; usually they are few. If not, the newest jobs are scanned:
usually that is enough. Otherwise the newest job of each class and state is found by one index probe, and only
those that can have a job on the page are read further. The work grows with classes, not with jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.fleet.clusters import LONGEST_PAGE
from fairway.ledger.jobs import rows as job_rows
from fairway.ledger.jobs import submit
from fairway.ledger.records.jobs import (
    DesiredState,
    EventKind,
    JobCount,
    JobDetail,
    JobEvent,
    JobFilter,
    JobRow,
    NewJob,
    StoredAttempt,
)
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.model.job import Attempt, Ending, EngineId, JobId, JobState, engine_name, parse_job_id
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName

NEWEST: Final = 4000
"""Jobs that are scanned first."""

FEW_PROBES: Final = 300
"""Of classes and states: up to so many are faster than a scan."""

MOST_PROBES: Final = 40_000
"""Of classes and states; beyond, scanning more and more of the newest jobs is faster."""

MOST_JOBS: Final = 2**50

LATE: Final = timedelta(minutes=1)
"""A job that was stored later than that after it was submitted is marked as late."""

_SLACK: Final = timedelta(minutes=2)
"""Tolerance of the clock of ids: it knows minutes, and a transaction lasts seconds."""

BEYOND: Final = 2**63 - 1


_ROW: Final = """
    SELECT job.id, job.cluster, job.name, job_class.user_name, job_class.team, job_class.priority,
        job_class.pool, job_class.slice, job.gpus, job.nodes, job.devices, job.state, job.wish, job.code,
        job.reason, job.reason_code, job_class.native, job.engine_id, job.array_first, job.array_index,
        job.attempts, job.submitted_at, job.started_at, job.ended_at, job.exit_code, job.time_seconds
    FROM job JOIN job_class ON job_class.id = job.class
"""


_ROWS: Final = f"{_ROW} WHERE job.id = ANY({{ids}}) ORDER BY job.id DESC"


# The newest id that was certainly given before, and the oldest that was certainly given after.
_FROM_ID = text("SELECT job FROM job_clock WHERE minute < :moment ORDER BY minute DESC LIMIT 1")

_UNTIL_ID = text("SELECT job FROM job_clock WHERE minute > :moment ORDER BY minute LIMIT 1")


_BY_STATE: Final = """
    SELECT found.id FROM unnest(CAST(:states AS text[])) AS states (state) CROSS JOIN LATERAL (
        SELECT job.id FROM job
        WHERE job.state = states.state COLLATE "C" AND job.id < :high AND job.id >= :low {more}
        ORDER BY job.id {order} LIMIT :limit
    ) AS found
    ORDER BY found.id {order} LIMIT :limit
"""


_PROBES: Final = """
    WITH head AS MATERIALIZED (
        SELECT class, state, nearest.id AS nearest
        FROM (SELECT id FROM job_class WHERE {of_class}) AS classes (class)
        CROSS JOIN unnest(CAST(:states AS text[])) AS states (state)
        CROSS JOIN LATERAL (
            SELECT job.id FROM job
            WHERE job.class = classes.class AND job.state = states.state COLLATE "C"
                AND job.id < :high AND job.id >= :low {more}
            ORDER BY job.id {order} LIMIT 1
        ) AS nearest
        ORDER BY nearest.id {order} LIMIT :limit
    ), cut AS MATERIALIZED (
        SELECT CASE WHEN count(*) < :limit THEN {end} ELSE {farthest}(nearest) END AS id FROM head
    )
    SELECT rest.id FROM head CROSS JOIN cut CROSS JOIN LATERAL (
        SELECT job.id FROM job
        WHERE job.class = head.class AND job.state = head.state COLLATE "C"
            AND job.id >= {from_id} AND job.id <= {to_id} AND job.id < :high {more}
        ORDER BY job.id {order} LIMIT :limit
    ) AS rest
    ORDER BY rest.id {order} LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class _Way:
    """The direction of a list, as SQL fragments."""

    order: str
    end: str
    farthest: str
    from_id: str
    to_id: str
    window: str

    def probes(self, of_class: str, more: str) -> str:
        """Return the SQL of a page of some classes and states."""
        return _PROBES.format(
            of_class=of_class,
            more=more,
            order=self.order,
            end=self.end,
            farthest=self.farthest,
            from_id=self.from_id,
            to_id=self.to_id,
        )


_NEWEST_ID: Final = "LEAST(:high, (SELECT max(id) + 1 FROM job))"

_OLDER: Final = _Way(
    order="DESC",
    end=":low",
    farthest="min",
    from_id="cut.id",
    to_id="head.nearest",
    window=f"id < :high AND id >= GREATEST(:low, {_NEWEST_ID} - :window)",
)

_NEWER: Final = _Way(
    order="ASC",
    end=":high",
    farthest="max",
    from_id="head.nearest",
    to_id="cut.id",
    window="id >= :low AND id < LEAST(:high, :low + :window)",
)


# Of an array the first task that passes stands for all; its tasks may be of several classes, seldom.
_FIRST_TASK: Final = """(job.array_first IS NULL OR NOT EXISTS (
    SELECT FROM job AS earlier
    WHERE earlier.array_first = job.array_first AND earlier.id < job.id AND earlier.class = job.class {more}
))"""


_LAST_LETTER: Final = chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class _Condition:
    """A filter as SQL: conditions on a class, on a job, and on a job beyond class, state and name."""

    of_class: tuple[str, ...]
    of_job: tuple[str, ...]
    of_time: tuple[str, ...]
    of_array: tuple[str, ...]
    """Expensive: checked last, on few rows."""
    values: dict[str, object]
    way: _Way

    @classmethod
    def of(cls, which: JobFilter, way: _Way) -> _Condition:
        values: dict[str, object] = {}

        def said(column: str, value: object) -> tuple[str, ...]:
            if value is None:
                return ()
            name = column.replace(".", "_")
            values[name] = value
            return (f"{column} = :{name}",)

        of_class = (
            *said("job_class.cluster", which.cluster),
            *said("job_class.team", which.team),
            *said("job_class.user_name", which.user),
            *said("job_class.pool", which.pool),
            *said("job_class.native", which.native),
            *said("job_class.priority", which.priority),
        )
        if which.teams is not None:
            values["teams"] = list(which.teams)
            of_class = (*of_class, "job_class.team = ANY(CAST(:teams AS text[]))")
        if which.user_begins is not None:
            values |= {"user_from": which.user_begins, "user_to": which.user_begins + _LAST_LETTER}
            of_class = (*of_class, "job_class.user_name >= :user_from", "job_class.user_name < :user_to")
        of_job = (*said("job.name", which.name), *said("job.array_first", which.array))
        if which.name_begins:
            of_job = (*of_job, _begins(which.name_begins, values))
        if which.states:
            values["states"] = [state.value for state in which.states]
            of_job = (*of_job, "job.state = ANY(CAST(:states AS text[]))")
        of_time: tuple[str, ...] = ()
        if which.submitted_after is not None:
            values["after"] = which.submitted_after
            of_time = ("job.submitted_at >= :after",)
        if which.submitted_before is not None:
            values["until"] = which.submitted_before
            of_time = (*of_time, "job.submitted_at < :until")
        of_array = (_first_task(which, of_time),) if which.once_an_array else ()
        return cls(of_class, of_job, of_time, of_array, values, way)

    @property
    def limit(self) -> int:
        return int(str(self.values["limit"]))

    @property
    def low(self) -> int:
        return int(str(self.values["low"]))

    @property
    def high(self) -> int:
        return int(str(self.values["high"]))

    def where(self, *more: str) -> str:
        return " AND ".join((*more, *self.of_class, *self.of_job, *self.of_time)) or "true"

    @property
    def more(self) -> str:
        """The conditions beyond class, state and name."""
        return "".join(f" AND {one}" for one in (*self.of_time, *self.of_array))


async def page(
    connections: Connections,
    which: JobFilter,
    *,
    before: JobId | None = None,
    after: JobId | None = None,
    low: int = 0,
    limit: int,
) -> tuple[JobRow, ...]:
    """Return a page of jobs, newest first.

    The newest before a job, or with `after` the oldest after one; none with an id below `low`.
    """
    asked = _Condition.of(which, _OLDER if after is None else _NEWER)
    asked.values["limit"] = limit = max(1, min(limit, LONGEST_PAGE))
    floor = low if after is None else max(low, after + 1)
    ceiling = before if before is not None else BEYOND
    async with connections.single() as connection:
        if which.array is not None:
            return _newest_first(await _through(connection, asked, floor, ceiling), asked)
        bottom, top = await _ids_of_times(connection, which)
        asked.values.update({"low": max(bottom, floor), "high": min(ceiling, top)})
        found = await _found(connection, which, asked) if asked.low < asked.high else []
        if top < ceiling:  # what was kept late may be old and have a new id
            found += await _through(connection, asked, max(top, floor), ceiling, "job.late")
    return _newest_first(found, asked)


def _newest_first(found: Sequence[JobRow], asked: _Condition) -> tuple[JobRow, ...]:
    """Sort rows newest first, and keep the `limit` nearest to the start."""
    ordered = sorted(found, key=lambda row: -row.id)
    return tuple(ordered[: asked.limit] if asked.way is _OLDER else ordered[-asked.limit :])


async def rows(connections: Connections, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
    wanted = text(_ROWS.format(ids="CAST(:ids AS bigint[])"))
    async with connections.single() as connection:
        found = [_row(row) for row in await connection.execute(wanted, {"ids": list(numbers)})]
    return tuple(reversed(found))


async def _found(connection: AsyncConnection, which: JobFilter, asked: _Condition) -> list[JobRow]:
    """Return the page between two ids."""
    more = asked.more
    if not (asked.of_class or asked.of_job):
        return await _through(connection, asked, asked.low, asked.high)
    named = which.name is not None or bool(which.name_begins)
    if not asked.of_class and not named:
        return await _by_ids(connection, asked, _BY_STATE.format(more=more, order=asked.way.order))
    states = [state.value for state in which.states or JobState]
    asked.values["states"] = states
    # Very many names may begin so: unless the newest are looked at first, all of them would be read.
    if which.name_begins or not await _are_few(connection, asked, FEW_PROBES // len(states)):
        window = max(NEWEST, 4 * asked.limit)
        found = await _look_through(connection, asked, window)
        if len(found) >= asked.limit:
            return found
        if not named and not await _are_few(connection, asked, MOST_PROBES // len(states)):
            return await _ever_more(connection, asked, window)
    if named:
        return await _by_ids(connection, asked, _named(asked))
    return await _by_ids(connection, asked, asked.way.probes(" AND ".join(asked.of_class), more))


async def _ids_of_times(connection: AsyncConnection, which: JobFilter) -> tuple[int, int]:
    """Return the id range of jobs submitted in the filter's time range, except those stored late."""
    low, high = 0, BEYOND
    if which.submitted_after is not None:
        moment = which.submitted_after - _SLACK
        low = (await connection.execute(_FROM_ID, {"moment": moment})).scalar() or 0
    if which.submitted_before is not None:
        moment = which.submitted_before + LATE + _SLACK
        high = (await connection.execute(_UNTIL_ID, {"moment": moment})).scalar() or BEYOND
    return low, high


async def _through(
    connection: AsyncConnection, asked: _Condition, low: int, high: int, *more: str
) -> list[JobRow]:
    """Read in id order, or by an index that has it."""
    where = asked.where("job.id < :high", "job.id >= :low", *more, *asked.of_array)
    wanted = text(f"{_ROW} WHERE {where} ORDER BY job.id {asked.way.order} LIMIT :limit")
    return [_row(r) for r in await connection.execute(wanted, asked.values | {"low": low, "high": high})]


async def _look_through(connection: AsyncConnection, asked: _Condition, window: int) -> list[JobRow]:
    """Scan the nearest jobs; OFFSET 0 keeps the planner from choosing another plan."""
    near = f"(SELECT * FROM job WHERE {asked.way.window} OFFSET 0)"  # noqa: S608
    # Those that pass first; which of them stand for their arrays is asked of them alone.
    passing = (
        f"(SELECT job.* FROM {near} AS job JOIN job_class ON job_class.id = job.class"  # noqa: S608
        f" WHERE {asked.where()} ORDER BY job.id {asked.way.order} OFFSET 0)"
    )
    wanted = (
        _ROW.replace("FROM job ", f"FROM {passing} AS job ")
        + f"WHERE {' AND '.join(asked.of_array) or 'true'} ORDER BY job.id {asked.way.order} LIMIT :limit"
    )
    values = asked.values | {"window": window}
    return [_row(r) for r in await connection.execute(text(wanted), values)]


async def _ever_more(connection: AsyncConnection, asked: _Condition, window: int) -> list[JobRow]:
    while True:
        window *= 8
        found = await _look_through(connection, asked, window)
        if len(found) >= asked.limit or window > MOST_JOBS:
            return found


async def _are_few(connection: AsyncConnection, asked: _Condition, few: int) -> bool:
    """Return whether at most so many classes match. Without a condition all do."""
    if not asked.of_class:
        return False
    some = f"SELECT FROM job_class WHERE {' AND '.join(asked.of_class)} LIMIT :few"
    wanted = text(f"SELECT count(*) FROM ({some}) AS passing")  # noqa: S608
    found = await connection.execute(wanted, asked.values | {"few": few + 1})
    return int(found.scalar_one()) <= few


def _begins(names: Sequence[str], values: dict[str, object]) -> str:
    """Return a prefix condition as ranges, which an index in bytewise order can answer."""
    ranges: list[str] = []
    for n, name in enumerate(names):
        values |= {f"name_from{n}": name, f"name_to{n}": name + _LAST_LETTER}
        ranges.append(f"job.name >= :name_from{n} AND job.name < :name_to{n}")
    return f"({' OR '.join(ranges)})"


def _first_task(which: JobFilter, of_time: tuple[str, ...]) -> str:
    conditions = ["job.state = ANY(CAST(:states AS text[]))"] if which.states else []
    more = "".join(f" AND {one.replace('job.', 'earlier.')}" for one in (*conditions, *of_time))
    return _FIRST_TASK.format(more=more)


def _named(asked: _Condition) -> str:
    """Return the SQL of a page by name: read from the index of names, which has class and state too."""
    classes = f"SELECT id FROM job_class WHERE {' AND '.join(asked.of_class)}"  # noqa: S608
    of_class = (f"job.class = ANY(ARRAY({classes}))",) if asked.of_class else ()
    of_job = (*asked.of_job, *asked.of_time, *asked.of_array)
    where = " AND ".join(("job.id < :high", "job.id >= :low", *of_class, *of_job))
    return f"SELECT job.id FROM job WHERE {where} ORDER BY job.id + 0 {asked.way.order} LIMIT :limit"  # noqa: S608


async def _by_ids(connection: AsyncConnection, asked: _Condition, ids: str) -> list[JobRow]:
    wanted = text(_ROWS.format(ids=f"ARRAY({ids})"))
    return [_row(row) for row in await connection.execute(wanted, asked.values)]


def _row(row: Row[*tuple[Any, ...]]) -> JobRow:
    return JobRow(
        id=JobId(row.id),
        cluster=ClusterName(row.cluster),
        name=row.name,
        user=UserName(row.user_name),
        team=TeamName(row.team) if row.team else None,
        priority=PriorityName(row.priority) if row.priority else None,
        pool=PoolName(row.pool) if row.pool else None,
        slice=SliceName(row.slice) if row.slice else None,
        gpus=row.gpus,
        nodes=row.nodes,
        devices=row.devices,
        state=JobState(row.state),
        desired_state=DesiredState(row.wish),
        code=row.code,
        reason=row.reason,
        reason_code=row.reason_code,
        native=row.native,
        engine_id=None if row.engine_id is None else EngineId(row.engine_id),
        array=None if row.array_first is None else JobId(row.array_first),
        array_index=row.array_index,
        attempts=row.attempts,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        exit_code=row.exit_code,
        time_seconds=row.time_seconds,
    )


row_of = _row

ROW = _ROW


LEAST_OF_ID: Final = 3
"""Minimum characters of an id prefix: fewer match too many ids."""

_LONGEST_WORD: Final = 6
"""Characters of an id that are enough for a billion jobs."""


async def search_page(
    connections: Connections,
    which: JobFilter,
    search: str,
    *,
    before: JobId | None,
    after: JobId | None,
    limit: int,
) -> tuple[JobRow, ...]:
    """Return the page nearest to the start, merged from one page per kind of match."""
    if not search:
        return await page(connections, which, before=before, after=after, limit=limit)
    found: dict[JobId, JobRow] = {}
    for part, low, high in _ways(which, search):
        ceiling = JobId(high if before is None else min(high, before))
        rows = await page(connections, part, before=ceiling, after=after, low=low, limit=limit)
        found |= {row.id: row for row in rows}
    ordered = [found[number] for number in sorted(found, reverse=True)]
    return tuple(ordered[:limit] if after is None else ordered[-limit:])


def _ways(which: JobFilter, search: str) -> Iterator[tuple[JobFilter, int, int]]:
    """Yield the filter of each kind of match, with the id range it covers."""
    spellings = tuple(dict.fromkeys((search, search.lower())))
    yield replace(which, name_begins=spellings), 0, BEYOND
    yield replace(which, user_begins=search), 0, BEYOND
    for low, high in id_ranges(search):
        # Who writes a whole id means that very task, not what stands for its array.
        yield replace(which, once_an_array=which.once_an_array and high - low > 1), low, high


def id_ranges(beginning: str) -> list[tuple[int, int]]:
    """Return the id ranges that begin with these characters; a whole id is its own prefix."""
    number = parse_job_id(beginning.rjust(4, "0"))
    if number is None or len(beginning) < LEAST_OF_ID:
        return []
    lengths = range(max(4, len(beginning)), max(_LONGEST_WORD, len(beginning)) + 1)
    many = [32 ** (length - len(beginning)) for length in lengths if length == 4 or beginning[0] != "0"]
    return [(number * each, (number + 1) * each) for each in many]


MOST_EVENTS: Final = 200


_ONE = text(f"{ROW} WHERE job.id = :id")


_MORE = text("""
    SELECT job.submission, job.sent_at, job_spec.spec, job_spec.why_there, job_spec.submitted_by,
        ledger_mark.mark
    FROM job CROSS JOIN ledger_mark
    LEFT JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = :id
""")


_ATTEMPTS = text("SELECT * FROM attempt WHERE job = :id ORDER BY number")


_EVENTS = text("SELECT at, kind, by_whom, text FROM job_event WHERE job = :id ORDER BY id DESC LIMIT :limit")


_COUNTS: Final = f"""
    SELECT open.cluster, job_class.team, job_class.pool, job_class.slice, open.state,
        sum(open.jobs) AS jobs, sum(open.devices) AS devices
    FROM (
        SELECT cluster, class, state, count(*) AS jobs, sum(devices) AS devices FROM job
        WHERE state IN ({OPEN_JOBS_SQL}) {{of_cluster}}
        GROUP BY cluster, class, state
    ) AS open JOIN job_class ON job_class.id = open.class
    GROUP BY open.cluster, job_class.team, job_class.pool, job_class.slice, open.state
    ORDER BY open.cluster, job_class.team, job_class.pool, job_class.slice, open.state
"""  # noqa: S608

_ALL_COUNTS = text(_COUNTS.format(of_cluster=""))

_CLUSTER_COUNTS = text(_COUNTS.format(of_cluster="AND cluster = :cluster"))


async def one(connections: Connections, number: JobId) -> JobDetail | None:
    async with connections.transaction() as connection:
        row = (await connection.execute(_ONE, {"id": number})).first()
        if row is None:
            return None
        more = (await connection.execute(_MORE, {"id": number})).one()
        attempts = (await connection.execute(_ATTEMPTS, {"id": number})).all()
        events = (await connection.execute(_EVENTS, {"id": number, "limit": MOST_EVENTS})).all()
    ours = more.spec is not None and not row.native
    return JobDetail(
        row=row_of(row),
        spec=job_rows.decoded(more.spec) if ours else None,
        placement_reason=more.why_there if ours else "",
        engine_name=engine_name(more.mark, number, more.submission, row.name) if ours else None,
        submission=more.submission,
        attempts=tuple(_attempt(a) for a in attempts),
        events=_timeline(row, more, events),
    )


async def counts(connections: Connections, cluster: str | None) -> tuple[JobCount, ...]:
    wanted = _ALL_COUNTS if cluster is None else _CLUSTER_COUNTS
    async with connections.single() as connection:
        rows = (await connection.execute(wanted, {} if cluster is None else {"cluster": cluster})).all()
    return tuple(
        JobCount(
            cluster=ClusterName(row.cluster),
            team=TeamName(row.team) if row.team else None,
            pool=PoolName(row.pool) if row.pool else None,
            slice=SliceName(row.slice) if row.slice else None,
            state=JobState(row.state),
            jobs=int(row.jobs),
            devices=int(row.devices),
        )
        for row in rows
    )


def _timeline(row: Row[*tuple[Any, ...]], more: Row[*tuple[Any, ...]], events: Any) -> tuple[JobEvent, ...]:
    """Build a job's timeline. That it was submitted, and last sent, follows from its row."""
    told = [JobEvent(e.at, EventKind(e.kind), e.by_whom, e.text) for e in reversed(events)]
    if more.sent_at is not None:
        told.append(JobEvent(more.sent_at, EventKind.SENT, "", row.engine_id or ""))
    told.sort(key=lambda event: event.at)
    first = JobEvent(row.submitted_at, EventKind.SUBMITTED, more.submitted_by or row.user_name, "")
    return (first, *told)[-MOST_EVENTS:]


def _attempt(row: Row[*tuple[Any, ...]]) -> StoredAttempt:
    return StoredAttempt(row.number, EngineId(row.engine_id), attempt_of(row))


def attempt_of(row: Row[*tuple[Any, ...]]) -> Attempt:
    """Convert a row to an Attempt as the engine reported it."""
    return Attempt(
        started_at=row.started_at,
        nodes=tuple(NodeName(name) for name in row.nodes),
        devices=row.devices,
        ended_at=row.ended_at,
        ending=None if row.ending is None else Ending(row.ending),
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
    )


_ARRAYS = text("""
    SELECT array_first, state, count(*) AS tasks FROM job
    WHERE array_first = ANY(CAST(:arrays AS bigint[])) GROUP BY array_first, state
""")

_HELD = text("""
    SELECT job, sum(devices * extract(epoch FROM COALESCE(ended_at, now()) - started_at)) AS seconds
    FROM attempt WHERE job = ANY(CAST(:jobs AS bigint[])) GROUP BY job
""")


class JobStore:
    """Reads and writes jobs. Sending them to engines is in `DispatchStore`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def mark(self) -> str:
        """Return the four characters that distinguish this ledger's engine jobs from another's; made once."""
        return await submit.ledger_mark(self._connections)

    async def submit(
        self, new: Sequence[NewJob], *, by: str, key: str | None = None
    ) -> tuple[tuple[JobId, ...], ...]:
        """Store jobs, all or none. Returns the id of each, or the ids of its tasks.

        The same `by` and `key` again return the same ids, and nothing is stored twice; raises KeyReused if
        the jobs differ.
        """
        return await submit.submit(self._connections, new, by=by, key=key)

    async def page(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 100
    ) -> tuple[JobRow, ...]:
        """Return at most `limit` (≤ 2000) jobs, newest id first; `before` is the last id seen."""
        return await page(self._connections, which, before=before, limit=limit)

    async def one(self, number: JobId) -> JobDetail | None:
        """Return one job with its attempts and events. Returns None if it is unknown."""
        return await one(self._connections, number)

    async def rows(self, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
        """Return those of these jobs that exist, by id."""
        return await rows(self._connections, numbers)

    async def counts(self, cluster: str | None = None) -> tuple[JobCount, ...]:
        """Count open jobs; the cost does not grow with ended ones."""
        return await counts(self._connections, cluster)

    async def set_desired_state(
        self, numbers: Sequence[JobId], desired: DesiredState, *, by: str
    ) -> tuple[JobId, ...]:
        """Request a hold, release or cancel of jobs. Returns those that it changes.

        A job that was never sent is changed at once. One that has ended, or is already being cancelled, stays
        as it is.
        """
        return await submit.set_desired_state(self._connections, numbers, desired, by=by)

    async def lines(
        self,
        which: JobFilter,
        *,
        search: str = "",
        before: JobId | None = None,
        after: JobId | None = None,
        limit: int = 100,
    ) -> tuple[JobRow, ...]:
        """Return at most `limit` (≤ 2000) jobs, newest first.

        The newest before a job, or the oldest after one. With `search`, those whose name, user or id begins
        with it.
        """
        return await search_page(self._connections, which, search, before=before, after=after, limit=limit)

    async def array_counts(self, arrays: Sequence[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
        """Count the tasks of each array, named by its first task, by state."""
        found: dict[JobId, dict[JobState, int]] = {}
        if arrays:
            async with self._connections.single() as connection:
                for row in await connection.execute(_ARRAYS, {"arrays": list(arrays)}):
                    found.setdefault(JobId(row.array_first), {})[JobState(row.state)] = row.tasks
        return found

    async def held_seconds(self, jobs: Sequence[JobId]) -> Mapping[JobId, int]:
        """Return the device-seconds that each job has held so far, over all its attempts."""
        if not jobs:
            return {}
        async with self._connections.single() as connection:
            rows = (await connection.execute(_HELD, {"jobs": list(jobs)})).all()
        return {JobId(row.job): max(0, int(row.seconds)) for row in rows}
