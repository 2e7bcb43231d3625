"""A month of usage to ask of: 10,000 users in 1,000 teams on 20 pools, made by the server itself.

Attempts of three hours each start evenly over the month, one or more devices, classes used unevenly: some
hundreds of times as often as others. The sums are made from the raw rows, day by day.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

import psycopg

from fairway.ledger import Ledger

MONTH: Final = date(2026, 10, 1)
DAYS: Final = 31
TEAMS: Final = 1_000
USERS: Final = 10_000
POOLS: Final = 20
HOURS_EACH: Final = 3

_CLASSES = f"""
    INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)
    SELECT 'cluster-' || p % 5, 'user-' || u, 'team-' || u % {TEAMS}, 'pool-' || p,
        CASE WHEN p >= {POOLS} - 2 THEN '1g.10gb' ELSE '' END,
        CASE WHEN q = 0 THEN 'normal' ELSE 'low' END, q = 0
    FROM generate_series(0, {USERS - 1}) AS u, generate_series(0, 1) AS k, generate_series(0, 1) AS q,
        LATERAL (SELECT (u + k * 7) % {POOLS} AS p) AS pools
"""

# One statement a day, in the order of time, as the meter writes them.
_USAGE = """
    INSERT INTO {table} (hour, started_at, kept_at, job, attempt, class, seconds, devices)
    SELECT hour, hour, hour + interval '1 hour', job, 1,
        1 + (power((job * 2654435761 % 1000003) / 1000003::float8, 2) * {classes})::int % {classes},
        CASE WHEN h < 2 THEN 3600 ELSE (600 + job % 3000)::int END,
        CASE WHEN job % 10 < 7 THEN 1 WHEN job % 10 < 9 THEN 4 ELSE 8 END
    FROM generate_series({first}::bigint, {last}) AS job, generate_series(0, {each} - 1) AS h,
        LATERAL (
            SELECT timestamptz '{start}' + ((job - {first}) * 22 / {count} + h) * interval '1 hour' AS hour
        ) AS hours
"""

_HOURS = """
    INSERT INTO usage_hour SELECT hour, class, sum(seconds * devices) FROM {table}
    WHERE hour >= '{start}' AND hour < '{end}' GROUP BY hour, class
"""
_DAYS = """
    INSERT INTO usage_day SELECT date '{day}', class, sum(device_seconds) FROM usage_hour
    WHERE hour >= '{start}' AND hour < '{end}' GROUP BY class
"""


async def fill(url: str, rows: int) -> dict[str, object]:
    """Make about so many rows and their sums; how large they are."""
    start = datetime(MONTH.year, MONTH.month, MONTH.day, tzinfo=UTC)
    await _partition(url, int(start.timestamp()))
    table = f"usage_{MONTH:%Y_%m}"
    count = -(-rows // DAYS // HOURS_EACH)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET synchronous_commit = off")
        db.execute("SET timezone = 'UTC'")
        db.execute("SET maintenance_work_mem = '512MB'")
        db.execute("SET work_mem = '512MB'")
        classes = db.execute(_CLASSES).rowcount
        db.execute("ANALYZE job_class")
        for each in ("usage_hour", "usage_day"):  # quicker when the rows are there
            db.execute(f"ALTER TABLE {each} DROP CONSTRAINT {each}_pkey")
        for n in range(DAYS):
            day = start + timedelta(days=n)
            values = {
                "table": table,
                "classes": classes,
                "first": n * count + 1,
                "last": (n + 1) * count,
                "count": count,
                "each": HOURS_EACH,
                "start": day.isoformat(),
                "end": (day + timedelta(days=1)).isoformat(),
                "day": day.date().isoformat(),
            }
            for statement in (_USAGE, _HOURS, _DAYS):
                db.execute(statement.format(**values))
        db.execute("ALTER TABLE usage_hour ADD PRIMARY KEY (hour, class)")
        db.execute("ALTER TABLE usage_day ADD PRIMARY KEY (day, class)")
        for each in (table, "usage_hour", "usage_day", "usage_team_day", "job_class"):
            db.execute(f"VACUUM ANALYZE {each}")
        return _sizes(db, table)


def _sizes(db: psycopg.Connection, table: str) -> dict[str, object]:
    told: dict[str, object] = {}
    for name, each in {"usage": table, "usage_hour": "usage_hour", "usage_day": "usage_day"}.items():
        found = db.execute(
            f"SELECT count(*), pg_table_size('{each}'), pg_indexes_size('{each}') FROM {each}"
        ).fetchone()
        assert found is not None
        rows, size, index = found
        told[name] = (
            f"{rows} rows, {(size + index) / 1e6:.0f} MB: {size / rows:.1f} bytes a row"
            f" and {index / rows:.1f} of indexes"
        )
    return told


async def _partition(url: str, hour: int) -> None:
    ledger = await Ledger.connect(url)
    await ledger.partitions.ensure([hour])
    await ledger.close()
