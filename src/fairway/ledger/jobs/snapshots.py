"""Read the present of a cluster, to play it forward: nodes, running and waiting jobs, past use.

Nothing here grows with ended jobs: open jobs are read by the index of open jobs of a cluster, the newest
submissions from the end of the table, past use from sums by day and hour.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.snapshots import SnapshotJob, SnapshotNode, SnapshotRows, UseSum
from fairway.ledger.sql_values import AnyRow, moment
from fairway.model.charge import Span
from fairway.model.job import JobId
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.observation import Health

MAX_JOBS: Final = 20_000
"""Waiting jobs that are read; those with the highest rank and age matter most, and they come first."""
MAX_ARRIVALS: Final = 1000
_NEWEST: Final = 10_000
"""Jobs of all clusters among which the arrivals of one are sought."""

_BEGIN = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    # Compiling takes longer than the queries.
    "SET LOCAL jit = off",
)

_NODES = text("""
    SELECT device.node, device.pool, device.slice, device.total, device.unhealthy, node.health
    FROM device JOIN node ON node.cluster = device.cluster AND node.name = device.node
    WHERE device.cluster = :cluster AND device.pool <> '' AND device.total > 0
    ORDER BY device.node, device.kind
""")

_COLUMNS: Final = """
    job.id, job.name, job_class.user_name, job_class.team, job_class.priority, job_class.pool,
    job_class.slice, job.gpus, job.nodes, job.time_seconds, job_class.service, job.submitted_at,
    job.reason_code
"""
_JOB_COLUMNS: Final = 13

# Of a service, each replica is an attempt that runs.
_RUNNING = text(f"""
    SELECT {_COLUMNS}, held.started_at, held.nodes AS on_nodes
    FROM job JOIN job_class ON job_class.id = job.class
    CROSS JOIN LATERAL (
        SELECT min(started_at) AS started_at, array_agg(node) AS nodes FROM (
            SELECT started_at, unnest(nodes) AS node FROM attempt
            WHERE attempt.job = job.id AND ended_at IS NULL AND ending IS NULL
        ) AS open
    ) AS held
    WHERE job.state = 'running' AND job.cluster = :cluster AND job_class.pool <> '' AND job.gpus > 0
        AND held.started_at IS NOT NULL
    ORDER BY held.started_at, job.id
""")  # noqa: S608

# A job whose change is not made yet waits as what it will be: two suggestions must not promise the same GPUs.
_WAITING_COLUMNS: Final = """
    job.id, job.name, job_class.user_name, job_class.team, job_class.priority, job_class.pool,
    job_class.slice, COALESCE(job_change.gpus, job.gpus), COALESCE(job_change.nodes, job.nodes),
    CASE WHEN job_change.id IS NULL THEN job.time_seconds ELSE job_change.time_seconds END,
    job_class.service, job.submitted_at, job.reason_code
"""

# What the spec says is encoded by `submit.encode_spec`.
_WAITING = text(f"""
    SELECT {_WAITING_COLUMNS}, COALESCE(job_change.nodes, job.nodes) > 1 AND COALESCE(
        (SELECT spec LIKE '%"together"\\:true%' FROM job_spec WHERE job = COALESCE(job.array_first, job.id)),
        false
    ) AS together
    FROM job LEFT JOIN job_change ON job_change.job = job.id
    JOIN job_class ON job_class.id = COALESCE(job_change.class, job.class)
    LEFT JOIN unnest(CAST(:priorities AS text[]), CAST(:ranks AS bigint[])) AS ranks (priority, rank)
        ON ranks.priority = job_class.priority
    WHERE job.state = 'waiting' AND job.cluster = :cluster AND job_class.cluster = :cluster
        AND job_class.pool <> '' AND job.gpus > 0 AND job.wish = 'run'
    ORDER BY COALESCE(ranks.rank, 0) DESC, job.submitted_at, job.id LIMIT {MAX_JOBS}
""")  # noqa: S608

# Of more than MAX_ARRIVALS, every second or third and so on: thousands of tasks of one array are one event.
_ARRIVALS = text(f"""
    SELECT * FROM (
        SELECT {_COLUMNS}, row_number() OVER (ORDER BY job.submitted_at, job.id) AS n,
            count(*) OVER () AS all_
        FROM (SELECT * FROM job ORDER BY id DESC LIMIT {_NEWEST}) AS job
        JOIN job_class ON job_class.id = job.class
        WHERE job.cluster = :cluster AND job.submitted_at >= :since AND job_class.pool <> ''
            AND job.gpus > 0 AND NOT job_class.service AND job_class.team <> ''
    ) AS arrived
    WHERE n % (1 + all_ / {MAX_ARRIVALS}) = 0 ORDER BY n
""")  # noqa: S608

_FIRST_SOUGHT = text(f"""
    SELECT min(submitted_at) AS first
    FROM (SELECT submitted_at FROM job ORDER BY id DESC LIMIT {_NEWEST}) AS job
""")  # noqa: S608

_DAYS = text("""
    SELECT day, team, pool, slice, device_seconds FROM usage_team_day
    WHERE cluster = :cluster AND day BETWEEN :first AND :last AND team <> ''
""")

_HOURS = text("""
    SELECT CAST(extract(epoch FROM hour) AS bigint) AS hour, team, pool, slice,
        CAST(sum(device_seconds) AS bigint) AS device_seconds
    FROM usage_hour JOIN job_class ON job_class.id = usage_hour.class
    WHERE job_class.cluster = :cluster AND hour >= :since AND team <> '' AND pool <> ''
    GROUP BY hour, team, pool, slice
""")

_NOW = text("SELECT now()")


class SnapshotStore(LedgerStore):
    """Reads the present of clusters."""

    async def read(
        self, cluster: str, ranks: dict[PriorityName, int], arrival_seconds: float
    ) -> SnapshotRows:
        """Read nodes, running and waiting jobs, and what was submitted in the last `arrival_seconds`.

        `ranks`: of the priorities; waiting jobs are in the order of rank and age. O(nodes + open jobs).
        """
        async with self._connections.transaction() as connection:
            for statement in _BEGIN:
                await connection.execute(text(statement))
            now = (await connection.execute(_NOW)).scalar_one()
            values: dict[str, object] = {
                "cluster": cluster,
                "priorities": list(ranks),
                "ranks": list(ranks.values()),
                "since": moment(now.timestamp() - arrival_seconds),
            }
            nodes = (await connection.execute(_NODES, values)).all()
            running = (await connection.execute(_RUNNING, values)).all()
            waiting = (await connection.execute(_WAITING, values)).all()
            arrivals = (await connection.execute(_ARRIVALS, values)).all()
            sought = (await connection.execute(_FIRST_SOUGHT)).one()
        return SnapshotRows(
            at=now,
            nodes=tuple(map(_node, nodes)),
            running=tuple(
                _job(row, started_at=row.started_at, on=tuple(map(NodeName, row.on_nodes))) for row in running
            ),
            waiting=tuple(_job(row, row.together) for row in waiting),
            arrivals=tuple(map(_job, arrivals)),
            # A ledger that is younger than that has seen no earlier ones.
            arrivals_since=sought.first or now,
        )

    async def use(self, cluster: str, days: dict[date, Span], hours_since: int) -> tuple[UseSum, ...]:
        """Read what each team used on these days, and by hour since then. O(teams x (days + hours))."""
        values: dict[str, object] = {"cluster": cluster, "since": moment(hours_since)}
        found: list[UseSum] = []
        async with self._connections.single() as connection:
            if days:
                rows = await connection.execute(_DAYS, values | {"first": min(days), "last": max(days)})
                found += [_use(row, days[row.day].start, days[row.day].end) for row in rows]
            rows = await connection.execute(_HOURS, values)
            found += [_use(row, row.hour, row.hour + 3600) for row in rows]
        return tuple(found)


def _use(row: AnyRow, start: int, end: int) -> UseSum:
    slice_ = SliceName(row.slice) if row.slice else None
    return UseSum(start, end, TeamName(row.team), PoolName(row.pool), slice_, row.device_seconds)


def _node(row: AnyRow) -> SnapshotNode:
    return SnapshotNode(
        NodeName(row.node),
        PoolName(row.pool),
        SliceName(row.slice) if row.slice else None,
        row.total,
        row.unhealthy,
        Health(row.health),
    )


def _job(
    row: AnyRow, together: bool = False, started_at: datetime | None = None, on: tuple[NodeName, ...] = ()
) -> SnapshotJob:
    # By position: attributes of a row are looked up by name, and there are thousands of rows.
    id_, name, user, team, priority, pool, slice_ = row[:7]
    gpus, nodes, seconds, service, submitted, reason = row[7:_JOB_COLUMNS]
    return SnapshotJob(
        JobId(id_),
        name,
        UserName(user),
        TeamName(team) if team else None,
        PriorityName(priority) if priority else None,
        PoolName(pool),
        SliceName(slice_) if slice_ else None,
        gpus,
        nodes,
        seconds,
        service,
        submitted,
        reason,
        together,
        started_at,
        on,
    )
