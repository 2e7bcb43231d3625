"""What attempts hold that is not metered yet: of those that run, and of those the meter has still to look at.

What is true of an attempt less what is metered of it. Mostly that is one stretch, from where it is metered to
now; where the meter was wrong, all that it wrote is taken off and all that is true put on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.model.job import OPEN_JOBS

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

# A job whose class changed is in the meter's queue: only of those that run quietly is the class asked first.
# They are metered up to their cluster's mark, so of what ended before it they have nothing to tell.
_TAILS: Final = """
    WITH candidate AS (
        SELECT id, class, state FROM job
        WHERE state = 'running' AND class IN (SELECT id FROM job_class WHERE {of_class})
            AND cluster NOT IN (SELECT cluster FROM meter_mark WHERE metered_to >= to_timestamp(:ends))
        UNION SELECT to_meter.job, job.class, job.state FROM to_meter LEFT JOIN job ON job.id = to_meter.job
    ), truth AS (
        SELECT attempt.job, attempt.number AS attempt, candidate.class, attempt.devices,
            floor(extract(epoch FROM attempt.started_at)) AS began,
            floor(extract(epoch FROM attempt.ended_at)) AS ended,
            attempt.ending IS NULL AND candidate.state IN ({open}) AS runs
        FROM candidate JOIN attempt ON attempt.job = candidate.id
    ), told AS (
        SELECT job, attempt, metered.class, devices, extract(epoch FROM started_at) AS began,
            extract(epoch FROM COALESCE(metered.metered_to, greatest(started_at, mark.metered_to))) AS upto
        FROM candidate JOIN metered ON metered.job = candidate.id
        JOIN job_class ON job_class.id = metered.class LEFT JOIN meter_mark AS mark USING (cluster)
    ), both_ AS (
        SELECT job, truth.class, truth.devices, truth.began, told.class AS told_class,
            told.devices AS told_devices, told.began AS told_began, told.upto,
            COALESCE(truth.class = told.class AND truth.devices = told.devices
                AND truth.began = told.began, false) AS alike,
            CASE WHEN runs AND ended IS NULL THEN greatest(:until, truth.began, told.upto)
                ELSE COALESCE(ended, told.upto, truth.began) END AS ended
        FROM truth FULL JOIN told USING (job, attempt)
    ), stretch AS (
        SELECT job, class, devices, upto AS began, ended FROM both_ WHERE alike AND ended > upto
        UNION ALL SELECT job, class, -devices, ended, upto FROM both_ WHERE alike AND ended < upto
        UNION ALL SELECT job, class, devices, began, ended FROM both_ WHERE NOT alike AND class IS NOT NULL
        UNION ALL SELECT job, told_class, -told_devices, told_began, upto FROM both_
            WHERE NOT alike AND told_class IS NOT NULL
    )
    SELECT job_class.pool, job_class.slice, began, ended, sum(devices) AS devices {labels}
    FROM stretch JOIN job_class ON job_class.id = stretch.class {names}
    WHERE ended > began AND {of_class} AND {of_name}
    GROUP BY pool, slice, began, ended {labels}
    HAVING sum(devices) <> 0
"""

_NAMES: Final = "LEFT JOIN (SELECT id AS job, name FROM job) AS named USING (job)"


@dataclass(frozen=True, slots=True)
class Tail:
    """Devices held from when to when, beyond what is metered; negative: less than that."""

    pool: str
    slice: str
    start: int
    end: int
    devices: int
    labels: tuple[str, ...]


async def tails(
    connection: AsyncConnection,
    of_class: str,
    of_name: str,
    values: dict[str, object],
    columns: Sequence[str],
    until: int,
    *,
    ends: int,
    raw: bool,
) -> list[Tail]:
    """Of the classes that pass, told apart by `columns`; `raw`: by the job's name too.

    `ends`: of what was held later than that nothing is asked, and some may be left out.
    """
    wanted = _TAILS.format(
        of_class=of_class,
        of_name=of_name,
        open=_OPEN,
        labels="".join(f", {column}" for column in columns),
        names=_NAMES if raw else "",
    )
    rows = await connection.execute(text(wanted), values | {"until": until, "ends": ends})
    return [
        Tail(pool, slice_, int(began), int(ended), int(devices), tuple(label or "" for label in labels))
        for pool, slice_, began, ended, devices, *labels in rows
    ]
