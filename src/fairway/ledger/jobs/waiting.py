"""Read what a waiting job's explanation needs: who is ahead in its queue, and who holds what.

Nothing here grows with ended jobs: open jobs are read by the index of states, of the classes of one supply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.jobs import JobRow
from fairway.ledger.schema.tables import NONE
from fairway.model.job import NOT_STARTED_JOBS, JobId
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName

MAX_ORDERED: Final = 5
"""Jobs ahead that are named."""
MAX_HOLDERS: Final = 3
MAX_ENDING: Final = 3


@dataclass(frozen=True, slots=True)
class QueuedTeam:
    """The jobs of one team that wait for the supply of a job."""

    team: TeamName | None
    waiting: int
    ahead: int
    devices_ahead: int


@dataclass(frozen=True, slots=True)
class SupplyUse:
    """The devices of a supply that running jobs hold."""

    by_team: Mapping[TeamName, int]
    of_user: int
    """Those that the user of the job holds for the team of the job."""


@dataclass(frozen=True, slots=True)
class UserHolding:
    """The devices of a supply that the running jobs of a user hold for some teams."""

    user: UserName
    jobs: int
    devices: int
    largest: tuple[JobId, ...]
    """At most three, the largest first."""


@dataclass(frozen=True, slots=True)
class WaitSum:
    """The jobs that wait for the same reason."""

    cluster: ClusterName
    pool: PoolName | None
    code: str
    """A code of `explain.reasons`; empty: none is known yet."""
    jobs: int
    devices: int
    device_seconds: int
    """Devices times the seconds since the submission."""
    largest: tuple[JobId, ...]
    """At most three, by device-seconds."""


_CLASSES = """
    SELECT id FROM job_class WHERE cluster = :cluster AND pool = :pool AND slice = :slice
"""
_QUEUE = f"""
    SELECT job.id, job.devices, job.submitted_at, job_class.team, COALESCE(ranks.rank, 0) AS rank,
        CASE WHEN CAST(:by_ids AS boolean)
        THEN COALESCE(job.engine_id = ANY(string_to_array(:ids, chr(10))), false)
        ELSE (-COALESCE(ranks.rank, 0), job.submitted_at, job.id) <
            (-CAST(:rank AS bigint), CAST(:submitted AS timestamptz), CAST(:id AS bigint))
        END AS ahead
    FROM job JOIN job_class ON job_class.id = job.class
    LEFT JOIN unnest(CAST(:priorities AS text[]), CAST(:ranks AS bigint[])) AS ranks (priority, rank)
        ON ranks.priority = job_class.priority
    WHERE job.state = 'waiting' AND job.class = ANY(ARRAY({_CLASSES}))
"""  # noqa: S608
_TEAMS = text(f"""
    SELECT team, count(*) AS waiting, count(*) FILTER (WHERE ahead) AS ahead,
        COALESCE(sum(devices) FILTER (WHERE ahead), 0) AS devices_ahead
    FROM ({_QUEUE}) AS queue GROUP BY team ORDER BY team
""")  # noqa: S608
_FIRST = text(f"""
    SELECT id FROM ({_QUEUE}) AS queue WHERE ahead ORDER BY -rank, submitted_at, id LIMIT {MAX_ORDERED}
""")  # noqa: S608
_SUMS = text("""
    WITH waiting AS (
        SELECT job.id, job_class.cluster, job_class.pool, job.devices,
            CASE WHEN job.state = 'held' AND job.code = '' AND job.reason_code = '' THEN 'Held'
            ELSE COALESCE(NULLIF(job.code, ''), job.reason_code) END AS code,
            job.devices * GREATEST(0, extract(epoch FROM now() - job.submitted_at)) AS device_seconds
        FROM job JOIN job_class ON job_class.id = job.class
        WHERE job.state = ANY(CAST(:states AS text[]))
            AND (CAST(:cluster AS text) IS NULL OR job_class.cluster = :cluster)
            AND (CAST(:pool AS text) IS NULL OR job_class.pool = :pool)
            AND (CAST(:teams AS text[]) IS NULL OR job_class.team = ANY(CAST(:teams AS text[])))
    )
    SELECT cluster, pool, code, count(*) AS jobs, sum(devices) AS devices,
        sum(device_seconds) AS device_seconds,
        (array_agg(id ORDER BY device_seconds DESC, id))[1:3] AS largest
    FROM waiting GROUP BY cluster, pool, code ORDER BY 6 DESC, 1, 2, 3
""")
_HOLDINGS = text(f"""
    SELECT job_class.user_name, count(*) AS jobs, sum(job.devices) AS devices,
        (array_agg(job.id ORDER BY job.devices DESC, job.id))[1:3] AS largest
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.state = 'running' AND job.class = ANY(ARRAY({_CLASSES}))
        AND job_class.team = ANY(CAST(:teams AS text[]))
    GROUP BY job_class.user_name ORDER BY 3 DESC, 1
""")  # noqa: S608
_USE = text(f"""
    SELECT job_class.team, sum(running.devices) AS devices,
        COALESCE(sum(running.devices) FILTER (WHERE job_class.user_name = :user), 0) AS of_user
    FROM (
        SELECT class, sum(devices) AS devices FROM job
        WHERE state = 'running' AND class = ANY(ARRAY({_CLASSES})) GROUP BY class
    ) AS running JOIN job_class ON job_class.id = running.class
    WHERE job_class.team <> '' GROUP BY job_class.team
""")  # noqa: S608
_ENDING = text(f"""
    SELECT id FROM job
    WHERE state = 'running' AND started_at IS NOT NULL AND time_seconds IS NOT NULL
        AND class = ANY(ARRAY({_CLASSES}))
    ORDER BY started_at + make_interval(secs => time_seconds), id LIMIT {MAX_ENDING}
""")  # noqa: S608


class WaitingStore(LedgerStore):
    """Reads the queue and the holders of one supply."""

    async def queue(
        self, row: JobRow, ranks: Mapping[PriorityName, int], ahead: Sequence[str] | None
    ) -> tuple[QueuedTeam, ...]:
        """Count the jobs that wait for the supply of `row`, and those ahead of it, by team.

        `ahead`: engine ids of those ahead, as the engine reports them; None: by rank and age.
        """
        found = await self._fetch(_TEAMS, self._values(row, ranks, ahead))
        return tuple(
            QueuedTeam(
                TeamName(r.team) if r.team else None, int(r.waiting), int(r.ahead), int(r.devices_ahead)
            )
            for r in found
        )

    async def first_ahead(self, row: JobRow, ranks: Mapping[PriorityName, int]) -> tuple[JobId, ...]:
        """Return the first jobs ahead of a waiting job, by rank and age."""
        return tuple(JobId(r.id) for r in await self._fetch(_FIRST, self._values(row, ranks, None)))

    async def sums(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        teams: Sequence[TeamName] | None = None,
    ) -> tuple[WaitSum, ...]:
        """Sum the jobs that have not started by cluster, pool and reason, the most device-seconds first.

        None: all. O(jobs that have not started).
        """
        values = {
            "states": sorted(NOT_STARTED_JOBS),
            "cluster": cluster,
            "pool": pool,
            "teams": None if teams is None else list(teams),
        }
        return tuple(
            WaitSum(
                ClusterName(r.cluster),
                PoolName(r.pool) if r.pool else None,
                r.code,
                int(r.jobs),
                int(r.devices),
                int(r.device_seconds),
                tuple(JobId(id_) for id_ in r.largest),
            )
            for r in await self._fetch(_SUMS, values)
        )

    async def holdings(self, row: JobRow, teams: Sequence[TeamName]) -> tuple[UserHolding, ...]:
        """Return what users hold of the supply of `row` with running jobs of these teams, the most first."""
        values = {**_supply(row), "teams": list(teams)}
        return tuple(
            UserHolding(
                UserName(r.user_name), int(r.jobs), int(r.devices), tuple(JobId(id_) for id_ in r.largest)
            )
            for r in await self._fetch(_HOLDINGS, values)
        )

    async def use(self, row: JobRow) -> SupplyUse:
        """Return what running jobs hold of the supply of `row`."""
        found = await self._fetch(_USE, {**_supply(row), "user": row.user})
        return SupplyUse(
            {TeamName(r.team): int(r.devices) for r in found},
            sum(int(r.of_user) for r in found if r.team == row.team),
        )

    async def ending(self, row: JobRow) -> tuple[JobId, ...]:
        """Return the running jobs on the supply of `row` whose time limit ends soonest."""
        return tuple(JobId(r.id) for r in await self._fetch(_ENDING, _supply(row)))

    def _values(
        self, row: JobRow, ranks: Mapping[PriorityName, int], ahead: Sequence[str] | None
    ) -> dict[str, object]:
        rank = ranks.get(row.priority, 0) if row.priority else 0
        submitted: datetime = row.submitted_at
        return {
            **_supply(row),
            "priorities": list(ranks),
            "ranks": list(ranks.values()),
            "by_ids": ahead is not None,
            # The driver takes 1 ms for a thousand elements of an array.
            "ids": "\n".join(ahead or ()),
            "rank": rank,
            "submitted": submitted,
            "id": row.id,
        }


def _supply(row: JobRow) -> dict[str, object]:
    return {"cluster": row.cluster, "pool": row.pool or NONE, "slice": row.slice or NONE}
