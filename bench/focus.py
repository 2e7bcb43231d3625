"""A month as a FOCUS file, one row for each day and job class; bare: writing the same cells as CSV.

Compared is the CPU that this process takes; what PostgreSQL takes for it is told beside. The month is the one
of `bench.report_rows`, with usage in one hour of each class and day and a third more capacity than was used,
and four of its pools have commitments.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

import psycopg

from bench.figure import Figure
from bench.ledger import backends, own_server
from bench.report_rows import DAYS, MONTH
from fairway.cost.calendar import Window, calendar_of
from fairway.ledger import Ledger
from fairway.ledger.connection import ConnectionLimits
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.price import Commitment, Pricing
from fairway.model.team import Team
from fairway.services.charges import Costs
from fairway.services.focus_export import focus_lines

SIZES: Final = {"small": 50_000, "1000000": 1_000_000}
POOLS: Final = 20
TEAMS: Final = 200
TARGET_RATIO: Final = 12.0
"""Rows are made, not only written: exact amounts, prices, quantities and names, 50 cells each."""

_FILL: Final = (
    "INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)"
    f" SELECT 'cluster', 'user-' || n, 'team-' || n % {TEAMS}, 'pool-' || n % {POOLS}, '', 'normal', false"
    " FROM generate_series(1, {classes}) AS n",
    "INSERT INTO usage_hour SELECT timestamptz '{start}' + (day * 24 + id % 24) * interval '1 hour', id,"
    f" 600 + id % 3000 FROM job_class, generate_series(0, {DAYS - 1}) AS day",
    "INSERT INTO usage_day SELECT (hour AT TIME ZONE 'UTC')::date, class, device_seconds FROM usage_hour",
    "INSERT INTO capacity_hour SELECT hour, cluster, pool, slice, there, there / 50, there / 80, 0, there"
    " FROM (SELECT hour, cluster, pool, slice, (sum(device_seconds) * 1.33)::bigint AS there"
    " FROM usage_hour JOIN job_class ON id = class GROUP BY 1, 2, 3, 4) AS had",
    "INSERT INTO capacity_day SELECT (hour AT TIME ZONE 'UTC')::date, cluster, pool, slice, sum(total),"
    " sum(drained), sum(down), sum(fragmented), sum(gpu_seconds) FROM capacity_hour GROUP BY 1, 2, 3, 4",
    "VACUUM ANALYZE",
)


def fleet() -> Fleet:
    """The fleet of the rows."""
    commitment = Commitment(8, Decimal("1.10"), date(2026, 1, 1), date(2027, 1, 1))
    cluster = ClusterName("cluster")
    pools = tuple(
        Pool(
            PoolName(f"pool-{n}"),
            cluster,
            GpuType("A100-80GB", 80),
            Capacity.RESERVED,
            Decimal("1.90"),
            VirtualPlace(64),
            pricing=Pricing(commitments=(commitment,)) if n < 4 else Pricing(),
        )
        for n in range(POOLS)
    )
    teams = tuple(Team(TeamName(f"team-{n}")) for n in range(TEAMS))
    return Fleet("bench", "USD", (Cluster(cluster, VirtualConnection()),), pools, teams)


def _fill(url: str, rows: int) -> None:
    classes, start = -(-rows // DAYS), f"{MONTH}T00:00:00Z"
    with psycopg.connect(url, autocommit=True) as db:
        for statement in ("SET synchronous_commit = off", "SET timezone = 'UTC'"):
            db.execute(statement)
        for statement in _FILL:
            db.execute(statement.replace("{classes}", str(classes)).replace("{start}", start))


async def _export(ledger: Ledger) -> tuple[list[str], float, float]:
    """The pieces of the file, CPU seconds and seconds."""
    every = fleet()
    calendar = calendar_of(every)
    until = (MONTH + timedelta(days=32)).replace(day=1)
    window = Window(MONTH, until, calendar.month_span(MONTH), calendar.month_end(MONTH))
    cpu, began = time.process_time(), time.perf_counter()
    pieces = [piece async for piece in focus_lines(Costs(ledger), every, window)]
    return pieces, time.process_time() - cpu, time.perf_counter() - began


def _written(rows: Sequence[Sequence[str]]) -> float:
    """CPU seconds of writing the same cells."""
    cpu = time.process_time()
    csv.writer(io.StringIO(), lineterminator="\n").writerows(rows)
    return time.process_time() - cpu


def _backend_cpu(url: str) -> float:
    """CPU seconds of PostgreSQL's processes that serve the ledger."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split() for pid in backends(url)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / 100


async def run(size: str) -> list[Figure]:
    """small: 50,000 rows; 1000000."""
    with own_server() as (url, _):
        ledger = await Ledger.connect(url, ConnectionLimits(connections=1))
        await ledger.migrate()
        _fill(url, SIZES.get(size, SIZES["small"]))
        before = _backend_cpu(url)
        pieces, cpu, seconds = await _export(ledger)
        served = _backend_cpu(url) - before
        await ledger.close()
    rows = [row for piece in pieces for row in csv.reader(io.StringIO(piece))]
    bare = _written(rows)
    count = len(rows) - 1
    details = {
        "rows": count,
        "microseconds of CPU a row": round(cpu / count * 1e6, 1),
        "seconds": round(seconds, 1),
        "CPU seconds of PostgreSQL": round(served, 1),
        "MB": round(sum(map(len, pieces)) / 1e6),
    }
    limits = "Python: each cell is made by itself; amounts are exact fractions until they are written"
    return [Figure("focus", size, cpu, bare, "s of CPU", TARGET_RATIO, limits, details)]
