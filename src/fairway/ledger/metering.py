"""Usage from attempts: what is true of them less what is written already, in a few statements a batch.

Everything but the beginnings of hours, which the fleet's calendar knows, is reckoned in the database: rows go
from table to table without ever being a Python object. `cost.metering.difference` says the same for a single
attempt, and is what this is tested against.

In one transaction jobs are taken off the queue, and then one statement compares their attempts with
`metered`, adds usage and its sums, and makes `metered` show it. Whatever the mirror writes of an attempt
after the first comes with a row of the queue that is still there: it is read twice, and the second time makes
no difference. Usage is of one cluster's classes, and one meter alone writes it: no two transactions ever wait
for each other's rows here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.records import Lease
from fairway.model.job import OPEN_JOBS
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

_QUEUE = text("""
    INSERT INTO to_meter (cluster, job) SELECT :cluster, unnest(CAST(:jobs AS bigint[]))
""")

_MARK = text("SELECT metered_to FROM meter_mark WHERE cluster = :cluster")

_KEEP_MARK = text("""
    INSERT INTO meter_mark (cluster, metered_to) VALUES (:cluster, :upto)
    ON CONFLICT (cluster) DO UPDATE SET metered_to = excluded.metered_to
""")

_QUEUE_RUNNING = text(f"""
    INSERT INTO to_meter (cluster, job)
    SELECT job.cluster, job.id FROM job
    WHERE job.cluster = :cluster AND job.state IN ({_OPEN}) AND job.attempts > 0
        AND EXISTS (SELECT FROM attempt WHERE attempt.job = job.id AND attempt.ending IS NULL)
    ORDER BY job.id
""")  # noqa: S608

# The first of the queue. Another's row of a lower number may be committed later: it is not seen here, and
# neither is it removed.
_LAST: Final = """
    SELECT max(id) FROM (
        SELECT id FROM to_meter WHERE cluster = :cluster ORDER BY id LIMIT :most
    ) AS first
"""

# Looked up job by job (OFFSET 0 sees to it): no estimate of the planner's may make this read whole tables.
# In whole seconds. One that still runs is metered up to `upto`. NULL: nothing tells when it ended.
_TRUTH: Final = f"""
    SELECT attempt.job, attempt.number AS attempt, job.class, attempt.devices,
        date_trunc('second', attempt.started_at) AS began,
        CASE
            WHEN attempt.ended_at IS NOT NULL THEN date_trunc('second', attempt.ended_at)
            WHEN attempt.ending IS NULL AND job.state IN ({_OPEN}) THEN CAST(:upto AS timestamptz)
        END AS ended
    FROM chosen
    CROSS JOIN LATERAL (SELECT class, state FROM job WHERE id = chosen.job OFFSET 0) AS job
    CROSS JOIN LATERAL (SELECT * FROM attempt WHERE attempt.job = chosen.job OFFSET 0) AS attempt
    JOIN job_class ON job_class.id = job.class AND job_class.pool <> ''
"""  # noqa: S608

_BOTH: Final = """
    SELECT job, attempt, m.class AS old_class, m.devices AS old_devices, m.started_at AS old_began,
        m.metered_to AS old_ended, m.place, t.class, t.devices, t.began,
        -- Without a known end: no further than it was metered.
        greatest(t.began, COALESCE(t.ended, m.metered_to)) AS ended
    FROM truth AS t FULL JOIN (
        SELECT metered.* FROM chosen CROSS JOIN LATERAL (
            SELECT *, ctid AS place FROM metered WHERE metered.job = chosen.job OFFSET 0
        ) AS metered
    ) AS m USING (job, attempt)
"""

_SPAN = text(f"""
    WITH chosen AS (
        SELECT DISTINCT job FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST})
    ), truth AS ({_TRUTH}), both_ AS ({_BOTH})
    SELECT least(min(began), min(old_began)) AS earliest, greatest(max(ended), max(old_ended)) AS latest
    FROM both_
""")  # noqa: S608

_TAKE = text(f"""
    DELETE FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST}) RETURNING job
""")  # noqa: S608

# The planner cannot know how few hours a stretch has, and would compile what runs for a moment.
_NO_JIT = text("SELECT set_config('jit', 'off', true)")

_METER = text(f"""
    WITH chosen AS (
        SELECT unnest(CAST(:jobs AS bigint[])) AS job
    ), truth AS ({_TRUTH}), both_ AS MATERIALIZED (
        SELECT compared.*,
            COALESCE(class IS NOT NULL AND began < ended AND devices > 0, false) AS holds,
            COALESCE(class = old_class, false) AS same,
            -- Nothing but more of it, as it mostly is: only what follows is to be added.
            CASE
                WHEN old_class IS NULL THEN true
                WHEN class = old_class AND devices = old_devices AND began = old_began THEN ended > old_ended
                ELSE false
            END AS more,
            least(greatest(began, old_began), least(ended, old_ended)) AS second,
            greatest(greatest(began, old_began), least(ended, old_ended)) AS third
        FROM ({_BOTH}) AS compared
        WHERE (class, devices, began, ended) IS DISTINCT FROM (old_class, old_devices, old_began, old_ended)
    ), stretches AS (
        -- Of one class: between the four moments at which something begins or ends. Of two: all of the one is
        -- taken back, and all of the other added.
        SELECT both_.*, s.number, s.began AS s_began, s.ended AS s_ended
        FROM both_ CROSS JOIN LATERAL (VALUES
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
        WHERE NOT more AND s.began < s.ended
    ), signed AS MATERIALIZED (
        SELECT job, attempt, class, devices, COALESCE(old_ended, began) AS began, ended
        FROM both_ WHERE more AND holds
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
    ), numbered AS (
        SELECT *, generate_series(
            width_bucket(began, CAST(:hours AS timestamptz[])),
            width_bucket(ended - interval '1 second', CAST(:hours AS timestamptz[]))
        ) AS number
        FROM signed
    ), cut AS (
        SELECT job, attempt, class, devices, (CAST(:hours AS timestamptz[]))[number] AS hour,
            greatest(began, (CAST(:hours AS timestamptz[]))[number]) AS began,
            least(ended, (CAST(:hours AS timestamptz[]))[number + 1]) AS ended
        FROM numbered WHERE number BETWEEN 1 AND :count - 1
    ), added AS (
        INSERT INTO usage (hour, started_at, job, attempt, class, seconds, devices)
        SELECT hour, began, job, attempt, class, date_part('epoch', ended - began), devices FROM cut
        RETURNING hour, class, devices * seconds AS device_seconds
    ), hourly AS MATERIALIZED (
        SELECT hour, class, sum(device_seconds) AS device_seconds, count(*) AS rows
        FROM added GROUP BY hour, class
    ), by_hour AS (
        INSERT INTO usage_hour (hour, class, device_seconds)
        SELECT hour, class, device_seconds FROM hourly ORDER BY hour, class
        ON CONFLICT (hour, class)
        DO UPDATE SET device_seconds = usage_hour.device_seconds + excluded.device_seconds
    ), by_day AS (
        INSERT INTO usage_day (day, class, device_seconds)
        SELECT day, class, sum(device_seconds)
        FROM hourly JOIN unnest(CAST(:hours AS timestamptz[]), CAST(:days AS date[])) AS known (hour, day)
            USING (hour)
        GROUP BY day, class ORDER BY day, class
        ON CONFLICT (day, class)
        DO UPDATE SET device_seconds = usage_day.device_seconds + excluded.device_seconds
    ), first_metered AS (
        INSERT INTO metered (job, attempt, class, devices, started_at, metered_to)
        SELECT job, attempt, class, devices, began, ended FROM both_ WHERE holds AND place IS NULL
        ORDER BY job, attempt
    ), metered_on AS (
        UPDATE metered
        SET class = now.class, devices = now.devices, started_at = now.began, metered_to = now.ended
        FROM both_ AS now
        -- Said twice: the array makes it fetch these rows, and none beside, whatever the planner expects.
        WHERE metered.ctid = ANY(ARRAY(SELECT place FROM both_ WHERE holds AND place IS NOT NULL))
            AND metered.ctid = now.place
    ), gone AS (
        DELETE FROM metered
        WHERE ctid = ANY(ARRAY(SELECT place FROM both_ WHERE NOT holds AND place IS NOT NULL))
    ), told AS (
        SELECT team, pool, slice, sum(used) AS used, sum(taken_back) AS taken_back FROM (
            SELECT class, sum(greatest(devices, 0) * date_part('epoch', ended - began)) AS used,
                sum(greatest(-devices, 0) * date_part('epoch', ended - began)) AS taken_back
            FROM signed GROUP BY class
        ) AS each JOIN job_class ON job_class.id = each.class GROUP BY team, pool, slice
    )
    SELECT rows, earliest, latest, team, pool, slice, used, taken_back
    FROM (
        SELECT (SELECT sum(rows) FROM hourly) AS rows, min(began) AS earliest, max(ended) AS latest
        FROM signed
    ) AS whole LEFT JOIN told ON true
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a stretch of time, by when each begins, and the day each is of. Seconds since 1970."""

    starts: tuple[int, ...]
    """Ascending, the end of the last hour after all."""
    days: tuple[date, ...]
    """One for each hour: one fewer than `starts`."""

    def hold(self, earliest: int, latest: int) -> bool:
        """Whether all of a stretch is in them."""
        return self.starts[0] <= earliest and latest <= self.starts[-1]


@dataclass(frozen=True, slots=True)
class Used:
    """What one team was found to have held of one supply: device-seconds."""

    team: TeamName
    supply: Supply
    used: int
    taken_back: int
    """By corrections."""


@dataclass(frozen=True, slots=True)
class MeteredBatch:
    """What came of a batch."""

    jobs: int
    """Taken off the queue; 0: it was empty."""
    rows: int
    used: tuple[Used, ...]


class HoursTooFew(Exception):
    """Some of a batch was held outside the hours that were given: nothing of it may be kept."""


async def queue(connection: AsyncConnection, cluster: str, jobs: Collection[int]) -> None:
    """Have these jobs metered: their attempts, or what tells whose they are, changed in this transaction."""
    if jobs:
        await connection.execute(_QUEUE, {"cluster": cluster, "jobs": sorted(jobs)})


async def mark(connections: Connections, cluster: str) -> int | None:
    async with connections.single() as connection:
        found = (await connection.execute(_MARK, {"cluster": cluster})).scalar()
    return None if found is None else seconds(found)


async def queue_running(connection: AsyncConnection, lease: Lease, upto: int) -> None:
    """Have all that runs metered up to `upto`, and note so."""
    await connection.execute(_QUEUE_RUNNING, {"cluster": lease.cluster})
    await connection.execute(_KEEP_MARK, {"cluster": lease.cluster, "upto": moment(upto)})


async def span(connections: Connections, cluster: str, upto: int, most: int) -> tuple[int, int] | None:
    async with connections.single() as connection:
        values = {"cluster": cluster, "upto": moment(upto), "most": most}
        row = (await connection.execute(_SPAN, values)).one()
    return None if row.earliest is None else (seconds(row.earliest), seconds(row.latest))


async def meter(
    connection: AsyncConnection, lease: Lease, hours: Hours, upto: int, most: int
) -> MeteredBatch:
    """Meter the first `most` of the queue; raises HoursTooFew if `hours` do not hold all of it."""
    await connection.execute(_NO_JIT)
    taken = await connection.execute(_TAKE, {"cluster": lease.cluster, "most": most})
    jobs = sorted(set(taken.scalars()))
    if not jobs:
        return MeteredBatch(0, 0, ())
    values = {
        "jobs": jobs,
        "upto": moment(upto),
        "hours": [moment(start) for start in hours.starts],
        "days": list(hours.days),
        "count": len(hours.starts),
    }
    rows = list(await connection.execute(_METER, values))
    first = rows[0]
    if first.earliest is not None and not hours.hold(seconds(first.earliest), seconds(first.latest)):
        raise HoursTooFew
    return MeteredBatch(len(jobs), int(first.rows or 0), _used(rows))


def _used(rows: Sequence[Row[*tuple[Any, ...]]]) -> tuple[Used, ...]:
    return tuple(
        Used(
            TeamName(row.team),
            Supply(PoolName(row.pool), SliceName(row.slice) if row.slice else None),
            int(row.used),
            int(row.taken_back),
        )
        for row in rows
        if row.team is not None
    )


def moment(second: int) -> datetime:
    """As PostgreSQL takes it."""
    return datetime.fromtimestamp(second, UTC)


def seconds(at: datetime) -> int:
    """The other way round."""
    return int(at.timestamp())
