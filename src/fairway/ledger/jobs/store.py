"""Read and write jobs; list them by any filter, newest first, from a given job to older or newer ones.

With a filter that few jobs match, neither the ids nor any single index leads to them quickly. So a page is
found in steps. The matching classes are found; usually they are few. If not, the newest jobs are scanned:
usually that is enough. Otherwise the newest job of each class and state is found by one index probe, and only
those that can have a job on the page are read further. The work grows with classes, not with jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.jobs import submit
from fairway.ledger.jobs.label_values import LIMITED
from fairway.ledger.records.jobs import (
    DesiredState,
    EventKind,
    JobCount,
    JobDetail,
    JobEvent,
    JobFilter,
    JobRow,
    JobSort,
    JobSortKey,
    NewJob,
    StoredAttempt,
)
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import sql_list
from fairway.ledger.sql_values import AnyRow, json_rows, page_limit
from fairway.model.access import Role
from fairway.model.job import (
    OPEN_JOBS,
    Attempt,
    Ending,
    EngineId,
    JobId,
    JobState,
    engine_name,
    parse_job_id,
)
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.usage import HeldDevices
from fairway.model.workload_kinds import GROUP_KIND, WORKLOAD_KINDS

NEWEST: Final = 4000
"""Jobs that are scanned first."""

SEARCHED: Final = 100_000
"""Jobs whose names are searched for a substring, which no index finds: the newest before the cursor."""

MAX_SORTED: Final = 5000
"""Jobs that are sorted by another column than their id: the newest that match."""

FEW_PROBES: Final = 300
"""Of classes and states: up to so many are faster than a scan."""

MAX_PROBES: Final = 40_000
"""Of classes and states; beyond, scanning more and more of the newest jobs is faster."""

MAX_JOBS: Final = 2**50

MAX_EVENTS: Final = 200

HELD_EXACTLY: Final = 500
"""Replicas of a job whose times are read one by one."""

_DAY: Final = 86_400

MAX_REPLICAS: Final = 200
"""Replicas of a job that are read with it: those that run, and as many of the newest."""

LATE: Final = timedelta(minutes=1)
"""A job that was stored later than that after it was submitted is marked as late."""

_SLACK: Final = timedelta(minutes=2)
"""Tolerance of the clock of ids: it knows minutes, and a transaction lasts seconds."""

_MAX_ID: Final = 2**63 - 1

_MIN_ID_PREFIX: Final = 3
"""Minimum characters of an id prefix: fewer match too many ids."""

MAX_COUNTED: Final = 10_000
"""Jobs of a team that `history` counts; more are as good as that many."""

_KINDS: Final = tuple(sorted({kind.kind.lower() for kind in WORKLOAD_KINDS} | {GROUP_KIND.lower()}))
"""Kinds in engine ids, which people leave out: `serving/llm` is `serving/deployment/llm`."""

MAX_REFERENCED: Final = 20
"""Jobs that one reference without a uid may match; more are ambiguous anyway."""

_MAX_ID_LENGTH: Final = 6
"""Characters of an id that are enough for a billion jobs."""

_LAST_LETTER: Final = chr(0x10FFFF)

_ROW: Final = """
    SELECT job.id, job.cluster, job.name, job_class.user_name, job_class.team, job_class.priority,
        job_class.pool, job_class.slice, job.gpus, job.nodes, job.devices, job.state, job.wish, job.code,
        job.reason, job.reason_code, job_class.native, job.engine_id, job.array_first, job.array_index,
        job.attempts, job.submitted_at, job.started_at, job.ended_at, job.exit_code, job.time_seconds,
        job_class.kind, job_class.service, job.replicas, job_class.project, job_class.labels
    FROM job JOIN job_class ON job_class.id = job.class
"""

_ID: Final = "SELECT job.id FROM job JOIN job_class ON job_class.id = job.class"

_ROWS: Final = f"{_ROW} WHERE job.id = ANY({{ids}}) ORDER BY job.id DESC"

# How long it has waited, has been running, or ran; nothing for a job that ended before it started.
_SECONDS: Final = f"""CASE
    WHEN job.state = 'running' THEN now() - COALESCE(job.started_at, job.submitted_at)
    WHEN job.state IN ({OPEN_JOBS_SQL}) THEN now() - job.submitted_at
    ELSE job.ended_at - job.started_at
END"""

_SORT_KEYS: Final[Mapping[JobSortKey, str]] = {
    JobSortKey.SUBMITTED: "job.id",
    JobSortKey.NAME: "lower(job.name)",
    JobSortKey.STATE: f"array_position(ARRAY[{sql_list(JobState)}], job.state::text)",
    JobSortKey.GPUS: "job.devices",
    JobSortKey.POOL: "NULLIF(job_class.pool, '')",
    JobSortKey.TEAM: "NULLIF(job_class.team, '')",
    JobSortKey.USER: "NULLIF(job_class.user_name, '')",
    JobSortKey.PRIORITY: "NULLIF(job_class.priority, '')",
    JobSortKey.TIME: _SECONDS,
    JobSortKey.ENDED: "job.ended_at",
}

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

# The ids of classes and states from the indexes alone, at most :window of each, before arrays are looked at.
_OF_CLASSES: Final = """
    SELECT near.id FROM (SELECT id FROM job_class WHERE {of_class}) AS classes (class)
    CROSS JOIN unnest(CAST(:states AS text[])) AS states (state)
    CROSS JOIN LATERAL (
        SELECT job.id FROM job
        WHERE job.class = classes.class AND job.state = states.state COLLATE "C"
            AND job.id < :high AND job.id >= :low
        ORDER BY job.id {order} LIMIT :window
    ) AS near
    ORDER BY near.id {order} LIMIT :window
"""

# The first task that matches represents its array; seldom are the tasks of an array of several classes. The
# nearest earlier match is read backwards from the task, so that all tasks together read the array once. Only
# job_array_idx has this order, and CASE keeps the planner from indexes of class or state: it would read and
# sort the whole array for each of its tasks.
_FIRST_TASK: Final = """(job.array_first IS NULL OR NOT EXISTS (
    SELECT FROM (
        SELECT FROM job AS earlier
        WHERE earlier.array_first >= job.array_first
            AND (earlier.array_first, earlier.id) < (job.array_first, job.id)
            AND CASE WHEN earlier.class = job.class {more} THEN true END
        ORDER BY earlier.array_first DESC, earlier.id DESC LIMIT 1
    ) AS nearest
))"""

_ONE = text(f"{_ROW} WHERE job.id = :id")

_BY_ENGINE_IDS = text(
    _ROWS.format(
        ids="ARRAY(SELECT engine_job.job FROM engine_job WHERE engine_job.cluster = :cluster"
        " AND engine_job.engine_id = ANY(CAST(:ids AS text[])))"
    )
)

# A Kubernetes object is named by namespace and name; the id of one that Fairway did not make has its uid too.
_REFERENCED = text("""
    SELECT DISTINCT asked.word, found.job
    FROM unnest(CAST(:words AS text[]), CAST(:clusters AS text[]), CAST(:ids AS text[]))
        AS asked (word, cluster, engine_id)
    JOIN (SELECT DISTINCT cluster FROM job_class) AS clusters
        ON asked.cluster = '' OR asked.cluster = clusters.cluster COLLATE "C"
    CROSS JOIN LATERAL (
        SELECT job FROM engine_job
        WHERE engine_job.cluster = clusters.cluster AND engine_job.engine_id = asked.engine_id COLLATE "C"
        UNION ALL
        SELECT job FROM engine_array
        WHERE engine_array.cluster = clusters.cluster AND engine_array.engine_id = asked.engine_id COLLATE "C"
        UNION ALL
        (SELECT job FROM engine_job
        WHERE asked.engine_id LIKE '%/%' AND engine_job.cluster = clusters.cluster
            AND engine_job.engine_id > (asked.engine_id || '/') COLLATE "C"
            AND engine_job.engine_id < (asked.engine_id || '0') COLLATE "C"
        ORDER BY engine_job.engine_id LIMIT :most)
    ) AS found
""")

_MORE = text("""
    SELECT job.submission, job.sent_at, job_spec.spec, job_spec.why_there, job_spec.submitted_by,
        ledger_mark.mark
    FROM job CROSS JOIN ledger_mark
    LEFT JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = :id
""")

_ATTEMPTS = text("SELECT * FROM attempt WHERE job = :id ORDER BY number")

_REPLICAS = text("""
    (SELECT * FROM attempt WHERE job = :id AND replica <> '' AND ending IS NULL LIMIT :limit)
    UNION (SELECT * FROM attempt WHERE job = :id ORDER BY number DESC LIMIT :limit)
    ORDER BY number
""")

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

# Counted up to a limit: a plan needs to know whether a team has jobs, and roughly how many.
_HISTORY = text("""
    SELECT teams.team, recent.jobs AS recent, EXISTS (
        SELECT FROM job JOIN job_class ON job_class.id = job.class WHERE job_class.team = teams.team
    ) AS ever
    FROM unnest(CAST(:teams AS text[])) AS teams (team) CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM job JOIN job_class ON job_class.id = job.class
            WHERE job_class.team = teams.team COLLATE "C" AND job.id >= :low AND job.submitted_at >= :since
            LIMIT :most
        ) AS found
    ) AS recent
""")

_USE_ABOVE = text("""
    SELECT job_class.user_name, sum(attempt.devices * greatest(0, extract(epoch FROM
        COALESCE(attempt.ended_at, left_cluster.seen_at, now()) - attempt.started_at))) AS seconds
    FROM job JOIN job_class ON job_class.id = job.class JOIN attempt ON attempt.job = job.id
    LEFT JOIN left_cluster ON left_cluster.cluster = job.cluster
    WHERE job_class.team = ANY(CAST(:teams AS text[])) AND job.id >= :low AND job.submitted_at >= :since
        AND (attempt.devices > CAST(:gpus AS bigint) OR extract(epoch FROM
            COALESCE(attempt.ended_at, left_cluster.seen_at, now()) - attempt.started_at)
            > CAST(:seconds AS bigint))
    GROUP BY job_class.user_name
""")

# Read from an index of open jobs, and no further than needed.
_OPEN_OF = """
    SELECT count(*) FROM (
        SELECT FROM job WHERE class = ANY(ARRAY(
            SELECT id FROM job_class WHERE {whose} = :name AND NOT native
        )) AND state IN ({open}) LIMIT :most
    ) AS found
"""

_OPEN_OF_USER = text(_OPEN_OF.format(whose="user_name", open=OPEN_JOBS_SQL))

_OPEN_OF_TEAM = text(_OPEN_OF.format(whose="team", open=OPEN_JOBS_SQL))

_USERS = text("""
    SELECT DISTINCT user_name FROM job_class WHERE strpos(lower(user_name), :part) > 0
    ORDER BY user_name LIMIT :limit
""")

_ARRAYS = text("""
    SELECT array_first, state, count(*) AS tasks FROM job
    WHERE array_first = ANY(CAST(:arrays AS bigint[])) GROUP BY array_first, state
""")

# A job of a cluster that left the fleet held its devices until it was last seen, as far as is known.
_HELD = text("""
    SELECT attempt.job, attempt.devices, attempt.started_at,
        COALESCE(attempt.ended_at, left_cluster.seen_at, :now) AS ended_at,
        attempt.ended_at IS NULL AND left_cluster.seen_at IS NULL AS running
    FROM attempt JOIN job ON job.id = attempt.job LEFT JOIN left_cluster USING (cluster)
    WHERE attempt.job = ANY(CAST(:jobs AS bigint[])) AND attempt.devices > 0
""")

_MANY = text(
    "SELECT id FROM job WHERE id = ANY(CAST(:jobs AS bigint[])) AND attempts > :most AND replicas IS NOT NULL"
)

# Of very many replicas, those that ended are added up by day: prices seldom change within one.
_HELD_BY_DAY = text("""
    SELECT job, day.began, CAST(sum(devices * extract(epoch FROM
        least(ended_at, day.began + interval '1 day') - greatest(started_at, day.began))) AS bigint) AS held
    FROM attempt CROSS JOIN LATERAL generate_series(
        date_trunc('day', started_at, 'UTC'), ended_at, interval '1 day'
    ) AS day (began)
    WHERE job = ANY(CAST(:jobs AS bigint[])) AND devices > 0 AND ended_at > started_at
    GROUP BY job, day.began
""")
_HELD_NOW = text(f"""
    {_HELD.text} AND attempt.replica <> '' AND attempt.ending IS NULL
""")


@dataclass(frozen=True, slots=True)
class _Direction:
    """The direction of a list, as SQL fragments."""

    order: str
    end: str
    farthest: str
    from_id: str
    to_id: str
    window: str


_NEWEST = text("SELECT max(id) FROM job")

_NEWEST_ID: Final = "LEAST(:high, (SELECT max(id) + 1 FROM job))"

_OLDER: Final = _Direction(
    order="DESC",
    end=":low",
    farthest="min",
    from_id="cut.id",
    to_id="head.nearest",
    window=f"id < :high AND id >= GREATEST(:low, {_NEWEST_ID} - :window)",
)

_NEWER: Final = _Direction(
    order="ASC",
    end=":high",
    farthest="max",
    from_id="head.nearest",
    to_id="cut.id",
    window="id >= :low AND id < LEAST(:high, :low + :window)",
)


_ON_NODE = (
    "EXISTS (SELECT FROM attempt"
    " WHERE attempt.job = job.id AND attempt.ended_at IS NULL AND :node = ANY(attempt.nodes))"
)


class _JobQuery:
    """A filter as SQL: conditions on a class, on a job, and on a job beyond class, state and name."""

    def __init__(
        self, connection: AsyncConnection, which: JobFilter, direction: _Direction, limit: int
    ) -> None:
        self._connection = connection
        self._which = which
        self._direction = direction
        self._limit = limit
        self._columns = _ROW
        self._values: dict[str, object] = {"limit": limit}
        self._of_class = (
            *self._equals("job_class.cluster", which.cluster),
            *self._equals("job_class.team", which.team),
            *self._equals("job_class.user_name", which.user),
            *self._equals("job_class.pool", which.pool),
            *self._equals("job_class.native", which.native),
            *self._equals("job_class.priority", which.priority),
            *self._equals("job_class.service", which.service),
            *self._equals("job_class.project", which.project),
        )
        if which.labels:
            self._values["labels"] = json_rows(dict(which.labels))
            self._of_class += ("job_class.labels @> CAST(:labels AS jsonb)",)
        if which.kind is not None:
            self._values["kind"] = which.kind.lower()
            self._of_class += ("lower(job_class.kind) = :kind",)
        if which.teams is not None:
            self._values["teams"] = list(which.teams)
            self._of_class += ("job_class.team = ANY(CAST(:teams AS text[]))",)
        if which.user_contains is not None:
            self._values["user_contains"] = which.user_contains.lower()
            self._of_class += ("strpos(lower(job_class.user_name), :user_contains) > 0",)
        self._of_job = (*self._equals("job.name", which.name), *self._equals("job.array_first", which.array))
        if which.name_begins:
            self._of_job += (self._begins("job.name", which.name_begins),)
        if which.name_contains is not None:
            self._values["name_contains"] = which.name_contains.lower()
            self._of_job += ("strpos(lower(job.name), :name_contains) > 0",)
        if which.states:
            self._values["states"] = [state.value for state in which.states]
            self._of_job += ("job.state = ANY(CAST(:states AS text[]))",)
        self._of_time: tuple[str, ...] = ()
        if which.submitted_after is not None:
            self._values["after"] = which.submitted_after
            self._of_time += ("job.submitted_at >= :after",)
        if which.submitted_before is not None:
            self._values["until"] = which.submitted_before
            self._of_time += ("job.submitted_at < :until",)
        if which.node is not None:
            self._values["node"] = which.node
            self._of_time += (_ON_NODE,)
        # Expensive: checked last, on few rows.
        self._of_array = (self._first_task(),) if which.once_an_array else ()

    def _equals(self, column: str, value: object) -> tuple[str, ...]:
        if value is None:
            return ()
        name = column.replace(".", "_")
        self._values[name] = value
        return (f"{column} = :{name}",)

    def _begins(self, column: str, prefixes: Sequence[str]) -> str:
        """Return a prefix condition as ranges, which an index in bytewise order can answer."""
        name = column.replace(".", "_")
        ranges: list[str] = []
        for n, prefix in enumerate(prefixes):
            self._values |= {f"{name}_from{n}": prefix, f"{name}_to{n}": prefix + _LAST_LETTER}
            ranges.append(f"{column} >= :{name}_from{n} AND {column} < :{name}_to{n}")
        return f"({' OR '.join(ranges)})"

    def _first_task(self) -> str:
        of_state = ("job.state = ANY(CAST(:states AS text[]))",) if self._which.states else ()
        conditions = (one.replace("job.", "earlier.") for one in (*of_state, *self._of_time))
        return _FIRST_TASK.format(more="".join(f" AND {one}" for one in conditions))

    async def page(self, low: int, high: int) -> list[JobRow]:
        """Return the page of jobs with ids from `low` to below `high`, in any order."""
        return [_job_row(row) for row in await self._page(_ROW, low, high)]

    async def ids(self, low: int, high: int) -> list[int]:
        """Return the ids of that page alone: for many jobs, of which few are shown."""
        return [row.id for row in await self._page(_ID, low, high)]

    async def _page(self, columns: str, low: int, high: int) -> list[AnyRow]:
        self._columns = columns
        if self._which.array is not None:
            return await self._in_order(low, high)
        first, end = await self._submitted_ids()
        find = self._between if self._which.name_contains is None else self._containing
        found = await find(max(first, low), min(high, end)) if max(first, low) < min(high, end) else []
        if end < high:  # a job that was stored late may be old and have a new id
            found += await self._in_order(max(end, low), high, "job.late")
        return found

    async def _submitted_ids(self) -> tuple[int, int]:
        """Return the id range of jobs submitted in the filter's time range, except those stored late."""
        low, high = 0, _MAX_ID
        if self._which.submitted_after is not None:
            moment = _shifted(self._which.submitted_after, -_SLACK)
            low = (await self._connection.execute(_FROM_ID, {"moment": moment})).scalar() or 0
        if self._which.submitted_before is not None:
            moment = _shifted(self._which.submitted_before, LATE + _SLACK)
            high = (await self._connection.execute(_UNTIL_ID, {"moment": moment})).scalar() or _MAX_ID
        return low, high

    async def _between(self, low: int, high: int) -> list[AnyRow]:
        if not (self._of_class or self._of_job):
            return await self._in_order(low, high)
        more = "".join(f" AND {one}" for one in (*self._of_time, *self._of_array))
        order, of_class = self._direction.order, " AND ".join(self._of_class)
        self._values |= {"low": low, "high": high}
        named = self._which.name is not None or bool(self._which.name_begins)
        if not self._of_class and not named:
            return await self._by_ids(_BY_STATE.format(more=more, order=order))
        states = [state.value for state in self._which.states or JobState]
        self._values["states"] = states
        # Very many names may match a prefix: unless the newest are scanned first, all of them would be read.
        if self._which.name_begins or not await self._are_few_classes(FEW_PROBES // len(states)):
            window = max(NEWEST, 4 * self._limit)
            found = await self._nearest(window)
            if len(found) >= self._limit:
                return found
            if not named and not await self._are_few_classes(MAX_PROBES // len(states)):
                while len(found) < self._limit and window <= MAX_JOBS:
                    window *= 8
                    found = await self._nearest(window)
                return found
        if named:
            return await self._by_ids(self._named())
        return await self._by_class(of_class, more)

    async def _by_class(self, of_class: str, more: str) -> list[AnyRow]:
        """Read from the index of classes: the ids of a long page first, since probes check every array."""
        if self._limit > FEW_PROBES and (many := await self._many_of_classes(of_class, more)) is not None:
            return many
        return await self._by_ids(_PROBES.format(of_class=of_class, more=more, **asdict(self._direction)))

    async def _many_of_classes(self, of_class: str, more: str) -> list[AnyRow] | None:
        """Read a long page. Returns None if too few of the ids that were read represent their arrays."""
        order, window = self._direction.order, 4 * self._limit
        ids = [
            row.id
            for row in await self._rows(_OF_CLASSES.format(of_class=of_class, order=order), window=window)
        ]
        near = f"(SELECT * FROM job WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id {order} OFFSET 0)"  # noqa: S608
        query = (
            self._columns.replace("FROM job ", f"FROM {near} AS job ")
            + f" WHERE true{more} ORDER BY job.id {order} LIMIT :limit"
        )
        found = await self._rows(query, ids=ids)
        return found if len(found) == self._limit or len(ids) < window else None

    async def _containing(self, low: int, high: int) -> list[AnyRow]:
        """Scan the nearest jobs for a substring of their names."""
        self._values |= {"low": low, "high": high}
        found = await self._nearest(min(max(NEWEST, 4 * self._limit), SEARCHED))
        return found if len(found) >= self._limit else await self._nearest(SEARCHED)

    async def count_by_state(self, search: str) -> list[AnyRow]:
        """Count the jobs that match, by state."""
        conditions = [*self._of_class, *self._of_job, *self._of_time]
        if search:
            self._values["search"] = search.lower()
            ids = [f"job.id >= {low} AND job.id < {high}" for low, high in _id_ranges(search)]
            anywhere = [f"strpos(lower({one}), :search) > 0" for one in ("job.name", "job_class.user_name")]
            conditions.append(f"({' OR '.join((*anywhere, *ids))})")
        where = " AND ".join((f"job.state IN ({OPEN_JOBS_SQL})", *conditions))
        return await self._rows(
            "SELECT job.state, count(*) AS jobs FROM job JOIN job_class ON job_class.id = job.class"  # noqa: S608
            f" WHERE {where} GROUP BY job.state"
        )

    async def _in_order(self, low: int, high: int, *more: str) -> list[AnyRow]:
        """Read in id order, or by an index that has it."""
        conditions = (*more, *self._of_class, *self._of_job, *self._of_time, *self._of_array)
        where = " AND ".join(("job.id < :high", "job.id >= :low", *conditions))
        query = f"{self._columns} WHERE {where} ORDER BY job.id {self._direction.order} LIMIT :limit"
        return await self._rows(query, low=low, high=high)

    async def _nearest(self, window: int) -> list[AnyRow]:
        """Scan the nearest jobs; OFFSET 0 keeps the planner from choosing another plan."""
        order = self._direction.order
        near = f"(SELECT * FROM job WHERE {self._direction.window} OFFSET 0)"  # noqa: S608
        # The matching jobs first; which of them represent their arrays is then checked of those alone.
        where = " AND ".join((*self._of_class, *self._of_job, *self._of_time)) or "true"
        matching = (
            f"(SELECT job.* FROM {near} AS job JOIN job_class ON job_class.id = job.class"  # noqa: S608
            f" WHERE {where} ORDER BY job.id {order} OFFSET 0)"
        )
        query = (
            self._columns.replace("FROM job ", f"FROM {matching} AS job ")
            + f" WHERE {' AND '.join(self._of_array) or 'true'} ORDER BY job.id {order} LIMIT :limit"
        )
        return await self._rows(query, window=window)

    async def _are_few_classes(self, few: int) -> bool:
        """Return whether at most so many classes match. Without a condition all do."""
        if not self._of_class:
            return False
        some = f"SELECT FROM job_class WHERE {' AND '.join(self._of_class)} LIMIT :few"
        query = text(f"SELECT count(*) FROM ({some}) AS matching")  # noqa: S608
        found = await self._connection.execute(query, self._values | {"few": few + 1})
        return int(found.scalar_one()) <= few

    def _named(self) -> str:
        """Return the SQL of a page by name: read from the index of names, which has class and state too."""
        classes = f"SELECT id FROM job_class WHERE {' AND '.join(self._of_class)}"  # noqa: S608
        of_class = (f"job.class = ANY(ARRAY({classes}))",) if self._of_class else ()
        of_job = (*self._of_job, *self._of_time, *self._of_array)
        where = " AND ".join(("job.id < :high", "job.id >= :low", *of_class, *of_job))
        order = f"ORDER BY job.id + 0 {self._direction.order}"
        return f"SELECT job.id FROM job WHERE {where} {order} LIMIT :limit"  # noqa: S608

    async def _by_ids(self, ids: str) -> list[AnyRow]:
        return await self._rows(f"{self._columns} WHERE job.id = ANY(ARRAY({ids})) ORDER BY job.id DESC")

    async def _rows(self, query: str, **values: object) -> list[AnyRow]:
        return list((await self._connection.execute(text(query), self._values | values)).all())


class JobStore(LedgerStore):
    """Reads and writes jobs. Sending them to engines is in `DispatchStore`."""

    async def mark(self) -> str:
        """Return the four characters that distinguish this ledger's engine jobs from another's; made once."""
        async with self._connections.single() as connection:
            return await submit.ledger_mark(connection)

    async def submit(
        self, new: Sequence[NewJob], *, by: str, key: str | None = None
    ) -> tuple[tuple[JobId, ...], ...]:
        """Store jobs, all or none. Returns the id of each, or the ids of its tasks.

        The same `by` and `key` again return the same ids, and nothing is stored twice; raises KeyReused if
        the jobs differ.
        """
        return await submit.submit(self._connections, new, by=by, key=key)

    async def set_desired_state(
        self, numbers: Sequence[JobId], desired: DesiredState, *, by: str, role: Role | None = None
    ) -> tuple[JobId, ...]:
        """Request a hold, release or cancel of jobs. Returns those that it changes.

        A job that was never sent is changed at once. One that has ended, or is already being cancelled, stays
        as it is. With the `role` of who asks, a hold is kept as a lead's or an operator's. Raises HeldByRole
        if somebody of a lower role wants to release it.
        """
        return await submit.set_desired_state(self._connections, numbers, desired, by=by, role=role)

    async def page(
        self,
        which: JobFilter,
        *,
        search: str = "",
        before: JobId | None = None,
        after: JobId | None = None,
        limit: int = 100,
    ) -> tuple[JobRow, ...]:
        """Return at most `limit` (≤ 2000) jobs, newest first.

        The newest before a job, or the oldest after one. With `search`, those whose user contains it, whose
        name or id begins with it, or whose name contains it and that are among the SEARCHED newest.
        """
        if not search:
            return await self._page(which, 0, before, after, limit)
        found: dict[JobId, JobRow] = {}
        for part, low, high in _search_filters(which, search):
            ceiling = JobId(high if before is None else min(high, before))
            found |= {row.id: row for row in await self._page(part, low, ceiling, after, limit)}
        ordered = [found[number] for number in sorted(found, reverse=True)]
        return tuple(ordered[:limit] if after is None else ordered[-limit:])

    async def _page(
        self, which: JobFilter, low: int, before: JobId | None, after: JobId | None, limit: int
    ) -> tuple[JobRow, ...]:
        limit = page_limit(limit)
        floor = low if after is None else max(low, after + 1)
        async with self._connections.single() as connection:
            query = _JobQuery(connection, which, _OLDER if after is None else _NEWER, limit)
            found = await query.page(floor, _MAX_ID if before is None else before)
        ordered = sorted(found, key=lambda row: -row.id)
        return tuple(ordered[:limit] if after is None else ordered[-limit:])

    async def sorted_page(
        self, which: JobFilter, sort: JobSort, *, search: str = "", offset: int = 0, limit: int = 100
    ) -> tuple[JobRow, ...]:
        """Return at most `limit` jobs from an offset on, of the MAX_SORTED newest that match, in this order.

        Sorted by submission from the oldest on, of the MAX_SORTED oldest. Jobs without a value come last.
        """
        oldest = sort.key is JobSortKey.SUBMITTED and not sort.descending
        filters = list(_search_filters(which, search)) if search else [(which, 0, _MAX_ID)]
        found: set[int] = set()
        async with self._connections.single() as connection:
            for part, low, high in filters:
                query = _JobQuery(connection, part, _NEWER if oldest else _OLDER, MAX_SORTED)
                found.update(await query.ids(low, high))
            ids = sorted(found, reverse=not oldest)[:MAX_SORTED]
            order = f"{_SORT_KEYS[sort.key]} {'DESC' if sort.descending else 'ASC'} NULLS LAST, job.id DESC"
            query_text = f"{_ROW} WHERE job.id = ANY(:ids) ORDER BY {order} LIMIT :limit OFFSET :offset"
            values = {"ids": ids, "limit": page_limit(limit), "offset": offset}
            rows = (await connection.execute(text(query_text), values)).all()
        return tuple(_job_row(row) for row in rows)

    async def newest_id(self) -> JobId | None:
        """Return the newest job's id. Returns None if there is no job."""
        (row,) = await self._fetch(_NEWEST)
        return None if row[0] is None else JobId(row[0])

    async def count_open(self, which: JobFilter, search: str = "") -> Mapping[JobState, int]:
        """Count the open jobs that match, by state; every task counts. The filter's own states are ignored.

        It reads open jobs only, of an index that has nothing else.
        """
        open_only = replace(which, states=OPEN_JOBS, once_an_array=False)
        async with self._connections.single() as connection:
            query = _JobQuery(connection, open_only, _OLDER, 1)
            rows = await query.count_by_state(search)
        return {JobState(row.state): int(row.jobs) for row in rows}

    async def one(self, number: JobId) -> JobDetail | None:
        """Return one job with its attempts and events. Returns None if it is unknown."""
        async with self._connections.transaction() as connection:
            row = (await connection.execute(_ONE, {"id": number})).first()
            if row is None:
                return None
            more = (await connection.execute(_MORE, {"id": number})).one()
            statement, values = (
                (_ATTEMPTS, {"id": number})
                if row.replicas is None
                else (_REPLICAS, {"id": number, "limit": MAX_REPLICAS})
            )
            attempts = (await connection.execute(statement, values)).all()
            events = (await connection.execute(_EVENTS, {"id": number, "limit": MAX_EVENTS})).all()
        ours = more.spec is not None and not row.native
        return JobDetail(
            row=_job_row(row),
            spec=submit.decode_spec(more.spec) if ours else None,
            placement_reason=more.why_there if ours else "",
            engine_name=engine_name(more.mark, number, more.submission, row.name) if ours else None,
            submission=more.submission,
            attempts=tuple(attempt_of(attempt) for attempt in attempts),
            events=_timeline(row, more, events),
        )

    async def rows(self, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
        """Return those of these jobs that exist, by id."""
        query = text(_ROWS.format(ids="CAST(:ids AS bigint[])"))
        found = await self._fetch(query, {"ids": list(numbers)})
        return tuple(_job_row(row) for row in reversed(found))

    async def by_engine_ids(self, cluster: str, ids: Sequence[str]) -> tuple[JobRow, ...]:
        """Return the jobs of a cluster with these engine ids, as far as they are known."""
        if not ids:
            return ()
        found = await self._fetch(_BY_ENGINE_IDS, {"cluster": cluster, "ids": list(ids)})
        return tuple(_job_row(row) for row in found)

    async def by_references(self, words: Sequence[str]) -> Mapping[str, tuple[JobRow, ...]]:
        """Return the jobs that engines know by each of these words, newest first.

        A word is an engine id, with its cluster or without: `hpc/1542`, `1542_4`, `team/train-0`.
        """
        asked = [(word, *reading) for word in words for reading in _readings(word)]
        values = {
            "words": [word for word, _, _ in asked],
            "clusters": [cluster for _, cluster, _ in asked],
            "ids": [engine_id for _, _, engine_id in asked],
            "most": MAX_REFERENCED,
        }
        pairs = await self._fetch(_REFERENCED, values) if asked else ()
        rows = {row.id: row for row in await self.rows([row.job for row in pairs])} if pairs else {}
        found: dict[str, list[JobRow]] = {}
        for pair in sorted(pairs, key=lambda pair: -pair.job):
            if pair.job in rows:
                found.setdefault(pair.word, []).append(rows[pair.job])
        return {word: tuple(jobs) for word, jobs in found.items()}

    async def counts(self, cluster: str | None = None) -> tuple[JobCount, ...]:
        """Count open jobs; the cost does not grow with ended ones."""
        rows = (
            await self._fetch(_ALL_COUNTS)
            if cluster is None
            else await self._fetch(_CLUSTER_COUNTS, {"cluster": cluster})
        )
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

    async def count_open_of_user(self, user: UserName, most: int) -> int:
        """Count a user's open jobs, at most `most`, without native ones."""
        rows = await self._fetch(_OPEN_OF_USER, {"name": user, "most": most})
        return int(rows[0][0])

    async def count_open_of_team(self, team: TeamName, most: int) -> int:
        """Count a team's open jobs, at most `most`, without native ones and those of teams inside it."""
        rows = await self._fetch(_OPEN_OF_TEAM, {"name": team, "most": most})
        return int(rows[0][0])

    async def find_users(self, part: str, limit: int) -> list[UserName]:
        """Return users who ever had a job and whose names have this part, in lower case."""
        return [UserName(row.user_name) for row in await self._fetch(_USERS, {"part": part, "limit": limit})]

    async def limited_labels(self, cluster: str) -> tuple[str, ...]:
        """Return the keys of which a value of a job became `(other)` within a day; empty: projects."""
        return tuple(row.key for row in await self._fetch(LIMITED, {"cluster": cluster}))

    async def has_key(self, by: str, key: str) -> bool:
        """Return whether jobs were submitted under this key."""
        async with self._connections.single() as connection:
            return await submit.has_key(connection, by, key)

    async def history(self, teams: Sequence[str], since: datetime) -> Mapping[TeamName, int]:
        """Count the jobs of each team that ever had one, submitted since then (at most MAX_COUNTED)."""
        if not teams:
            return {}
        async with self._connections.single() as connection:
            low = (await connection.execute(_FROM_ID, {"moment": since - _SLACK})).scalar() or 0
            values = {"teams": list(teams), "low": low, "since": since, "most": MAX_COUNTED}
            rows = (await connection.execute(_HISTORY, values)).all()
        return {TeamName(row.team): int(row.recent) for row in rows if row.ever}

    async def use_above(
        self, teams: Sequence[str], since: datetime, *, gpus: int | None = None, seconds: int | None = None
    ) -> Mapping[str, int]:
        """Sum the device-seconds of each user's jobs that held more GPUs, or ran longer, than this."""
        async with self._connections.single() as connection:
            low = (await connection.execute(_FROM_ID, {"moment": since - _SLACK})).scalar() or 0
            limits = {"gpus": gpus, "seconds": seconds}
            values = {
                "teams": list(teams),
                "low": low,
                "since": since,
                **{name: _MAX_ID if limit is None else limit for name, limit in limits.items()},
            }
            rows = (await connection.execute(_USE_ABOVE, values)).all()
        return {row.user_name: int(row.seconds) for row in rows}

    async def array_counts(self, arrays: Sequence[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
        """Count the tasks of each array, named by its first task, by state."""
        found: dict[JobId, dict[JobState, int]] = {}
        for row in await self._fetch(_ARRAYS, {"arrays": list(arrays)}) if arrays else ():
            found.setdefault(JobId(row.array_first), {})[JobState(row.state)] = row.tasks
        return found

    async def held(self, jobs: Sequence[JobId], now: datetime) -> Mapping[JobId, Sequence[HeldDevices]]:
        """Return the devices that each job has held so far, attempt by attempt.

        Of a job with more than HELD_EXACTLY replicas, those that ended are added up by day.
        """
        if not jobs:
            return {}
        limit = {"jobs": list(jobs), "most": HELD_EXACTLY}
        many = {row.id for row in await self._fetch(_MANY, limit)}
        few = [job for job in jobs if job not in many]
        found: dict[JobId, list[HeldDevices]] = {}
        rows = list(await self._fetch(_HELD, {"jobs": few, "now": now})) if few else []
        if many:
            rows += await self._fetch(_HELD_NOW, {"jobs": list(many), "now": now})
            for row in await self._fetch(_HELD_BY_DAY, {"jobs": list(many)}):
                found.setdefault(JobId(row.job), []).extend(_held_in_day(row.began, row.held))
        for row in rows:
            start = int(row.started_at.timestamp())
            end = max(start, int(row.ended_at.timestamp()))
            found.setdefault(JobId(row.job), []).append(HeldDevices(row.devices, start, end, row.running))
        return found


def _held_in_day(began: datetime, device_seconds: int) -> Iterator[HeldDevices]:
    """Yield what is held as so many devices for the whole day, and one for the rest."""
    start = int(began.timestamp())
    devices, rest = divmod(device_seconds, _DAY)
    for count, seconds in ((devices, _DAY), (1, rest)):
        if count and seconds:
            yield HeldDevices(count, start, start + seconds, running=False)


def _readings(word: str) -> Iterator[tuple[str, str]]:
    """Yield what a word may mean as (cluster, engine id); an empty cluster is any."""
    yield "", word
    cluster, _, rest = word.partition("/")
    parts = [("", word), (cluster, rest)] if rest else []
    yield from parts[1:]
    for of, engine_id in parts:
        namespace, _, name = engine_id.partition("/")
        if name:
            yield from ((of, f"{namespace}/{kind}/{name}") for kind in _KINDS)


def _shifted(moment: datetime, by: timedelta) -> datetime:
    """Return a time some minutes earlier or later; at the ends of the calendar, the time itself."""
    try:
        return moment + by
    except OverflowError:
        return moment


def _search_filters(which: JobFilter, search: str) -> Iterator[tuple[JobFilter, int, int]]:
    """Yield the filter of each kind of match, with the id range it covers."""
    spellings = tuple(dict.fromkeys((search, search.lower())))
    yield replace(which, name_begins=spellings), 0, _MAX_ID
    yield replace(which, name_contains=search), 0, _MAX_ID
    yield replace(which, user_contains=search), 0, _MAX_ID
    for low, high in _id_ranges(search):
        # A user who types a complete id means that very task, not the one that represents its array.
        yield replace(which, once_an_array=which.once_an_array and high - low > 1), low, high


def _id_ranges(prefix: str) -> list[tuple[int, int]]:
    """Return the id ranges that begin with these characters; a whole id is its own prefix."""
    number = parse_job_id(prefix.rjust(4, "0"))
    if number is None or len(prefix) < _MIN_ID_PREFIX:
        return []
    lengths = range(max(4, len(prefix)), max(_MAX_ID_LENGTH, len(prefix)) + 1)
    sizes = [32 ** (length - len(prefix)) for length in lengths if length == 4 or prefix[0] != "0"]
    return [(number * size, (number + 1) * size) for size in sizes]


def _timeline(row: AnyRow, more: AnyRow, events: Sequence[AnyRow]) -> tuple[JobEvent, ...]:
    """Build a job's timeline. That it was submitted, and last sent, follows from its row."""
    timeline = [JobEvent(e.at, EventKind(e.kind), e.by_whom, e.text) for e in reversed(events)]
    if more.sent_at is not None:
        timeline.append(JobEvent(more.sent_at, EventKind.SENT, "", row.engine_id or ""))
    timeline.sort(key=lambda event: event.at)
    first = JobEvent(row.submitted_at, EventKind.SUBMITTED, more.submitted_by or row.user_name, "")
    return (first, *timeline)[-MAX_EVENTS:]


def _job_row(row: AnyRow) -> JobRow:
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
        kind=row.kind,
        service=row.service,
        replicas=row.replicas,
        project=row.project or None,
        labels=row.labels,
    )


def attempt_of(row: AnyRow) -> StoredAttempt:
    """Convert a row of the table `attempt` to a StoredAttempt."""
    attempt = Attempt(
        started_at=row.started_at,
        nodes=tuple(NodeName(name) for name in row.nodes),
        devices=row.devices,
        ended_at=row.ended_at,
        ending=None if row.ending is None else Ending(row.ending),
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
        replica=row.replica,
    )
    return StoredAttempt(row.number, EngineId(row.engine_id), attempt)
