"""Lists of jobs by any filter, newest first; from a job on to older ones, or to newer ones.

With a filter that few jobs pass, neither the ids nor any one index leads to them quickly. So a page is found
in steps. The classes that pass are found; mostly they are few. If not, the newest jobs are looked through:
mostly that is enough. Otherwise of each class and state the newest job is asked for by one probe of an index,
and only those that can have a job on the page are read further. The work grows with classes, not with jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.job_records import JobFilter, JobRow, Wish
from fairway.ledger.states import LONGEST_PAGE
from fairway.model.job import EngineId, JobId, JobState
from fairway.model.names import ClusterName, PoolName, PriorityName, SliceName, TeamName, UserName

NEWEST: Final = 4000
"""Jobs that are looked through first."""
FEW_PROBES: Final = 300
"""Of classes and states: so few are quicker than looking through."""
MOST_PROBES: Final = 40_000
"""Of classes and states; beyond, looking through ever more of the newest jobs is quicker."""
MOST_JOBS: Final = 2**50
LATE: Final = timedelta(minutes=1)
"""A job that was kept later than that after it was submitted is marked as late."""
_SLACK: Final = timedelta(minutes=2)
"""Of the clock of ids: it knows minutes, and a transaction lasts seconds."""
BEYOND: Final = 2**63 - 1

_ROW: Final = """
    SELECT job.id, job.cluster, job.name, job_class.user_name, job_class.team, job_class.priority,
        job_class.pool, job_class.slice, job.gpus, job.nodes, job.devices, job.state, job.wish, job.code,
        job.reason, job_class.native, job.engine_id, job.array_first, job.array_index, job.attempts,
        job.submitted_at, job.started_at, job.ended_at, job.exit_code, job.time_seconds
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
    """Which way a list goes, as the words of SQL."""

    order: str
    end: str
    farthest: str
    from_id: str
    to_id: str
    window: str

    def probes(self, of_class: str, more: str) -> str:
        """The page of some classes and states."""
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
class _Asked:
    """A filter as SQL: conditions on a class, on a job, and on a job beyond class, state and name."""

    of_class: tuple[str, ...]
    of_job: tuple[str, ...]
    of_time: tuple[str, ...]
    of_array: tuple[str, ...]
    """Dear: to be asked last, of few."""
    values: dict[str, object]
    way: _Way

    @classmethod
    def of(cls, which: JobFilter, way: _Way) -> _Asked:
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
        """What is asked beyond class, state and name."""
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
    """Newest first: the newest before a job, or, with `after`, the oldest after one; none below `low`."""
    asked = _Asked.of(which, _OLDER if after is None else _NEWER)
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


def _newest_first(found: Sequence[JobRow], asked: _Asked) -> tuple[JobRow, ...]:
    """As many as are wanted of the nearer ones."""
    ordered = sorted(found, key=lambda row: -row.id)
    return tuple(ordered[: asked.limit] if asked.way is _OLDER else ordered[-asked.limit :])


async def rows(connections: Connections, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
    wanted = text(_ROWS.format(ids="CAST(:ids AS bigint[])"))
    async with connections.single() as connection:
        found = [_row(row) for row in await connection.execute(wanted, {"ids": list(numbers)})]
    return tuple(reversed(found))


async def _found(connection: AsyncConnection, which: JobFilter, asked: _Asked) -> list[JobRow]:
    """The page between two ids."""
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
    """Whatever was submitted in these times, and was not kept late, has an id from here to below there."""
    low, high = 0, BEYOND
    if which.submitted_after is not None:
        moment = which.submitted_after - _SLACK
        low = (await connection.execute(_FROM_ID, {"moment": moment})).scalar() or 0
    if which.submitted_before is not None:
        moment = which.submitted_before + LATE + _SLACK
        high = (await connection.execute(_UNTIL_ID, {"moment": moment})).scalar() or BEYOND
    return low, high


async def _through(
    connection: AsyncConnection, asked: _Asked, low: int, high: int, *more: str
) -> list[JobRow]:
    """By the order of ids, or of an index that has it."""
    where = asked.where("job.id < :high", "job.id >= :low", *more, *asked.of_array)
    wanted = text(f"{_ROW} WHERE {where} ORDER BY job.id {asked.way.order} LIMIT :limit")
    return [_row(r) for r in await connection.execute(wanted, asked.values | {"low": low, "high": high})]


async def _look_through(connection: AsyncConnection, asked: _Asked, window: int) -> list[JobRow]:
    """Each of the nearest jobs is looked at; OFFSET 0 keeps the planner from a cleverer way."""
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


async def _ever_more(connection: AsyncConnection, asked: _Asked, window: int) -> list[JobRow]:
    while True:
        window *= 8
        found = await _look_through(connection, asked, window)
        if len(found) >= asked.limit or window > MOST_JOBS:
            return found


async def _are_few(connection: AsyncConnection, asked: _Asked, few: int) -> bool:
    """Whether at most so many classes pass. Without a condition all do."""
    if not asked.of_class:
        return False
    some = f"SELECT FROM job_class WHERE {' AND '.join(asked.of_class)} LIMIT :few"
    wanted = text(f"SELECT count(*) FROM ({some}) AS passing")  # noqa: S608
    found = await connection.execute(wanted, asked.values | {"few": few + 1})
    return int(found.scalar_one()) <= few


def _begins(names: Sequence[str], values: dict[str, object]) -> str:
    """Ranges, which an index in bytewise order answers."""
    ranges: list[str] = []
    for n, name in enumerate(names):
        values |= {f"name_from{n}": name, f"name_to{n}": name + _LAST_LETTER}
        ranges.append(f"job.name >= :name_from{n} AND job.name < :name_to{n}")
    return f"({' OR '.join(ranges)})"


def _first_task(which: JobFilter, of_time: tuple[str, ...]) -> str:
    conditions = ["job.state = ANY(CAST(:states AS text[]))"] if which.states else []
    more = "".join(f" AND {one.replace('job.', 'earlier.')}" for one in (*conditions, *of_time))
    return _FIRST_TASK.format(more=more)


def _named(asked: _Asked) -> str:
    """All of a name are read from the index of names, which knows class and state too."""
    classes = f"SELECT id FROM job_class WHERE {' AND '.join(asked.of_class)}"  # noqa: S608
    of_class = (f"job.class = ANY(ARRAY({classes}))",) if asked.of_class else ()
    of_job = (*asked.of_job, *asked.of_time, *asked.of_array)
    where = " AND ".join(("job.id < :high", "job.id >= :low", *of_class, *of_job))
    return f"SELECT job.id FROM job WHERE {where} ORDER BY job.id + 0 {asked.way.order} LIMIT :limit"  # noqa: S608


async def _by_ids(connection: AsyncConnection, asked: _Asked, ids: str) -> list[JobRow]:
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
        wish=Wish(row.wish),
        code=row.code,
        reason=row.reason,
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
