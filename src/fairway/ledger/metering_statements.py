"""What the meter asks of PostgreSQL: two statements, one for what changed, one for a full hour of what runs.

Both end alike: stretches are cut at hours and added to `usage`, and its sums by hour and day are made from
the rows just written. Nothing crosses the wire but what the sums say of each team.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import TextClause, text

from fairway.model.job import OPEN_JOBS

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

# Estimates of a queue that was empty a moment ago are worth nothing. jit: it would compile what runs for a
# moment. nestloop: what is looked up below is so anyway; nothing else may be. The scans: no table is ever
# read as a whole, however small it was when it was last counted.
_NOT: Final = ("jit", "enable_nestloop", "enable_seqscan", "enable_bitmapscan")
PLAINLY: Final = text("SELECT " + ", ".join(f"set_config('{name}', 'off', true)" for name in _NOT))

# The first of the queue. Another's row of a lower number may be committed later: it is not seen here, and
# neither is it removed.
_LAST: Final = """
    SELECT max(id) FROM (
        SELECT id FROM to_meter WHERE cluster = :cluster ORDER BY id LIMIT :most
    ) AS first
"""

_MARK: Final = "SELECT max(metered_to) AS at FROM meter_mark WHERE cluster = :cluster"

# Looked up job by job (OFFSET 0 sees to it): no estimate of the planner's may make this read whole tables.
# In whole seconds, reckoned once. Without an end and not running: nothing tells when it ended.
_TRUTH: Final = f"""
    SELECT attempt.job, attempt.number AS attempt, job.class, attempt.devices,
        date_bin('1 second', attempt.started_at, 'epoch') AS began,
        date_bin('1 second', attempt.ended_at, 'epoch') AS ended,
        attempt.ended_at IS NULL AND attempt.ending IS NULL AND job.state IN ({_OPEN}) AS runs
    FROM chosen
    CROSS JOIN LATERAL (SELECT class, state FROM job WHERE id = chosen.job OFFSET 0) AS job
    CROSS JOIN LATERAL (
        SELECT job, number, devices, started_at, ended_at, ending FROM attempt
        WHERE attempt.job = chosen.job OFFSET 0
    ) AS attempt
    CROSS JOIN LATERAL (SELECT FROM job_class WHERE id = job.class AND pool <> '' OFFSET 0) AS with_a_pool
    OFFSET 0
"""  # noqa: S608

# What runs is metered up to the mark, whatever moves it: its row says so by having no end of its own.
_BOTH: Final = """
    SELECT job, attempt, m.class AS old_class, m.devices AS old_devices, m.began AS old_began,
        m.ended AS old_ended, m.runs AS old_runs, m.place, t.class, t.devices, t.began,
        COALESCE(t.runs, false) AS runs,
        -- Without a known end: no further than it was metered.
        greatest(t.began, CASE WHEN t.runs THEN mark.at ELSE COALESCE(t.ended, m.ended) END) AS ended
    FROM truth AS t FULL JOIN (
        SELECT metered.* FROM chosen CROSS JOIN mark CROSS JOIN LATERAL (
            SELECT job, attempt, class, devices, started_at AS began,
                COALESCE(metered_to, greatest(started_at, mark.at)) AS ended,
                metered_to IS NULL AS runs, ctid AS place
            FROM metered WHERE metered.job = chosen.job OFFSET 0
        ) AS metered
    ) AS m USING (job, attempt) CROSS JOIN mark
"""

SPAN: Final = text(f"""
    WITH mark AS ({_MARK}), chosen AS (
        SELECT DISTINCT job FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST})
    ), truth AS ({_TRUTH}), both_ AS ({_BOTH})
    SELECT least(min(began), min(old_began)) AS earliest, greatest(max(ended), max(old_ended)) AS latest
    FROM both_
""")  # noqa: S608

_CHANGED: Final = f"""
    mark AS MATERIALIZED ({_MARK}), taken AS (
        DELETE FROM to_meter WHERE cluster = :cluster AND id <= ({_LAST}) RETURNING job
    ), chosen AS MATERIALIZED (
        SELECT DISTINCT job FROM taken ORDER BY job
    ), truth AS ({_TRUTH}), both_ AS MATERIALIZED (
        SELECT compared.*,
            COALESCE(class IS NOT NULL AND (runs OR began < ended) AND devices > 0, false) AS holds,
            COALESCE(class = old_class, false) AS same,
            -- Nothing but more of it, as it mostly is: only what follows is to be added.
            CASE
                WHEN old_class IS NULL THEN true
                WHEN class = old_class AND devices = old_devices AND began = old_began THEN ended > old_ended
                ELSE false
            END AS more
        FROM ({_BOTH} OFFSET 0) AS compared
        WHERE (class, devices, began, ended, runs)
            IS DISTINCT FROM (old_class, old_devices, old_began, old_ended, old_runs)
    ), stretches AS (
        -- Of one class: between the four moments at which something begins or ends. Of two: all of the one is
        -- taken back, and all of the other added.
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
        -- Said twice: the array makes it fetch these rows, and none beside, whatever the planner expects.
        WHERE metered.ctid = ANY(ARRAY(SELECT place FROM both_ WHERE holds AND place IS NOT NULL))
            AND metered.ctid = now.place
    ), gone AS (
        DELETE FROM metered
        WHERE ctid = ANY(ARRAY(SELECT place FROM both_ WHERE NOT holds AND place IS NOT NULL))
    )
"""  # noqa: S608

# The mark itself is moved after this, in the same transaction.
_RUNNING: Final = f"""
    mark AS MATERIALIZED ({_MARK}), signed AS (
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
        RETURNING hour, class, devices * seconds AS device_seconds
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
        FROM hourly JOIN unnest(CAST(:hours AS timestamptz[]), CAST(:days AS date[])) AS known (hour, day)
            USING (hour)
        GROUP BY day, class ORDER BY day, class
        ON CONFLICT (day, class)
        DO UPDATE SET device_seconds = usage_day.device_seconds + excluded.device_seconds
    ), told AS (
        SELECT team, pool, slice, sum(device_seconds - taken_back) AS used, -sum(taken_back) AS taken_back
        FROM (
            SELECT class, sum(device_seconds) AS device_seconds, sum(taken_back) AS taken_back
            FROM hourly GROUP BY class
        ) AS each CROSS JOIN LATERAL (
            SELECT team, pool, slice FROM job_class WHERE id = each.class OFFSET 0
        ) AS whose
        GROUP BY team, pool, slice
    )
    SELECT whole.*, told.*
    FROM (
        SELECT {taken} AS taken, (SELECT sum(rows) FROM hourly) AS rows,
            (SELECT min(first) < 1 OR max(last) >= :count FROM placed) AS outside
    ) AS whole LEFT JOIN told ON true
"""


def _statement(which: str, taken: str) -> TextClause:
    return text(f"WITH {which}{_WRITTEN.format(taken=taken)}")


METER_CHANGED: Final = _statement(_CHANGED, "(SELECT count(*) FROM taken)")
METER_RUNNING: Final = _statement(_RUNNING, "0")
