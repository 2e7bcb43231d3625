"""Jobs in a ledger that holds very many: lists of any filter, and what the loops ask for all the time.

Bare: the same hundred rows of the same table by its primary key, in plain SQL. The target is one of seconds:
a page of any filter in at most 0.1 s at the 95th percentile. The rows are synthetic and made by the server
itself: 500 users in 50 teams on 20 pools of 5 clusters, names common and rare, a team and a cluster that
were used long ago, states that hardly occur.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.figure import Figure
from bench.ledger import backends, own_ledger
from fairway.ledger import JobFilter, Lease, Ledger, NewJob
from fairway.model.job import (
    Attempt,
    Ending,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Placement,
    SeenJob,
)
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply

SIZES = {"small": (20_000,), "100000": (100_000,), "1000000": (100_000, 1_000_000)}
TARGET_SECONDS = 0.1
ROUNDS = 20
PAGE = 100
DAYS = 10

_CLASSES = """
    INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)
    SELECT 'cluster-' || u % 5, 'user-' || u, 'team-' || u % 50, 'pool-' || (u % 5) * 4 + p, '',
        CASE WHEN native THEN '' ELSE 'priority-' || q END, native
    FROM generate_series(0, 499) AS u, generate_series(0, 2) AS p, generate_series(0, 1) AS q,
        unnest(ARRAY[true, false]) AS native
    WHERE NOT native OR q = 0
    UNION ALL SELECT 'cluster-old', 'user-' || u, 'team-old', 'pool-old', '', 'priority-0', false
    FROM generate_series(0, 299) AS u
    UNION ALL SELECT 'cluster-0', 'user-rare', 'team-rare', 'pool-0', '', 'priority-0', false
"""

# One in seven hundred of the first half is of the old team, of its users each a few; one in 50,000 is rare.
# What is open is among the last; some states only long ago.
_JOBS = """
    INSERT INTO job (
        id, class, cluster, name, state, engine_id, gpus, nodes, devices, submission, attempts, array_first,
        array_index, submitted_at, started_at, ended_at, exit_code, time_seconds, not_before, sent_at, late
    )
    SELECT i, c.id, c.cluster,
        CASE WHEN h % 10 = 0 THEN 'train' WHEN h % 10 < 5 THEN 'sweep-' || i / 1000 ELSE 'run-' || i END,
        state, 'e' || i, 2, 1 + h % 2, 2 + 2 * (h % 2), CASE WHEN c.native THEN 0 ELSE 1 END,
        CASE WHEN state IN ('queued', 'waiting', 'refused') THEN 0 ELSE 1 END,
        CASE WHEN h % 10 BETWEEN 1 AND 4 THEN i / 1000 * 1000 + 1 END,
        CASE WHEN h % 10 BETWEEN 1 AND 4 THEN i END,
        at, at + interval '1 minute', CASE WHEN i < :n * 0.98 THEN at + interval '1 hour' END,
        CASE WHEN state = 'failed' THEN 1 WHEN state = 'done' THEN 0 END, 3600, at, at, i % 5000 = 0
    FROM (
        SELECT i, abs(hashint8(i)) AS h, now() - :days * interval '1 day' * (:n - i) / :n AS at
        FROM generate_series(:first, :last) AS i
    ) AS jobs
    JOIN job_class AS c ON c.id = CASE
            WHEN i % 50000 = 777 THEN :classes
            WHEN i % 700 = 1 AND i < :n / 2 THEN :classes - 300 + h % 300
            ELSE 1 + ((h % 1000003) / 1000003.0) ^ 2 * (:classes - 302)
        END::int
    CROSS JOIN LATERAL (SELECT CASE
        WHEN i < :n * 0.98 THEN CASE
            WHEN h % 100000 = 5 THEN 'lost'
            WHEN h % 1000 = 7 AND i < :n / 2 THEN 'refused'
            WHEN h % 100 < 80 THEN 'done' WHEN h % 100 < 92 THEN 'failed' WHEN h % 100 < 98 THEN 'cancelled'
            ELSE 'timed-out' END
        ELSE CASE WHEN h % 10 < 5 THEN 'waiting' WHEN h % 10 < 9 THEN 'running' ELSE 'queued' END
    END AS state) AS s
"""

_REST = (
    "INSERT INTO job_clock SELECT date_trunc('minute', submitted_at), min(id) FROM job GROUP BY 1",
    "INSERT INTO engine_job SELECT cluster, engine_id, id, submission, 0, false FROM job",
    "INSERT INTO attempt SELECT id, 1, engine_id, started_at, ended_at,"
    " CASE WHEN ended_at IS NOT NULL THEN 'done' END, exit_code, NULL, devices,"
    " ARRAY['node-' || id % 1000], '' FROM job WHERE attempts > 0",
    "SELECT setval(pg_get_serial_sequence('job', 'id'), max(id)) FROM job",
    "UPDATE job SET engine_id = NULL, sent_at = NULL WHERE state = 'queued'",
)


def _filters(jobs: int) -> dict[str, JobFilter]:
    now = datetime.now(UTC)
    ended = (JobState.DONE, JobState.FAILED)
    middle: dict[str, Any] = {
        "submitted_after": now - timedelta(days=6),
        "submitted_before": now - timedelta(days=5),
    }
    one = JobFilter
    return {
        "all": one(),
        "cluster": one(cluster="cluster-3"),
        "cluster used long ago": one(cluster="cluster-old"),
        "cluster unknown": one(cluster="nowhere"),
        "team": one(team="team-7"),
        "team used long ago": one(team="team-old"),
        "team rare": one(team="team-rare"),
        "user": one(user="user-7"),
        "user unknown": one(user="nobody"),
        "pool": one(pool="pool-2"),
        "pool of another cluster": one(cluster="cluster-3", pool="pool-2"),
        "team and user that never met": one(team="team-7", user="user-8"),
        "native": one(native=True),
        "native by team": one(native=True, team="team-7", states=ended),
        "running": one(states=(JobState.RUNNING,)),
        "done or failed": one(states=ended),
        "lost": one(states=(JobState.LOST,)),
        "refused": one(states=(JobState.REFUSED,)),
        "held, none": one(states=(JobState.HELD,)),
        "lost by team": one(team="team-7", states=(JobState.LOST,)),
        "refused by cluster": one(cluster="cluster-3", states=(JobState.REFUSED,)),
        "refused by team long ago": one(team="team-old", states=(JobState.REFUSED,)),
        "name common": one(name="train"),
        "name of an array": one(name=f"sweep-{jobs // 3000}"),
        "name once": one(name=f"run-{jobs // 3}"),
        "name unknown": one(name="nothing"),
        "name common by user": one(name="train", user="user-7"),
        "name common by old team": one(name="train", team="team-old"),
        "name common, lost": one(name="train", states=(JobState.LOST,)),
        "array": one(array=JobId(jobs // 3000 * 1000 + 1)),
        "last hour": one(submitted_after=now - timedelta(hours=1)),
        "a day of last week": one(**middle),
        "a day of last week by team": one(team="team-7", **middle),
        "a day of last week, lost": one(states=(JobState.LOST,), **middle),
        "older than a month": one(submitted_before=now - timedelta(days=30)),
        "everything at once": one(
            "cluster-2", "team-7", "user-7", ended, "pool-9", "train", native=False, **middle
        ),
    }


def _order(name: str, array: int = 0) -> NewJob:
    spec = JobSpec(name, GpuRequest(1), ("python", "train.py", "--lr", "0.1"), array=tuple(range(array)))
    place = Placement(ClusterName("cluster-1"), Supply(PoolName("pool-4")), "the pool with most free GPUs")
    return NewJob(spec, UserName("user-1"), TeamName("team-1"), PriorityName("priority-0"), place)


def _sightings(count: int, start: datetime) -> list[SeenJob]:
    attempt = Attempt(start, (NodeName("node-1"),), 1)
    return [
        SeenJob(
            EngineId(f"new-{i}"),
            f"native-{i}",
            UserName(f"user-{i % 100}"),
            TeamName("team-1"),
            JobState.RUNNING,
            start,
            Supply(PoolName("pool-4")),
            1,
            attempts=(attempt,),
        )
        for i in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a call took: by the wall, and of CPU, Fairway's and PostgreSQL's together."""

    wall: float
    cpu: float


class Meter:
    """Measures calls over the one connection a ledger has here; on a busy machine only CPU tells much."""

    def __init__(self, backends: list[int]) -> None:
        self._backends = [Path("/proc", str(pid), "schedstat") for pid in backends]

    def _cpu(self) -> float:
        waited_on = sum(int(file.read_text().split()[0]) for file in self._backends)
        return time.process_time() + waited_on / 1e9

    async def __call__(self, call: Callable[[], Awaitable[object]]) -> Taken:
        cpu, wall = self._cpu(), time.perf_counter()
        await call()
        return Taken(time.perf_counter() - wall, self._cpu() - cpu)


def _p95(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=20, method="inclusive")[-1]


def _told(taken: list[Taken]) -> str:
    wall, cpu = [t.wall for t in taken], [t.cpu for t in taken]
    return (
        f"p50 {_ms(statistics.median(wall))}, p95 {_ms(_p95(wall))};"
        f" of CPU {_ms(statistics.median(cpu))} and {_ms(_p95(cpu))}"
    )


async def _pages(
    ledger: Ledger, meter: Meter, url: str, jobs: int
) -> tuple[dict[str, list[Taken]], list[Taken]]:
    """Each filter and the bare page, from the newest on and from cursors all over the ids."""
    filters = _filters(jobs)
    cursors = [None if turn % 2 else JobId(jobs * (turn + 1) // ROUNDS) for turn in range(ROUNDS)]
    taken: dict[str, list[Taken]] = {name: [] for name in filters}
    bare: list[Taken] = []
    wanted = f"SELECT * FROM job WHERE id < %s ORDER BY id DESC LIMIT {PAGE}"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as plain:
        plain_meter = Meter([plain.info.backend_pid])

        async def by_key(cursor: int) -> None:
            await (await plain.execute(wanted, (cursor,))).fetchall()

        for cursor in (None, *cursors):  # the first round is not measured
            for name, which in filters.items():
                call = partial(ledger.jobs.page, which, before=cursor, limit=PAGE)
                taken[name].append(await meter(call))
            bare.append(await plain_meter(partial(by_key, cursor or jobs)))
    return {name: times[1:] for name, times in taken.items()}, bare[1:]


async def _calls(ledger: Ledger, meter: Meter, lease: Lease) -> dict[str, Taken]:
    """What is asked or written all the time."""
    now = datetime.now(UTC).replace(microsecond=0)
    new = _sightings(2000, now)
    over = [
        replace(
            seen,
            state=JobState.DONE,
            attempts=(replace(seen.attempts[0], ended_at=now, ending=Ending.DONE, exit_code=0),),
            ended_at=now,
        )
        for seen in new
    ]

    async def keep(seen: list[SeenJob]) -> None:
        async with ledger.writing(lease) as tx:
            await tx.mirror.write_jobs(seen, "mark")

    async def each(rounds: int, call: Callable[[], Awaitable[object]]) -> Taken:
        times = [await meter(call) for _ in range(rounds)]
        return Taken(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))

    many = [_order("many", 10_000)]
    different = [_order(f"j{i}") for i in range(5000)]
    return {
        "submit one": await each(20, lambda: ledger.jobs.submit([_order("one")], by="bench")),
        "submit 10,000 as an array": await meter(lambda: ledger.jobs.submit(many, by="bench", key="k")),
        "submit 5,000 different ones": await meter(lambda: ledger.jobs.submit(different, by="bench")),
        "keep 2,000 new": await meter(lambda: keep(new)),
        "keep 2,000 unchanged": await meter(lambda: keep(new)),
        "keep 2,000 ended": await meter(lambda: keep(over)),
        "to_send, 200 of 15,000": await each(10, lambda: ledger.dispatch.pending_submits("cluster-1", 200)),
        "to_do, none": await each(10, lambda: ledger.dispatch.pending_actions("cluster-1", 1000)),
        "job_counts": await each(10, ledger.jobs.counts),
        "open_engine_ids of one cluster": await each(
            10, lambda: ledger.dispatch.open_engine_ids("cluster-2")
        ),
    }


def _fill(url: str, jobs: int) -> dict[str, object]:
    """Make the rows, and tell how large they are."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET synchronous_commit = off")
        db.execute("SET statement_timeout = '5min'")
        classes = db.execute(_CLASSES).rowcount
        db.execute("ANALYZE job_class")
        step = 50_000
        for first in range(1, jobs + 1, step):
            bounds = {"first": first, "last": min(jobs, first + step - 1), "classes": classes}
            wanted = _JOBS
            for name, value in {**bounds, "n": jobs, "days": DAYS}.items():
                wanted = wanted.replace(f":{name}", str(value))
            db.execute(wanted)
        for statement in _REST:
            db.execute(statement)
        db.execute("VACUUM ANALYZE")
        sizes = "SELECT pg_table_size(%s::regclass), pg_indexes_size(%s::regclass)"
        told: dict[str, object] = {}
        for table in ("job", "engine_job", "attempt"):
            row = db.execute(sizes, (table, table)).fetchone()
            assert row is not None
            told[f"bytes a job, {table}"] = f"{row[0] / jobs:.0f} and {row[1] / jobs:.0f} of indexes"
    return told


async def _measure(jobs: int) -> Figure:
    async with own_ledger() as (ledger, url):
        sizes = _fill(url, jobs)
        meter = Meter(backends(url))
        taken, bare = await _pages(ledger, meter, url, jobs)
        lease = await ledger.leases.take("mirror", "cluster-1", "bench", 600)
        assert lease is not None
        calls = await _calls(ledger, meter, lease)
    p95s = {name: _p95([t.wall for t in times]) for name, times in taken.items()}
    cpu_p95s = {name: _p95([t.cpu for t in times]) for name, times in taken.items()}
    slowest, hungriest = max(p95s, key=p95s.__getitem__), max(cpu_p95s, key=cpu_p95s.__getitem__)
    bare_p95 = _p95([t.wall for t in bare])
    return Figure(
        "jobs-list",
        str(jobs),
        p95s[slowest],
        bare_p95,
        "s",
        round(TARGET_SECONDS / bare_p95, 2),
        "the number of classes (user, team, pool, priority) whose newest job is looked up, not the jobs; on a"
        " busy machine by whatever else runs: then the CPU tells, and how long the bare page takes",
        {
            "target_seconds": TARGET_SECONDS,
            "slowest": slowest,
            "most_cpu": f"{_ms(cpu_p95s[hungriest])} at p95: {hungriest}",
            "all_filters": _told([one for times in taken.values() for one in times]),
            "bare_page": _told(bare),
            **{f"list: {name}": _told(times) for name, times in taken.items()},
            **{name: f"{_ms(t.wall)}, of CPU {_ms(t.cpu)}" for name, t in calls.items()},
            **sizes,
        },
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def run(size: str) -> list[Figure]:
    """small: 20,000 jobs. 1000000: 100,000 and a million, to show what grows."""
    figures = [await _measure(jobs) for jobs in SIZES.get(size, SIZES["small"])]
    if len(figures) > 1:
        grown = figures[-1].figure / figures[0].figure
        figures[-1] = replace(
            figures[-1], details={"grown_since_the_smaller": f"{grown:.2f} ×", **figures[-1].details}
        )
    return figures
