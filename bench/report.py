"""A month of usage by team, and the top users of a team; bare: the same SQL on the raw rows.

The target is one of seconds: at most 1 s at the 95th percentile, with 100,000,000 rows in the month. Told
too: what the rows and their sums take, and what a month takes in the archive and to get there.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

import psycopg

from bench.figure import Figure
from bench.report_rows import MONTH, POOLS, fill
from fairway.cost.calendar import Calendar
from fairway.ledger import ArchivedPart, Ledger, UsageFilter, embedded
from fairway.ledger.connection import Limits
from fairway.model.charge import Label, UsageSum
from fairway.model.names import PoolName

SIZES = {"small": (2_000_000,), "100000000": (1_000_000, 100_000_000)}
TARGET_SECONDS = 1.0
ROUNDS = 20
BARE_ROUNDS = 3
"""Of the raw rows: at 10^8 each takes a minute or more."""
ARCHIVED_UP_TO = 2_000_000
"""Rows: beyond, archiving is not measured with the rest."""

LOCAL = Calendar(UTC)
WINDOW = LOCAL.month_span(MONTH)
SPANS = {PoolName(f"pool-{n}"): [WINDOW] for n in range(POOLS)}
TEAM = "team-7"

_BARE = """
    SELECT {label}, pool, slice, sum(seconds::bigint * devices)
    FROM usage JOIN job_class ON job_class.id = class
    WHERE hour >= to_timestamp({start}) AND hour < to_timestamp({end}) {where}
    GROUP BY 1, 2, 3
"""


class Questions:
    """What is measured, through the ledger and bare."""

    def __init__(self, ledger: Ledger, db: psycopg.Connection) -> None:
        self._ledger = ledger
        self._db = db

    async def teams(self) -> tuple[UsageSum, ...]:
        return await self._ledger.usage_sums(SPANS, [Label.TEAM], UsageFilter(), None, local=LOCAL)

    async def users(self) -> tuple[UsageSum, ...]:
        only = UsageFilter(teams=frozenset({TEAM}))
        return await self._ledger.usage_sums(SPANS, [Label.USER], only, None, local=LOCAL)

    async def by_hour(self) -> tuple[UsageSum, ...]:
        """As a pool with spot prices is asked for: each hour by itself."""
        pool = PoolName("pool-3")
        hours = {pool: list(LOCAL.hours(WINDOW))}
        return await self._ledger.usage_sums(hours, [Label.TEAM], UsageFilter(), None, local=LOCAL)

    def bare_teams(self) -> int:
        return self._bare("team", "")

    def bare_users(self) -> int:
        return self._bare("user_name", f"AND team = '{TEAM}'")

    def _bare(self, label: str, where: str) -> int:
        wanted = _BARE.format(label=label, where=where, start=WINDOW.start, end=WINDOW.end)
        return sum(int(row[3]) for row in self._db.execute(wanted))


async def _timed(call: Callable[[], Awaitable[Sequence[UsageSum]]], rounds: int) -> tuple[list[float], int]:
    """Seconds of each, after one that is not measured; what it adds up to."""
    total = sum(one.device_seconds for one in await call())
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - start)
    return taken, total


def _bare(call: Callable[[], int], rounds: int) -> tuple[list[float], int]:
    taken, total = [], 0
    for _ in range(rounds):
        start = time.perf_counter()
        total = call()
        taken.append(time.perf_counter() - start)
    return taken, total


def _p95(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=20, method="inclusive")[-1]


def _told(taken: list[float]) -> str:
    return f"p50 {statistics.median(taken):.3f} s, p95 {_p95(taken):.3f} s of {len(taken)}"


async def measure(url: str, rows: int, sizes: dict[str, object], store: Path | None) -> Figure:
    """On a ledger that was filled."""
    ledger = await Ledger.connect(url, Limits(connections=2))
    with psycopg.connect(url, autocommit=True) as db:
        asked = Questions(ledger, db)
        teams, teams_sum = await _timed(asked.teams, ROUNDS)
        users, users_sum = await _timed(asked.users, ROUNDS)
        hours, _ = await _timed(asked.by_hour, 5)
        bare_teams, bare_teams_sum = _bare(asked.bare_teams, BARE_ROUNDS)
        bare_users, bare_users_sum = _bare(asked.bare_users, BARE_ROUNDS)
    if (teams_sum, users_sum) != (bare_teams_sum, bare_users_sum):
        raise SystemExit(f"sums differ: {teams_sum} {bare_teams_sum}, {users_sum} {bare_users_sum}")
    archived = await _archived(ledger, store) if store is not None else {}
    await ledger.close()
    worst, bare = max(_p95(teams), _p95(users)), statistics.median(bare_teams)
    return Figure(
        "report",
        str(rows),
        worst,
        bare,
        "s",
        round(TARGET_SECONDS / bare, 4),
        "adding up the sums by day, which grow with classes (user, team, pool, priority) and days,"
        " not with rows; on a busy machine by whatever else runs: then the bare question tells how much",
        {
            "target_seconds": TARGET_SECONDS,
            "month by team": _told(teams),
            "top users of a team": _told(users),
            "one pool, each hour by itself": _told(hours),
            "bare, month by team": _told(bare_teams),
            "bare, top users of a team": _told(bare_users),
            **sizes,
            **archived,
        },
    )


async def _archived(ledger: Ledger, store: Path) -> dict[str, object]:
    ledger.use_archive(store.as_uri())
    start = time.perf_counter()
    parts: Sequence[ArchivedPart] = await ledger.archive_month(MONTH)
    took = time.perf_counter() - start
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return {
        "archived": f"{rows} rows in {took:.1f} s ({rows / took:.0f} a second), {len(parts)} objects,"
        f" {size / 1e6:.0f} MB: {size / rows:.1f} bytes a row"
    }


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[str, Path]]:
    """A PostgreSQL of its own, wiped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fairway-bench-"))
    folder.chmod(0o711)  # as root, the server runs as somebody else and must get in
    server = embedded.start(folder / "postgres")
    try:
        with psycopg.connect(server.url, autocommit=True) as db:  # nothing here need survive a power cut
            db.execute("ALTER SYSTEM SET fsync = off")
            db.execute("SELECT pg_reload_conf()")
        ledger = await Ledger.connect(server.url)
        await ledger.migrate()
        await ledger.close()
        yield server.url, folder
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def run(size: str) -> list[Figure]:
    """small: 2,000,000 rows. 100000000: a million and a hundred million, to show what grows (15 GB)."""
    figures = []
    for rows in SIZES.get(size, SIZES["small"]):
        async with _server() as (url, folder):
            sizes = await fill(url, rows)
            store = folder / "archive" if rows <= ARCHIVED_UP_TO else None
            figures.append(await measure(url, rows, sizes, store))
    return figures
