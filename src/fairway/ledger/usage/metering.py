"""Meter usage by two SQL statements: one for changed jobs, one for a full hour of running jobs.

Both end alike: periods are cut at hours and added to `usage`, and its sums by hour and day are made from the
rows just written. Only the totals per team are returned to Python.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Final

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.sql_values import arrays, moment, seconds, supply
from fairway.model.names import TeamName
from fairway.model.team import Supply

# Planner estimates of a queue that was empty a moment ago are worthless. jit: compiling takes longer than
# the query. nestloop: the lookups below are nested loops anyway; nothing else may be. The scans: no table is
# ever read as a whole, however small it was at the last ANALYZE.
_PLANNER_SETTINGS: Final = text(
    "SELECT set_config('jit', 'off', true), set_config('enable_nestloop', 'off', true),"
    " set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"
)


# The first of the queue. A row of a lower number may be committed later by another transaction: it is not
# seen here, and neither is it removed.
_LAST: Final = """
    SELECT max(id) FROM (
        SELECT id FROM to_meter WHERE cluster = :cluster ORDER BY id LIMIT :limit
    ) AS first
"""

_METERED_MARK: Final = "SELECT max(metered_to) AS at FROM meter_mark WHERE cluster = :cluster"


# Each job once, or the attempts of it that changed: a service may have had very many replicas.
_CHOSEN: Final = """
    SELECT job, unnest(
        CASE WHEN bool_or(attempt IS NULL) THEN ARRAY[CAST(NULL AS int)] ELSE array_agg(DISTINCT attempt) END
    ) AS attempt
    FROM {queued} GROUP BY job
"""

_OF_CHOSEN: Final = """
    BETWEEN COALESCE(chosen.attempt, 0) AND COALESCE(chosen.attempt, 2147483647)
"""

# Looked up job by job (enforced by OFFSET 0): no planner estimate may make this read whole tables.
# In whole seconds, computed once. An attempt that has no end and does not run: its end is unknown.
_ACTUAL: Final = f"""
    SELECT attempt.job, attempt.number AS attempt, job.class, pool, slice, attempt.devices,
        attempt.replica <> '' AS replica,
        date_bin('1 second', attempt.started_at, 'epoch') AS began,
        date_bin('1 second', attempt.ended_at, 'epoch') AS ended,
        attempt.ended_at IS NULL AND attempt.ending IS NULL AND job.state IN ({OPEN_JOBS_SQL}) AS runs
    FROM chosen
    CROSS JOIN LATERAL (SELECT class, state FROM job WHERE id = chosen.job OFFSET 0) AS job
    CROSS JOIN LATERAL (
        SELECT job, number, devices, started_at, ended_at, ending, replica FROM attempt
        WHERE attempt.job = chosen.job AND attempt.number {_OF_CHOSEN} OFFSET 0
    ) AS attempt
    CROSS JOIN LATERAL (
        SELECT pool, slice FROM job_class WHERE id = job.class AND pool <> '' OFFSET 0
    ) AS with_a_pool
    OFFSET 0
"""  # noqa: S608

# A running attempt is metered up to the mark, whatever moves it: its row has no end of its own.
# A replica that ended stays what it was when the others change team or priority, and one that runs stays in
# its pool: a service outlives its replicas.
_BOTH: Final = f"""
    SELECT job, attempt, m.class AS old_class, m.devices AS old_devices, m.began AS old_began,
        m.ended AS old_ended, m.runs AS old_runs, m.place, t.devices, t.began,
        CASE WHEN t.replica AND m.class IS NOT NULL AND (t.ended IS NOT NULL OR NOT EXISTS (
            SELECT FROM job_class WHERE id = m.class AND pool = t.pool AND slice = t.slice
        )) THEN m.class ELSE t.class END AS class,
        COALESCE(t.runs, false) AS runs,
        -- Without a known end: no further than it was metered.
        greatest(t.began, CASE WHEN t.runs THEN mark.at ELSE COALESCE(t.ended, m.ended) END) AS ended
    FROM actual AS t FULL JOIN (
        SELECT metered.* FROM chosen CROSS JOIN mark CROSS JOIN LATERAL (
            SELECT job, attempt, class, devices, started_at AS began,
                COALESCE(metered_to, greatest(started_at, mark.at)) AS ended,
                metered_to IS NULL AS runs, ctid AS place
            FROM metered WHERE metered.job = chosen.job AND metered.attempt {_OF_CHOSEN} OFFSET 0
        ) AS metered
    ) AS m USING (job, attempt) CROSS JOIN mark
"""  # noqa: S608

_SPAN: Final = text(f"""
    WITH mark AS ({_METERED_MARK}), queued AS (
        SELECT job, attempt FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST})
    ), chosen AS ({_CHOSEN.format(queued="queued")}), actual AS ({_ACTUAL}), both_ AS ({_BOTH})
    SELECT least(min(began), min(old_began)) AS earliest, greatest(max(ended), max(old_ended)) AS latest
    FROM both_
""")  # noqa: S608

_CHANGED: Final = f"""
    mark AS MATERIALIZED ({_METERED_MARK}), taken AS (
        DELETE FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST}) RETURNING job, attempt
    ), chosen AS MATERIALIZED (
        {_CHOSEN.format(queued="taken")} ORDER BY job
    ), actual AS ({_ACTUAL}), both_ AS MATERIALIZED (
        SELECT compared.*,
            COALESCE(class IS NOT NULL AND (runs OR began < ended) AND devices > 0, false) AS holds,
            COALESCE(class = old_class, false) AS same,
            -- The same attempt, only longer, as is usual: only the time since is to be added.
            CASE
                WHEN old_class IS NULL THEN true
                WHEN class = old_class AND devices = old_devices AND began = old_began THEN ended > old_ended
                ELSE false
            END AS more
        FROM ({_BOTH} OFFSET 0) AS compared
        WHERE (class, devices, began, ended, runs)
            IS DISTINCT FROM (old_class, old_devices, old_began, old_ended, old_runs)
    ), stretches AS (
        -- Of one class: between the four moments at which something begins or ends. Of two: all usage of the
        -- old one is taken back, and all of the new one added.
        SELECT moved.*, s.number, s.began AS s_began, s.ended AS s_ended
        FROM (
            SELECT *, least(greatest(began, old_began), least(ended, old_ended)) AS second,
                greatest(greatest(began, old_began), least(ended, old_ended)) AS third
            FROM both_ WHERE NOT more
        ) AS moved CROSS JOIN LATERAL (VALUES
            (
                1,
                CASE WHEN same THEN least(began, old_began) ELSE old_began END,
                CASE WHEN same THEN second ELSE old_ended END
            ), (
                2,
                CASE WHEN same THEN second ELSE began END,
                CASE WHEN same THEN third ELSE ended END
            ), (
                3,
                CASE WHEN same THEN third END,
                greatest(ended, old_ended)
            )
        ) AS s (number, began, ended)
        WHERE s.began < s.ended
    ), signed AS (
        SELECT job, attempt, class, devices, COALESCE(old_ended, began) AS began, ended
        FROM both_ WHERE more AND holds AND COALESCE(old_ended, began) < ended
        UNION ALL SELECT job, attempt, class, devices, began, ended FROM (
            SELECT job, attempt, s_began AS began, s_ended AS ended,
                CASE WHEN same OR number = 2 THEN class ELSE old_class END AS class,
                CASE WHEN same THEN
                    CASE WHEN began <= s_began AND s_began < ended THEN devices ELSE 0 END
                    - CASE WHEN old_began <= s_began AND s_began < old_ended THEN old_devices ELSE 0 END
                WHEN number = 2 THEN devices ELSE -old_devices END AS devices
            FROM stretches
        ) AS every
        WHERE devices <> 0
    ), first_metered AS (
        INSERT INTO metered (job, attempt, class, devices, started_at, metered_to)
        SELECT job, attempt, class, devices, began, CASE WHEN NOT runs THEN ended END
        FROM both_ WHERE holds AND place IS NULL ORDER BY job, attempt
    ), metered_on AS (
        UPDATE metered SET class = now.class, devices = now.devices, started_at = now.began,
            metered_to = CASE WHEN NOT now.runs THEN now.ended END
        FROM both_ AS now
        -- A redundant condition: the array makes it fetch only these rows, whatever the planner expects.
        WHERE metered.ctid = ANY(ARRAY(SELECT place FROM both_ WHERE holds AND place IS NOT NULL))
            AND metered.ctid = now.place
    ), gone AS (
        DELETE FROM metered
        WHERE ctid = ANY(ARRAY(SELECT place FROM both_ WHERE NOT holds AND place IS NOT NULL))
    )
"""  # noqa: S608

# The mark itself is moved after this, in the same transaction.
_RUNNING: Final = f"""
    mark AS MATERIALIZED ({_METERED_MARK}), signed AS (
        SELECT job, attempt, class, devices, greatest(started_at, mark.at) AS began,
            CAST(:upto AS timestamptz) AS ended
        FROM metered CROSS JOIN mark
        WHERE metered_to IS NULL AND greatest(started_at, mark.at) < CAST(:upto AS timestamptz)
            AND class IN (SELECT id FROM job_class WHERE cluster = :cluster)
    )
"""  # noqa: S608

_WRITTEN: Final = """
    , placed AS MATERIALIZED (
        SELECT *, width_bucket(began, CAST(:hours AS timestamptz[])) AS first,
            width_bucket(ended - interval '1 second', CAST(:hours AS timestamptz[])) AS last
        FROM signed
    ), cut AS (
        SELECT job, attempt, class, devices, (CAST(:hours AS timestamptz[]))[first] AS hour, began, ended
        FROM placed WHERE first = last AND first BETWEEN 1 AND :count - 1
        UNION ALL SELECT job, attempt, class, devices, (CAST(:hours AS timestamptz[]))[number],
            greatest(began, (CAST(:hours AS timestamptz[]))[number]),
            least(ended, (CAST(:hours AS timestamptz[]))[number + 1])
        FROM (SELECT *, generate_series(first, last) AS number FROM placed WHERE first < last) AS numbered
        WHERE number BETWEEN 1 AND :count - 1
    ), added AS (
        INSERT INTO usage (hour, started_at, job, attempt, class, seconds, devices)
        SELECT hour, began, job, attempt, class, date_part('epoch', ended - began), devices FROM cut
        RETURNING hour, class, job, devices * seconds AS device_seconds
    ), hourly AS MATERIALIZED (
        SELECT hour, class, sum(device_seconds) AS device_seconds,
            sum(least(device_seconds, 0)) AS taken_back, count(*) AS rows
        FROM added GROUP BY hour, class
    ), by_hour AS (
        INSERT INTO usage_hour (hour, class, device_seconds)
        SELECT hour, class, device_seconds FROM hourly ORDER BY hour, class
        ON CONFLICT (hour, class)
        DO UPDATE SET device_seconds = usage_hour.device_seconds + excluded.device_seconds
    ), by_day AS (
        INSERT INTO usage_day (day, class, device_seconds)
        SELECT day, class, sum(device_seconds)
        FROM hourly JOIN unnest(CAST(:hours AS timestamptz[]), CAST(:days AS date[])) AS hours (hour, day)
            USING (hour)
        GROUP BY day, class ORDER BY day, class
        ON CONFLICT (day, class)
        DO UPDATE SET device_seconds = usage_day.device_seconds + excluded.device_seconds
    ), of_services AS MATERIALIZED (
        SELECT hour, class, job, sum(device_seconds) AS device_seconds
        FROM added WHERE class = ANY(ARRAY(SELECT id FROM job_class WHERE service)) GROUP BY hour, class, job
    ), services_by_hour AS (
        INSERT INTO service_hour (hour, class, job, device_seconds)
        SELECT hour, class, job, device_seconds FROM of_services ORDER BY hour, class, job
        ON CONFLICT (hour, class, job)
        DO UPDATE SET device_seconds = service_hour.device_seconds + excluded.device_seconds
    ), services_by_day AS (
        INSERT INTO service_day (day, class, job, device_seconds)
        SELECT day, class, job, sum(device_seconds)
        FROM of_services JOIN unnest(CAST(:hours AS timestamptz[]), CAST(:days AS date[]))
            AS hours (hour, day) USING (hour)
        GROUP BY day, class, job ORDER BY day, class, job
        ON CONFLICT (day, class, job)
        DO UPDATE SET device_seconds = service_day.device_seconds + excluded.device_seconds
    ), by_team AS (
        SELECT team, pool, slice, sum(device_seconds - taken_back) AS used, -sum(taken_back) AS taken_back
        FROM (
            SELECT class, sum(device_seconds) AS device_seconds, sum(taken_back) AS taken_back
            FROM hourly GROUP BY class
        ) AS each CROSS JOIN LATERAL (
            SELECT team, pool, slice FROM job_class WHERE id = each.class OFFSET 0
        ) AS owner
        GROUP BY team, pool, slice
    )
    SELECT batch.*, by_team.*
    FROM (
        SELECT {taken} AS taken, (SELECT sum(rows) FROM hourly) AS rows,
            (SELECT min(first) < 1 OR max(last) >= :count FROM placed) AS outside
    ) AS batch LEFT JOIN by_team ON true
"""


def _statement(which: str, taken: str) -> TextClause:
    return text(f"WITH {which}{_WRITTEN.format(taken=taken)}")


_METER_CHANGED: Final = _statement(_CHANGED, "(SELECT count(*) FROM taken)")

_METER_RUNNING: Final = _statement(_RUNNING, "0")


_QUEUE = text("""
    INSERT INTO to_meter (cluster, job, attempt)
    SELECT :cluster, * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]))
""")

_MARK = text("SELECT metered_to FROM meter_mark WHERE cluster = :cluster")


_SET_MARK = text("""
    INSERT INTO meter_mark (cluster, metered_to) VALUES (:cluster, :upto)
    ON CONFLICT (cluster) DO UPDATE SET metered_to = excluded.metered_to
""")


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a period, by the start of each, and the day each belongs to. Seconds since 1970."""

    starts: tuple[int, ...]
    """Ascending; the last entry is the end of the last hour."""
    days: tuple[date, ...]
    """One per hour: one fewer than `starts`."""


@dataclass(frozen=True, slots=True)
class TeamUsage:
    """Device-seconds that one team used of one supply, found in a batch."""

    team: TeamName
    supply: Supply
    used: int
    taken_back: int
    """By corrections."""


@dataclass(frozen=True, slots=True)
class MeteredBatch:
    """The result of metering a batch."""

    taken: int
    """Jobs taken off the queue; fewer than requested: it is empty."""
    rows: int
    used: tuple[TeamUsage, ...]


class HoursTooFew(Exception):
    """Part of a batch is outside the given hours: nothing of it may be stored."""


async def queue(
    connection: AsyncConnection, cluster: str, attempts: Collection[tuple[int, int | None]]
) -> None:
    """Queue attempts to be metered, by job and number: they or their class changed in this transaction.

    None as the number means all attempts of a job.
    """
    if attempts:
        rows = sorted(attempts, key=lambda one: (one[0], one[1] or 0))
        await connection.execute(_QUEUE, arrays(rows, "jobs", "attempts") | {"cluster": cluster})


class MeteringStore(LedgerStore):
    """Reads how far usage is metered."""

    async def mark(self, cluster: str) -> int | None:
        """Return up to when running jobs of a cluster are metered. Returns None if none were yet."""
        row = await self._fetch_first(_MARK, {"cluster": cluster})
        return None if row is None else seconds(row.metered_to)

    async def span(self, cluster: str, limit: int) -> tuple[int, int] | None:
        """Return the time range of the first `limit` queued jobs' usage. Returns None if there is none."""
        (row,) = await self._fetch(_SPAN, {"cluster": cluster, "limit": limit})
        return None if row.earliest is None else (seconds(row.earliest), seconds(row.latest))


class MeteringWriter(FencedWriter):
    """Writes the usage of jobs of the lease's cluster."""

    async def meter(self, hours: Hours, limit: int) -> MeteredBatch:
        """Write the usage of the first `limit` queued jobs; running ones count up to the mark.

        Raises HoursTooFew, and the transaction must not commit, if `hours` do not cover it all.
        """
        return await self._meter(_METER_CHANGED, hours, {"limit": limit})

    async def meter_running(self, hours: Hours, upto: int) -> MeteredBatch:
        """Write the usage of all running jobs from the mark to `upto`, and move the mark there."""
        end = moment(upto)
        batch = await self._meter(_METER_RUNNING, hours, {"upto": end})
        await self._connection.execute(_SET_MARK, {"cluster": self._lease.cluster, "upto": end})
        return batch

    async def _meter(self, statement: TextClause, hours: Hours, values: dict[str, object]) -> MeteredBatch:
        await self._connection.execute(_PLANNER_SETTINGS)
        values |= {
            "cluster": self._lease.cluster,
            "hours": [moment(start) for start in hours.starts],
            "days": list(hours.days),
            "count": len(hours.starts),
        }
        rows = (await self._connection.execute(statement, values)).all()
        first = rows[0]
        if first.outside:
            raise HoursTooFew
        used = tuple(
            TeamUsage(TeamName(row.team), supply(row.pool, row.slice), int(row.used), int(row.taken_back))
            for row in rows
            if row.team is not None
        )
        return MeteredBatch(int(first.taken), int(first.rows or 0), used)
