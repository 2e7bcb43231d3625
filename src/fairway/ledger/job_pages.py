"""Lists of jobs by any filter, newest first.

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
_BEYOND: Final = 2**63 - 1

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
        ORDER BY job.id DESC LIMIT :limit
    ) AS found
    ORDER BY found.id DESC LIMIT :limit
"""

_PROBES: Final = """
    WITH head AS MATERIALIZED (
        SELECT class, state, newest.id AS newest
        FROM (SELECT id FROM job_class WHERE {of_class}) AS classes (class)
        CROSS JOIN unnest(CAST(:states AS text[])) AS states (state)
        CROSS JOIN LATERAL (
            SELECT job.id FROM job
            WHERE job.class = classes.class AND job.state = states.state COLLATE "C"
                AND job.id < :high AND job.id >= :low {more}
            ORDER BY job.id DESC LIMIT 1
        ) AS newest
        ORDER BY newest.id DESC LIMIT :limit
    ), cut AS MATERIALIZED (
        SELECT CASE WHEN count(*) < :limit THEN :low ELSE min(newest) END AS id FROM head
    )
    SELECT rest.id FROM head CROSS JOIN cut CROSS JOIN LATERAL (
        SELECT job.id FROM job
        WHERE job.class = head.class AND job.state = head.state COLLATE "C"
            AND job.id <= head.newest AND job.id >= cut.id {more}
        ORDER BY job.id DESC LIMIT :limit
    ) AS rest
    ORDER BY rest.id DESC LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A filter as SQL: conditions on a class, on a job, and on a job beyond class, state and name."""

    of_class: tuple[str, ...]
    of_job: tuple[str, ...]
    of_time: tuple[str, ...]
    values: dict[str, object]

    @classmethod
    def of(cls, which: JobFilter) -> _Asked:
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
        )
        of_job = (*said("job.name", which.name), *said("job.array_first", which.array))
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
        return cls(of_class, of_job, of_time, values)

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


async def page(
    connections: Connections, which: JobFilter, *, before: JobId | None, limit: int
) -> tuple[JobRow, ...]:
    asked = _Asked.of(which)
    asked.values["limit"] = limit = max(1, min(limit, LONGEST_PAGE))
    async with connections.single() as connection:
        high = before if before is not None else _BEYOND
        if which.array is not None:
            return tuple(await _through(connection, asked, 0, high))
        low, top = await _ids_of_times(connection, which)
        asked.values.update({"low": low, "high": min(high, top)})
        found = await _found(connection, which, asked)
        if top < high:  # what was kept late may be old and have a new id
            late = await _through(connection, asked, top, high, "job.late")
            found = sorted([*late, *found], key=lambda row: -row.id)[:limit]
    return tuple(found)


async def rows(connections: Connections, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
    wanted = text(_ROWS.format(ids="CAST(:ids AS bigint[])"))
    async with connections.single() as connection:
        found = [_row(row) for row in await connection.execute(wanted, {"ids": list(numbers)})]
    return tuple(reversed(found))


async def _found(connection: AsyncConnection, which: JobFilter, asked: _Asked) -> list[JobRow]:
    """The page between two ids."""
    more = "".join(f" AND {one}" for one in asked.of_time)
    if not (asked.of_class or asked.of_job):
        return await _through(connection, asked, asked.low, asked.high)
    if not asked.of_class and which.name is None:
        return await _by_ids(connection, asked, _BY_STATE.format(more=more))
    states = [state.value for state in which.states or JobState]
    asked.values["states"] = states
    if not await _are_few(connection, asked, FEW_PROBES // len(states)):
        window = max(NEWEST, 4 * asked.limit)
        found = await _look_through(connection, asked, window)
        if len(found) >= asked.limit:
            return found
        if which.name is None and not await _are_few(connection, asked, MOST_PROBES // len(states)):
            return await _ever_more(connection, asked, window)
    if which.name is not None:
        return await _by_ids(connection, asked, _named(asked))
    return await _by_ids(connection, asked, _PROBES.format(more=more, of_class=" AND ".join(asked.of_class)))


async def _ids_of_times(connection: AsyncConnection, which: JobFilter) -> tuple[int, int]:
    """Whatever was submitted in these times, and was not kept late, has an id from here to below there."""
    low, high = 0, _BEYOND
    if which.submitted_after is not None:
        moment = which.submitted_after - _SLACK
        low = (await connection.execute(_FROM_ID, {"moment": moment})).scalar() or 0
    if which.submitted_before is not None:
        moment = which.submitted_before + LATE + _SLACK
        high = (await connection.execute(_UNTIL_ID, {"moment": moment})).scalar() or _BEYOND
    return low, high


async def _through(
    connection: AsyncConnection, asked: _Asked, low: int, high: int, *more: str
) -> list[JobRow]:
    """By the order of ids, or of an index that has it."""
    where = asked.where("job.id < :high", "job.id >= :low", *more)
    wanted = text(f"{_ROW} WHERE {where} ORDER BY job.id DESC LIMIT :limit")
    return [_row(r) for r in await connection.execute(wanted, asked.values | {"low": low, "high": high})]


async def _look_through(connection: AsyncConnection, asked: _Asked, window: int) -> list[JobRow]:
    """Each of the newest jobs is looked at; OFFSET 0 keeps the planner from a cleverer way."""
    newest = "LEAST(:high, (SELECT max(id) + 1 FROM job))"
    few = f"(SELECT * FROM job WHERE id < :high AND id >= GREATEST(:low, {newest} - :window) OFFSET 0)"  # noqa: S608
    wanted = _ROW.replace("FROM job ", f"FROM {few} AS job ") + f"WHERE {asked.where()} ORDER BY job.id DESC"
    values = asked.values | {"window": window}
    return [_row(r) for r in await connection.execute(text(f"{wanted} LIMIT :limit"), values)]


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


def _named(asked: _Asked) -> str:
    """All of a name are read from the index of names, which knows class and state too."""
    classes = f"SELECT id FROM job_class WHERE {' AND '.join(asked.of_class)}"  # noqa: S608
    of_class = (f"job.class = ANY(ARRAY({classes}))",) if asked.of_class else ()
    where = " AND ".join(("job.id < :high", "job.id >= :low", *of_class, *asked.of_job, *asked.of_time))
    return f"SELECT job.id FROM job WHERE {where} ORDER BY job.id + 0 DESC LIMIT :limit"  # noqa: S608


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
