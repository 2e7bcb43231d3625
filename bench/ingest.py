"""Usage rows by the meter, against bare COPY of the same rows into the same table, in one run.

Fairway's figure is the whole step: the queue is read and emptied, attempts are compared with what is metered,
and rows, sums by hour and day and the new state are written, 20,000 jobs a transaction under a lease. Bare is
one COPY of the very rows that made, already rendered, without sums or anything else. At least half of its
rows a second is at most twice its seconds: what the target says.

Three loads: `ended` (attempts of a few hours that ended and were never seen before: their hours are their
rows), `hour` (a full hour goes by and everything runs: one row each, and one mark for all), and `short`
(attempts that began and ended within an hour: one row or two and one new state each).
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg

from bench.figure import Figure
from bench.jobs import Meter, Taken
from bench.ledger import backends, own_ledger
from fairway.control.loops.meter import BATCH, hours_of
from fairway.cost.calendar import Calendar
from fairway.ledger import Hours, Lease, Ledger

SIZES = {"small": 20_000, "200000": 200_000, "1000000": 1_000_000}
TARGET = 2.0
"""Times bare's seconds: half of its rows a second."""
ROUNDS = 3
CLUSTER = "bench"
HOUR = 3600
UPTO = int(datetime(2026, 10, 15, 12, tzinfo=UTC).timestamp())
HOURS_EACH = 8
"""The longest of `ended`: 4.5 rows each in the mean."""

_CLASSES = """
    INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)
    SELECT 'bench', 'user-' || u, 'team-' || u % 50, 'pool-' || u % 4, '', 'normal', false
    FROM generate_series(1, 500) AS u
"""
_JOBS = """
    INSERT INTO job (class, cluster, name, state, gpus, nodes, devices, submission, attempts, submitted_at)
    SELECT 1 + i % 500, 'bench', 'train', 'running', 8, 1, 8, 1, 1, now()
    FROM generate_series(1, {jobs}) AS i
"""
_ATTEMPTS = {
    "ended": """
        INSERT INTO attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes)
        SELECT id, 1, 'e' || id, start, start + (600 + hashint8(id) & 65535) % ({hours} * 3600)
            * interval '1 second', 'done', 8, ARRAY['n1']
        FROM job, LATERAL (
            SELECT to_timestamp({upto}) - (86400 * 6 + id % 86400) * interval '1 second' AS start
        ) AS began
    """,
    "short": """
        INSERT INTO attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes)
        SELECT id, 1, 'e' || id, start, start + (1 + id % 1800) * interval '1 second',
            'done', 8, ARRAY['n1']
        FROM job, LATERAL (
            SELECT to_timestamp({upto}) - (1800 + id % 7200) * interval '1 second' AS start
        ) AS began
    """,
    "hour": """
        INSERT INTO attempt (job, number, engine_id, started_at, devices, nodes)
        SELECT id, 1, 'e' || id, to_timestamp({upto}) - interval '3 hours', 8, ARRAY['n1'] FROM job
    """,
}


def _fill(db: psycopg.Connection[Any], load: str, jobs: int) -> None:
    """Attempts nobody metered yet."""
    db.execute(
        "TRUNCATE job, attempt, job_class, usage, usage_hour, usage_day, metered, to_meter, meter_mark"
    )
    db.execute("ALTER SEQUENCE job_class_id_seq RESTART")
    db.execute(_CLASSES)
    db.execute(_JOBS.format(jobs=jobs))
    db.execute(_ATTEMPTS[load].format(upto=UPTO, hours=HOURS_EACH))
    db.execute("VACUUM ANALYZE job, attempt, job_class")


async def _meter(ledger: Ledger, lease: Lease, hours: Hours, upto: int) -> None:
    """As the loop's step does: all that changed, then what runs, if an hour is over."""
    while True:
        async with ledger.writing(lease) as tx:
            done = await tx.metering.meter(hours, BATCH)
        if done.taken < BATCH:
            break
    if await ledger.metering.mark(CLUSTER) != upto:
        await _hour(ledger, lease, upto)


async def _hour(ledger: Ledger, lease: Lease, upto: int) -> None:
    hours = hours_of(Calendar(UTC), upto - HOUR, upto)
    async with ledger.writing(lease) as tx:
        await tx.metering.meter_running(hours, upto)


def _rendered(db: psycopg.Connection[Any]) -> list[bytes]:
    with db.cursor().copy(f"COPY {_ROWS} TO STDOUT") as out:
        blocks: list[bytes] = []
        block = bytearray()
        for line in out:
            block += line
            if len(block) > 1 << 16:
                blocks.append(bytes(block))
                block.clear()
    return [*blocks, bytes(block)]


_ROWS = "(SELECT hour, started_at, kept_at, job, attempt, class, seconds, devices FROM usage)"
_COLUMNS = "usage (hour, started_at, kept_at, job, attempt, class, seconds, devices)"


async def _bare(db: psycopg.Connection[Any], blocks: list[bytes]) -> None:
    with db.cursor().copy(f"COPY {_COLUMNS} FROM STDIN") as into:
        for block in blocks:
            into.write(block)


async def _measure(load: str, jobs: int) -> Figure:
    calendar = Calendar(UTC)
    hours = hours_of(calendar, UPTO - 9 * 86400, UPTO + 86400)
    ours: list[Taken] = []
    bare: list[Taken] = []
    rows = 0
    async with own_ledger() as (ledger, url):
        lease = await ledger.leases.take("meter", CLUSTER, "bench", 600)
        assert lease is not None
        await ledger.partitions.ensure(hours.starts)
        with psycopg.connect(url, autocommit=True) as db:
            meter, plain_meter = Meter(backends(url)), Meter([db.info.backend_pid])
            for _ in range(ROUNDS):
                _fill(db, load, jobs)
                upto = UPTO
                await _hour(ledger, lease, upto)
                db.execute("INSERT INTO to_meter (cluster, job) SELECT cluster, id FROM job ORDER BY id")
                if load == "hour":  # what was metered an hour ago is metered on
                    await _meter(ledger, lease, hours, upto)
                    db.execute("TRUNCATE usage")
                    upto += HOUR
                db.execute("CHECKPOINT")
                ours.append(await meter(partial(_meter, ledger, lease, hours, upto)))
                found = db.execute("SELECT count(*) FROM usage").fetchone()
                rows = found[0] if found else 0
                blocks = _rendered(db)
                db.execute("TRUNCATE usage")
                db.execute("CHECKPOINT")
                bare.append(await plain_meter(partial(_bare, db, blocks)))
    taken, plain = (statistics.median(t.wall for t in times) for times in (ours, bare))
    cpu, plain_cpu = (statistics.median(t.cpu for t in times) for times in (ours, bare))
    return Figure(
        f"ingest-{load}",
        str(jobs),
        taken / rows * 1e6,
        plain / rows * 1e6,
        "s a million rows",
        TARGET,
        "what bare COPY has not: of each attempt its place in the queue, three look-ups and its new state"
        " (`metered`, with its index), the more so the fewer rows it has; of each transaction one large plan",
        {
            "rows": rows,
            "rows_an_attempt": round(rows / jobs, 2),
            "rows_a_second": round(rows / taken),
            "bare_rows_a_second": round(rows / plain),
            "rows_a_second_of_bare": round(plain / taken, 3),
            "attempts_a_second": round(jobs / taken),
            "cpu_seconds_a_million_rows": f"{cpu / rows * 1e6:.2f}, bare {plain_cpu / rows * 1e6:.2f}",
            "rows_a_cpu_second_of_bare": round(plain_cpu / cpu, 3),
        },
    )


async def run(size: str) -> list[Figure]:
    """small: 20,000 attempts of each load."""
    jobs = SIZES.get(size, SIZES["small"])
    return [await _measure(load, jobs) for load in _ATTEMPTS]
