"""A month of usage by team, and the top users of a team; bare: the same SQL on the raw rows.

The target is one of seconds: at most 1 s at the 95th percentile, with 100,000,000 rows in the month. Told
too: what the rows and their sums take, and what a month takes in the archive and to get there.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import psycopg

from bench.figure import Figure
from bench.ledger import backends, own_server
from bench.report_rows import MONTH, POOLS, fill
from fairway.cost.calendar import Calendar
from fairway.ledger import ArchivedPart, Ledger, UsageFilter
from fairway.ledger.connection import ConnectionLimits
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


def _whole(sums: Sequence[UsageSum]) -> int:
    return sum(one.device_seconds for one in sums)


class Questions:
    """What is measured, through the ledger and bare."""

    def __init__(self, ledger: Ledger, db: psycopg.Connection) -> None:
        self._ledger = ledger
        self._db = db

    async def teams(self) -> int:
        return _whole(await self._ledger.usage.sums(SPANS, [Label.TEAM], UsageFilter(), None, local=LOCAL))

    async def users(self) -> int:
        only = UsageFilter(teams=frozenset({TEAM}))
        return _whole(await self._ledger.usage.sums(SPANS, [Label.USER], only, None, local=LOCAL))

    async def by_hour(self) -> int:
        """As a pool with spot prices is asked for: each hour by itself."""
        hours = {PoolName("pool-3"): list(LOCAL.hours(WINDOW))}
        return _whole(await self._ledger.usage.sums(hours, [Label.TEAM], UsageFilter(), None, local=LOCAL))

    async def bare_teams(self) -> int:
        return self._bare("team", "")

    async def bare_users(self) -> int:
        return self._bare("user_name", f"AND team = '{TEAM}'")

    def _bare(self, label: str, where: str) -> int:
        wanted = _BARE.format(label=label, where=where, start=WINDOW.start, end=WINDOW.end)
        return sum(int(row[3]) for row in self._db.execute(wanted))


@dataclass(frozen=True, slots=True)
class Taken:
    """What a question took: by the wall, and of CPU, Fairway's and PostgreSQL's together."""

    wall: float
    cpu: float


class Meter:
    """Measures what one connection does, its parallel workers included; on a busy machine CPU tells more."""

    def __init__(self, backend: int) -> None:
        self._backend = Path("/proc", str(backend))
        parent = (self._backend / "stat").read_text().rpartition(")")[2].split()[1]
        self._postmaster = Path("/proc", parent, "stat")

    def _cpu(self) -> float:
        # Workers have ended when the answer is there, and count as waited for.
        ended = self._postmaster.read_text().rpartition(")")[2].split()[13:15]
        leader = int((self._backend / "schedstat").read_text().split()[0]) / 1e9
        return time.process_time() + leader + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")

    async def each(self, call: Callable[[], Awaitable[int]], rounds: int) -> tuple[list[Taken], int]:
        """After one that is not measured; with what it adds up to."""
        total = await call()
        taken = []
        for _ in range(rounds):
            cpu, wall = self._cpu(), time.perf_counter()
            await call()
            taken.append(Taken(time.perf_counter() - wall, self._cpu() - cpu))
        return taken, total


def _p95(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=20, method="inclusive")[-1]


def _told(taken: list[Taken]) -> str:
    wall, cpu = [t.wall for t in taken], [t.cpu for t in taken]
    return (
        f"p50 {statistics.median(wall):.3f} s, p95 {_p95(wall):.3f} s;"
        f" of CPU {statistics.median(cpu):.3f} and {_p95(cpu):.3f} s ({len(taken)} times)"
    )


async def measure(url: str, rows: int, sizes: dict[str, object], store: Path | None) -> Figure:
    """On a ledger that was filled."""
    ledger = await Ledger.connect(url, ConnectionLimits(connections=1))
    with psycopg.connect(url, autocommit=True) as db:
        asked = Questions(ledger, db)
        (backend,) = backends(url)
        ours, plain = Meter(backend), Meter(db.info.backend_pid)
        teams, teams_sum = await ours.each(asked.teams, ROUNDS)
        users, users_sum = await ours.each(asked.users, ROUNDS)
        hours, _ = await ours.each(asked.by_hour, BARE_ROUNDS)
        bare_teams, bare_teams_sum = await plain.each(asked.bare_teams, BARE_ROUNDS)
        bare_users, bare_users_sum = await plain.each(asked.bare_users, BARE_ROUNDS)
    await ledger.close()
    if (teams_sum, users_sum) != (bare_teams_sum, bare_users_sum):
        raise SystemExit(f"sums differ: {teams_sum} {bare_teams_sum}, {users_sum} {bare_users_sum}")
    archived = await _archived(url, store) if store is not None else {}
    worst = max(_p95([t.wall for t in those]) for those in (teams, users))
    bare = statistics.median(t.wall for t in bare_teams)
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


async def _archived(url: str, store: Path) -> dict[str, object]:
    ledger = await Ledger.connect(url)
    ledger.usage.use_archive(store.as_uri())
    start = time.perf_counter()
    parts: Sequence[ArchivedPart] = await ledger.usage.archive_month(MONTH)
    took = time.perf_counter() - start
    await ledger.close()
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return {
        "archived": f"{rows} rows in {took:.1f} s ({rows / took:.0f} a second), {len(parts)} objects,"
        f" {size / 1e6:.0f} MB: {size / rows:.1f} bytes a row"
    }


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[str, Path]]:
    """A migrated PostgreSQL and its folder."""
    with own_server() as (url, folder):
        with psycopg.connect(url, autocommit=True) as db:  # nothing here need survive a power cut
            db.execute("ALTER SYSTEM SET fsync = off")
            db.execute("SELECT pg_reload_conf()")
        ledger = await Ledger.connect(url)
        await ledger.migrate()
        await ledger.close()
        yield url, folder


async def run(size: str) -> list[Figure]:
    """small: 2,000,000 rows. 100000000: a million and a hundred million, to show what grows (15 GB)."""
    figures = []
    for rows in SIZES.get(size, SIZES["small"]):
        async with _server() as (url, folder):
            sizes = await fill(url, rows)
            store = folder / "archive" if rows <= ARCHIVED_UP_TO else None
            figures.append(await measure(url, rows, sizes, store))
    return figures
