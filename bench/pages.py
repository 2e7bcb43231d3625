"""Pages over a ledger that holds very many jobs: the whole answer to a browser, beside the bare SQL of it.

The app is the real one, asked in process: rights, session, queries, template. Bare: the same question in
plain SQL by psycopg, as somebody would write it who knows the tables, ended after five seconds. The target is
one of seconds: 0.3 s at the 95th percentile. The rows are those of `bench jobs`, with usage by hour and day,
and with what 8,000 GPUs did.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx2
import psycopg
import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from bench import jobs
from bench.figure import Figure
from bench.ledger import backends, own_server
from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.ledger.connection import ConnectionLimits
from fairway.model.access import Role
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import format_job_id
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.services.fleets import Fleets
from fairway.services.tokens import hash_secret, new_secret
from fairway.settings import read_settings
from fairway.web.app import add_pages

SIZES = {"small": 20_000, "100000": 100_000, "1000000": 1_000_000}
TARGET_SECONDS: Final = 0.3
ROUNDS: Final = 20
MAX_BARE_SECONDS: Final = 5
CLUSTERS: Final = (*(f"cluster-{n}" for n in range(5)), "cluster-old")

_SUMS = (
    "INSERT INTO usage_hour SELECT date_trunc('hour', started_at), class,"
    " sum(devices * extract(epoch FROM COALESCE(ended_at, now()) - started_at)::bigint)"
    " FROM job WHERE started_at IS NOT NULL GROUP BY 1, 2",
    "INSERT INTO usage_day SELECT (hour AT TIME ZONE 'UTC')::date, class, sum(device_seconds)"
    " FROM usage_hour GROUP BY 1, 2",
    # A third more than was used was there.
    "INSERT INTO capacity_hour"
    " SELECT hour, cluster, pool, slice, there, there / 50, there / 80, 0, there FROM ("
    " SELECT hour, cluster, pool, slice, (sum(device_seconds) * 1.33)::bigint AS there"
    " FROM usage_hour JOIN job_class ON id = class GROUP BY 1, 2, 3, 4) AS had",
    "INSERT INTO capacity_day SELECT (hour AT TIME ZONE 'UTC')::date, cluster, pool, slice, sum(total),"
    " sum(drained), sum(down), sum(fragmented), sum(gpu_seconds) FROM capacity_hour GROUP BY 1, 2, 3, 4",
    "INSERT INTO metered (job, attempt, class, devices, started_at, metered_to)"
    " SELECT job.id, number, class, attempt.devices, date_trunc('second', attempt.started_at),"
    " date_trunc('hour', now()) FROM job JOIN attempt ON attempt.job = job.id"
    " WHERE state = 'running' AND attempt.started_at < date_trunc('hour', now())",
    "INSERT INTO meter_mark SELECT DISTINCT cluster, date_trunc('hour', now()) FROM job_class",
    *(
        f"VACUUM ANALYZE {table}"
        for table in ("usage_hour", "usage_day", "capacity_hour", "capacity_day", "metered")
    ),
)

_GANG: Final = 4096
"""GPUs of one large job."""

_MARK = "to_timestamp(floor(extract(epoch FROM now()) / 300) * 300)"
_WITH_USE = "SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM job WHERE attempts > 0 LIMIT 2000"

# What 8,000 GPUs did: 2,000 jobs of four, on 1,000 nodes over 30 days, and a gang of 4,096.
_USE = (
    "INSERT INTO use_hour (hour, class, engine, engine_seconds, idle)"
    " SELECT hour, class, device_seconds * 0.6, device_seconds * 0.95, device_seconds * 0.1 FROM usage_hour",
    "INSERT INTO use_day (day, class, engine, engine_seconds, idle)"
    " SELECT day, class, device_seconds * 0.6, device_seconds * 0.95, device_seconds * 0.1 FROM usage_day",
    f"INSERT INTO telemetry_mark SELECT DISTINCT cluster, {_MARK}, 30 FROM job_class",
    "INSERT INTO gpu_use (job, node, gpu, instance, engine, engine_seconds, sm, sm_seconds, last_at,"
    " last_engine, last_sm) SELECT id, 'node-' || n / 2, gpu, '', 60000, 80000, 40000, 80000,"
    f" {_MARK} - interval '5 min', 0.8, 0.5 FROM ({_WITH_USE}) AS job, generate_series(0, 3) AS gpu",
    "INSERT INTO gpu_use (job, node, gpu, instance, engine, engine_seconds, last_at, last_engine)"
    f" SELECT {{gang}}, 'node-' || n / 8, n % 8, 'gang', 60000, 80000, {_MARK} - interval '5 min', 0.8"
    f" FROM generate_series(0, {_GANG - 1}) AS n",
    "INSERT INTO job_use (job, hour, engine, engine_seconds) SELECT id,"
    " date_trunc('hour', now()) - h * interval '1 hour', 9000, 14400"
    f" FROM ({_WITH_USE}) AS job, generate_series(0, CASE WHEN n % 10 = 0 THEN 719 ELSE 23 END) AS h",
    "INSERT INTO job_use (job, hour, engine, engine_seconds) SELECT {gang},"
    " date_trunc('hour', now()) - h * interval '1 hour', 9000000, 14400000 FROM generate_series(0, 719) AS h"
    " ON CONFLICT DO NOTHING",
    "INSERT INTO job_window (job, started_at, cluster, measured, busy, gpus, idle_gpus)"
    f" SELECT id, {_MARK} - w * interval '5 min', 'cluster-0', 1200, 800, 4, 0"
    f" FROM ({_WITH_USE}) AS job, generate_series(1, 287) AS w",
    "INSERT INTO node_use SELECT 'cluster-0', date_trunc('hour', now()) - h * interval '1 hour',"
    " 'node-' || n, 28800, 20000, 26000, 19000"
    " FROM generate_series(0, 719) AS h, generate_series(0, 999) AS n",
    *(
        f"VACUUM ANALYZE {table}"
        for table in ("use_hour", "use_day", "gpu_use", "job_use", "job_window", "node_use")
    ),
)

_FIRST_LOOKS = {
    "cost, nobody asked before": "/cost",
    "a team, nobody asked before": "/teams/team-7",
    "the fleet, nobody asked before": "/fleet",
    "home, nobody asked before": "/",
    "a pool, nobody asked before": "/pools/pool-0",
}
_ANOTHER_LOOK = {
    "/cost": "/cost?what=usage&window=1d&by=pool",
    "/teams/team-7": "/teams/team-8",
    "/": "/jobs",
    "/fleet": "/jobs",
    "/pools/pool-0": "/jobs",
}
"""Asked before: a server draws the page of another question now and then."""

_LIST = """
    SELECT * FROM job JOIN job_class ON job_class.id = job.class
    WHERE {where} AND job.id < {high} ORDER BY job.id DESC LIMIT 50
"""
_SPENT = """
    SELECT team, sum(device_seconds) FROM usage_day JOIN job_class ON job_class.id = class
    WHERE day >= date_trunc('month', now())::date GROUP BY team
"""
_OPEN = """
    SELECT pool, state, count(*), sum(devices) FROM job JOIN job_class ON job_class.id = job.class
    WHERE state IN ('queued', 'waiting', 'held', 'running') GROUP BY pool, state
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A page, and what it asks of the ledger as plain SQL."""

    path: str
    bare: str


def fleet() -> Fleet:
    """The one that the rows of `bench jobs` are of."""
    pools = [(f"pool-{n}", f"cluster-{n // 4}") for n in range(20)] + [("pool-old", "cluster-old")]
    priorities = tuple(PriorityName(f"priority-{n}") for n in range(2))
    return Fleet(
        "bench",
        "USD",
        tuple(Cluster(ClusterName(name), VirtualConnection()) for name in CLUSTERS),
        tuple(
            Pool(
                PoolName(pool),
                ClusterName(cluster),
                GpuType("A100-80GB", 80),
                Capacity.OWNED,
                Decimal("1.90"),
                VirtualPlace(64),
            )
            for pool, cluster in pools
        ),
        tuple(
            Team(
                TeamName(name),
                grants=(Grant(Supply(PoolName(f"pool-{n % 20}")), 8),),
                priorities=priorities,
                members=(UserName(f"user-{n}"),),
            )
            for n, name in enumerate([*(f"team-{n}" for n in range(50)), "team-old", "team-rare"])
        ),
    )


def rows(count: int) -> Mapping[str, list[Row]]:
    """Each kind of page, with the addresses that are asked in turn."""
    chance = random.Random(7)
    deep = [chance.randrange(count // 20, count) for _ in range(ROUNDS)]
    newest = count + 1
    hour = (datetime.now(UTC) - timedelta(hours=1)).isoformat()

    def listed(query: str, where: str, high: int = newest) -> Row:
        before = "" if high == newest else f"&before={format_job_id(high)}"
        return Row(f"/jobs?{query}{before}", _LIST.format(where=where, high=high))

    begins = "name >= '{0}' AND name < '{0}\U0010ffff'"
    anything = "({0} OR user_name >= '{1}' AND user_name < '{1}\U0010ffff')"  # what the search field means
    filters = {
        "team": ("team=team-7", "team = 'team-7'"),
        "team long ago": ("team=team-old", "team = 'team-old'"),
        "team rare": ("team=team-rare", "team = 'team-rare'"),
        "user": ("user=user-7", "user_name = 'user-7'"),
        "user unknown": ("user=nobody", "user_name = 'nobody'"),
        "pool": ("pool=pool-2", "pool = 'pool-2'"),
        "cluster": ("cluster=cluster-3", "job.cluster = 'cluster-3'"),
        "priority": ("priority=priority-1", "priority = 'priority-1'"),
        "open": ("state=open", "state IN ('queued', 'waiting', 'held', 'running')"),
        "running": ("state=running", "state = 'running'"),
        "went wrong": ("state=wrong", "state IN ('failed', 'timed-out', 'refused', 'lost')"),
        "lost": ("state=lost", "state = 'lost'"),
        "held, none": ("state=held", "state = 'held'"),
        "last hour": ("age=1h", f"submitted_at >= '{hour}'"),
        "team, failed, last day": (
            "team=team-7&state=failed&age=24h",
            "team = 'team-7' AND state = 'failed' AND submitted_at >= now() - interval '1 day'",
        ),
        "pool, priority, running": (
            "pool=pool-2&priority=priority-0&state=running",
            "pool = 'pool-2' AND priority = 'priority-0' AND state = 'running'",
        ),
        "an array": (
            f"array={format_job_id(count // 3000 * 1000 + 1)}",
            f"array_first = {count // 3000 * 1000 + 1}",
        ),
    }
    searches = {
        "common": "train",
        "very common": "run-",
        "one array": f"sweep-{count // 3000}",
        "once": f"run-{count // 3}",
        "of many long ago": "run-1",
        "unknown": "nothing",
        "a user": "user-7",
        "an id": format_job_id(count // 3),
        "one letter": "r",
    }
    order = "ORDER BY {0} LIMIT 50"
    sorts = {
        "gpus": "devices DESC",
        "name": "name",
        "time": "ended_at - started_at DESC",
        "user": "user_name",
    }
    plain = "SELECT * FROM job JOIN job_class ON job_class.id = job.class WHERE {0} " + order.format("{1}")
    return {
        "jobs": [listed("", "true")],
        **{
            f"jobs sorted by {key}": [
                Row(f"/jobs?sort={'-' if 'DESC' in by else ''}{key}", plain.format("true", by))
            ]
            for key, by in sorts.items()
        },
        "jobs of a team sorted by time": [
            Row("/jobs?team=team-7&sort=-time", plain.format("team = 'team-7'", sorts["time"]))
        ],
        "waiting jobs, the oldest first": [
            Row(
                "/jobs?state=pending&sort=submitted", plain.format("state IN ('queued', 'waiting')", "job.id")
            )
        ],
        "search a part of a name": [listed("q=eep-1", "name LIKE '%eep-1%'")],
        "search a part of no name": [listed("q=zzz-zz", "name LIKE '%zzz-zz%'")],
        "search everything": [Row("/search?q=eep-1", "SELECT * FROM job WHERE name LIKE '%eep-1%' LIMIT 6")],
        "jobs, deep page": [listed("", "true", high) for high in deep],
        **{f"jobs by {name}": [listed(*pair)] for name, pair in filters.items()},
        **{
            f"jobs by {name}, deep page": [listed(*filters[name], high) for high in deep]
            for name in ("team", "user", "went wrong", "priority")
        },
        **{
            f"search {name}": [listed(f"q={word}", anything.format(begins.format(word), word))]
            for name, word in searches.items()
        },
        "search very common, deep page": [
            listed("q=run-", anything.format(begins.format("run-"), "run-"), high) for high in deep
        ],
        "search common by team long ago": [
            listed("q=train&team=team-old", f"{begins.format('train')} AND team = 'team-old'")
        ],
        "job": [
            Row(
                f"/jobs/{format_job_id(n)}",
                f"SELECT * FROM job JOIN job_class ON job_class.id = class LEFT JOIN attempt ON job = job.id"
                f" WHERE job.id = {n}",
            )
            for n in deep
        ],
        f"job of {_GANG} GPUs": [
            Row(f"/jobs/{format_job_id(count // 2)}", f"SELECT * FROM gpu_use WHERE job = {count // 2}")
        ],
        "home": [Row("/", _OPEN)],
        "fleet": [Row("/fleet", _OPEN)],
        "pool": [Row("/pools/pool-0", _OPEN)],
        "teams": [Row("/teams", _OPEN.replace("pool", "team"))],
        "cost": [Row("/cost", _SPENT)],
    }


def _p95(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=20, method="inclusive")[-1]


@dataclass(frozen=True, slots=True)
class Asking:
    """Somebody with a browser, and somebody with psql."""

    client: httpx2.AsyncClient
    meter: jobs.Meter
    plain: psycopg.AsyncConnection[Any]

    async def page(self, path: str) -> jobs.Taken:
        """What a page took; raises if it is not shown."""

        async def get() -> None:
            (await self.client.get(path)).raise_for_status()

        return await self.meter(get)

    async def bare(self, sql: str) -> float:
        """Seconds; of what took too long, until it was ended."""
        start = time.perf_counter()
        with suppress(psycopg.errors.QueryCanceled):
            await (await self.plain.execute(sql)).fetchall()
        return time.perf_counter() - start


def fill(url: str, count: int) -> None:
    """The rows of `bench jobs`, and the sums of what they used."""
    jobs._fill(url, count)
    with psycopg.connect(url, autocommit=True) as db:
        for statement in _SUMS:
            db.execute(statement)
        for statement in _USE:
            db.execute(statement.format(gang=count // 2))


async def _app(ledger: Ledger, folder: Path) -> FastAPI:
    made = fleet()
    await ledger.revisions.add("made by the benchmark", "digest", "bench")
    app = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, lambda _: made), NO_POLICY_SERVICES, NO_JOB_SERVICES
    )
    settings = read_settings({"state_dir": str(folder)}, {"XDG_CONFIG_HOME": str(folder)})
    add_pages(app, ledger, app.state.fleets, NO_POLICY_SERVICES, NO_JOB_SERVICES, settings)
    return app


async def measure(url: str, count: int) -> list[Figure]:
    """Every page, over a ledger that was filled."""
    ledger = await Ledger.connect(url, ConnectionLimits(connections=1))
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
        app = await _app(ledger, Path(folder))
        secret = new_secret()
        await ledger.tokens.create(f"bench-{os.getpid()}", Role.ADMIN, hash_secret(secret), "bench")
        meter = jobs.Meter(backends(url))
        transport = httpx2.ASGITransport(app=app)
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://bench.test") as client,
            await psycopg.AsyncConnection.connect(url, autocommit=True) as plain,
        ):
            await plain.execute("SET statement_timeout = '5s'")
            first = [
                await _first_look(ledger, Path(folder), meter, plain, secret, Row(path, _SPENT), name, count)
                for name, path in _FIRST_LOOKS.items()
            ]
            await client.post("/sign-in", data={"token": secret})
            figures = [
                await _figure(Asking(client, meter, plain), name, asked, count)
                for name, asked in rows(count).items()
            ]
    await ledger.close()
    return [*first, *figures]


async def _first_look(
    ledger: Ledger,
    folder: Path,
    meter: jobs.Meter,
    plain: psycopg.AsyncConnection[Any],
    secret: str,
    row: Row,
    name: str,
    count: int,
) -> Figure:
    """As `_figure`, by a server that remembers no answer: what the first of a minute pays for all."""
    ours: list[jobs.Taken] = []
    bare: list[float] = []
    for _ in range(ROUNDS // 2):
        transport = httpx2.ASGITransport(app=await _app(ledger, folder))
        async with httpx2.AsyncClient(transport=transport, base_url="http://bench.test") as client:
            await client.post("/sign-in", data={"token": secret})
            asking = Asking(client, meter, plain)
            await asking.page(_ANOTHER_LOOK[row.path])
            ours.append(await asking.page(row.path))
            bare.append(await asking.bare(row.bare))
    return _told(name, row.path, ours, bare, count)


async def _figure(asking: Asking, name: str, asked: list[Row], count: int) -> Figure:
    ours: list[jobs.Taken] = []
    bare: list[float] = []
    for turn in range(-1, ROUNDS):  # the first is not counted
        row = asked[turn % len(asked)]
        taken = await asking.page(row.path)
        if turn >= 0:
            ours.append(taken)
            if (
                len(bare) < 2 or sum(bare) < MAX_BARE_SECONDS
            ):  # who writes it plainly may wait for seconds each time
                bare.append(await asking.bare(row.bare))
    return _told(name, asked[0].path, ours, bare, count)


def _told(name: str, path: str, ours: list[jobs.Taken], bare: list[float], count: int) -> Figure:
    walls, cpus, bare_p95 = [t.wall for t in ours], [t.cpu for t in ours], _p95(bare)
    return Figure(
        f"page: {name}",
        str(count),
        _p95(walls),
        bare_p95,
        "s",
        round(TARGET_SECONDS / bare_p95, 2),
        "queries of the ledger and the template; on a busy machine whatever else runs: then the CPU tells",
        {
            "target_seconds": TARGET_SECONDS,
            "p50": _ms(statistics.median(walls)),
            "p95": _ms(_p95(walls)),
            "cpu_p50": _ms(statistics.median(cpus)),
            "cpu_p95": _ms(_p95(cpus)),
            "bare_p50": _ms(statistics.median(bare)),
            "bare_p95": _ms(bare_p95),
            "load": round(os.getloadavg()[0], 1),
            "path": path,
        },
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def run(size: str) -> list[Figure]:
    """small: 20,000 jobs. 1000000: a million."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    count = SIZES.get(size, SIZES["small"])
    with own_server() as (url, _):
        ledger = await Ledger.connect(url)
        await ledger.migrate()
        await ledger.close()
        fill(url, count)
        return await measure(url, count)
