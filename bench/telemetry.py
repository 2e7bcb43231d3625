"""One window of GPU metrics, read, attributed and stored, against sums by job of them in bare PromQL.

A real Prometheus scrapes the lab's exporter each 15 s; jobs of 1 to 8 GPUs hold nine GPUs of ten, and on one
node in fifty they change hands within the window. Measured twice: with `hpc_job` on every series, and with
nothing but the GPU indices that the ledger knows. Bare: one `sum by (hpc_job) (sum_over_time(X[5m]))` a
metric, as whoever writes such a report would ask. The targets are CPU seconds: 2 of Prometheus and 1 of ours.
Both are means of several passes: Prometheus collects its garbage in some of them, and Fairway looks at what
the metrics lack in one. Size: GPUs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.figure import Figure
from bench.ledger import backends, own_ledger
from fairway.control.loops.telemetry import DELAY_SECONDS, ReadTelemetry
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Cluster, Fleet, Telemetry, VirtualConnection
from fairway.model.gpu_use import WINDOW_SECONDS, Window
from fairway.model.names import ClusterName
from fairway.services.fleets import Fleets, LastApplied
from fairway.telemetry import queries
from fairway.telemetry.metrics import METRICS
from fairway.telemetry.prometheus import Prometheus
from lab import Instance
from lab.gpus import Exporter
from lab.instance import obtain

SMALL: Final = 1_000
PROMETHEUS_SECONDS: Final = 2.0
OUR_SECONDS: Final = 1.0
INTERVAL: Final = 15
GPUS_A_NODE: Final = 8
CHANGED_NODES: Final = 50
"""One node in so many has jobs that end, and others that begin, within the window."""
SPLITS: Final = ((8,), (4, 4), (4, 2, 2), (2, 2, 1, 1), (1, 1, 1, 1, 1, 1, 1), (4, 2))
PASSES: Final = 5
QUIET_SECONDS: Final = 20
"""How long Prometheus is watched with nobody asking: scraping costs it CPU all the time."""
WRITTEN: Final = ("gpu_use", "gpu_hour", "job_use", "use_hour", "use_day", "node_use", "job_window")
CLUSTER: Final = ClusterName("lab")
FLEET: Final = Fleet("bench", "USD", (Cluster(CLUSTER, VirtualConnection()),), (), ())


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs that a job holds; it ends or begins within the window if it changes hands."""

    job: int
    node: str
    gpus: tuple[int, ...]
    start: float
    end: float | None


@dataclass(slots=True)
class Cost:
    """CPU seconds of one window, the mean of all passes, beyond what scraping took meanwhile."""

    prometheus: float
    ours: float
    postgresql: float
    wall: float
    queries: int = 0


class Counting(Prometheus):
    """A Prometheus that counts what it is asked."""

    asked = 0

    async def vector(self, *args: Any) -> Any:
        Counting.asked += 1
        return await super().vector(*args)

    async def matrix(self, *args: Any) -> Any:
        Counting.asked += 1
        return await super().matrix(*args)


async def run(size: str) -> list[Figure]:
    """small: 1,000 GPUs. 8000: the size that the targets are for; it takes 15 minutes."""
    gpus = SMALL if size == "small" else int(size)
    instance = await asyncio.to_thread(
        obtain,
        "gpus",
        f"bench-gpus-{os.getpid()}",
        None,
        {"nodes": gpus // GPUS_A_NODE, "mig_nodes": 0, "interval": INTERVAL},
    )
    await asyncio.to_thread(instance.up)
    try:
        return [
            figure
            for labelled in (True, False)
            for figure in await _measure(instance, gpus, labelled=labelled)
        ]
    finally:
        await asyncio.to_thread(instance.wipe)


async def _measure(instance: Instance, gpus: int, *, labelled: bool) -> list[Figure]:
    exporter = Exporter(instance.env()["EXPORTER_URL"])
    exporter.forget()
    exporter.configure(hpc_job=labelled)
    now = int(time.time())
    # The first whole window that begins when every node has been scraped at least once.
    start = (now + 2 * INTERVAL + WINDOW_SECONDS) // WINDOW_SECONDS * WINDOW_SECONDS
    window = Window(start, start + WINDOW_SECONDS)
    holds = list(_holds(gpus // GPUS_A_NODE, window, now))
    exporter.hold_all(_told(hold) for hold in holds)
    while (left := window.end + DELAY_SECONDS + 1 - time.time()) > 0:
        await asyncio.sleep(left)
    bare = await _bare(instance, window)
    async with own_ledger() as (ledger, url):
        _fill(url, holds)
        lease = await ledger.leases.take("telemetry", CLUSTER, "bench", 600)
        assert lease is not None
        ours = await _ours(instance, ledger, lease, url, window)
        measured, held = _sums(url), _held(holds, window)
    bare = min(bare, await _bare(instance, window), key=lambda cost: cost.prometheus)
    # Less is the exporter's or the machine's fault: a scrape that failed was not measured.
    assert measured <= held * (1 + INTERVAL / WINDOW_SECONDS), (measured, held)
    return list(_figures(gpus, holds, ours, bare, measured / held, labelled=labelled))


def _holds(nodes: int, window: Window, now: int) -> Iterator[Hold]:
    job = 0
    middle = window.start + WINDOW_SECONDS / 2
    for number in range(1, nodes + 1):
        changed = number % CHANGED_NODES == 0
        for start, end in ((now, middle), (middle, None)) if changed else ((now, None),):
            first = 0
            for count in SPLITS[number % len(SPLITS)]:
                job += 1
                yield Hold(job, f"gpu{number:03}", tuple(range(first, first + count)), start, end)
                first += count


def _told(hold: Hold) -> dict[str, object]:
    shapes = ("good", "good", "good", "loader", "small", "idle")
    told = {"job": str(hold.job), "node": hold.node, "gpus": list(hold.gpus), "start": hold.start}
    ending = {} if hold.end is None else {"end": hold.end}
    return {**told, **ending, "shape": shapes[hold.job % len(shapes)]}


def _held(holds: list[Hold], window: Window) -> float:
    return sum(
        len(hold.gpus) * (min(window.end, hold.end or window.end) - max(window.start, hold.start))
        for hold in holds
    )


def _fill(url: str, holds: list[Hold]) -> None:
    """The jobs as the mirror would have stored them."""
    with psycopg.connect(url, autocommit=True) as db, db.cursor() as cursor:
        db.execute(
            "INSERT INTO job_class (id, cluster, user_name, team, pool, slice, priority, native)"
            " OVERRIDING SYSTEM VALUE SELECT u, 'lab', 'user-' || u, 'team-' || u % 20, 'gpu', '', '', true"
            " FROM generate_series(1, 200) AS u"
        )
        with cursor.copy(
            "COPY job (id, class, cluster, name, state, gpus, nodes, devices, submission, attempts,"
            " submitted_at) FROM STDIN"
        ) as rows:
            for h in holds:
                state, count = "done" if h.end else "running", len(h.gpus)
                row = (h.job, 1 + h.job % 200, CLUSTER, "train", state, count, 1, count, 0, 1, _at(h.start))
                rows.write_row(row)
        with cursor.copy(
            "COPY attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes) FROM STDIN"
        ) as rows:
            for h in holds:
                ended = (None, None) if h.end is None else (_at(h.end), "done")
                rows.write_row((h.job, 1, str(h.job), _at(h.start), *ended, len(h.gpus), [h.node]))
        with cursor.copy("COPY engine_job (cluster, engine_id, job, submission) FROM STDIN") as rows:
            for h in holds:
                rows.write_row((CLUSTER, str(h.job), h.job, 0))
        with cursor.copy(
            "COPY attempt_gpu (job, attempt, node, cluster, holders, gpus, ended_at) FROM STDIN"
        ) as rows:
            for h in holds:
                end = None if h.end is None else _at(h.end)
                rows.write_row((h.job, 1, h.node, CLUSTER, [str(h.job)], list(h.gpus), end))
        db.execute("VACUUM ANALYZE job, attempt, engine_job, attempt_gpu, job_class")


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def _ours(instance: Instance, ledger: Ledger, lease: Lease, url: str, window: Window) -> Cost:
    """One step of the loop, as the server runs it: the window's queries, the attribution, the rows."""
    await ledger.revisions.add("made by the benchmark", "digest", "bench")
    fleets = Fleets(ledger, lambda _: FLEET)
    step = ReadTelemetry(
        CLUSTER,
        Telemetry(instance.env()["PROMETHEUS_URL"]),
        ledger,
        LastApplied(CLUSTER, ledger, fleets),
        clock=lambda: window.end + DELAY_SECONDS,
        prometheus=Counting,
    )

    async def again() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"TRUNCATE {', '.join(WRITTEN)}")
        async with ledger.writing(lease) as tx:
            await tx.gpu_use.start(window.start, INTERVAL)
        Counting.asked = 0

    cost = await _cost(instance, backends(url), lambda: step(lease), again)
    await step.close()
    cost.queries = Counting.asked
    return cost


async def _bare(instance: Instance, window: Window) -> Cost:
    url = f"{instance.env()['PROMETHEUS_URL']}/api/v1/query"
    names = [metric.names[0] for metric in METRICS]

    def ask() -> None:
        for name in names:
            query = f"sum by (hpc_job) (sum_over_time({name}[{WINDOW_SECONDS}s]))"
            words = urllib.parse.urlencode({"query": query, "time": queries.moment(window)})
            with urllib.request.urlopen(f"{url}?{words}", timeout=60) as answer:
                answer.read()

    async def call() -> None:
        await asyncio.to_thread(ask)

    cost = await _cost(instance, [], call)
    cost.queries = len(names)
    return cost


async def _cost(
    instance: Instance,
    backends: list[int],
    call: Callable[[], Awaitable[object]],
    again: Callable[[], Awaitable[object]] | None = None,
) -> Cost:
    """CPU of all that took part, less what Prometheus takes for scraping, measured before and after."""
    daemon = instance.daemon("prometheus")
    assert daemon is not None
    before = await _scraping(daemon.pid)
    sums = [0.0] * 4
    for _ in range(PASSES):
        if again is not None:
            await again()
        began = _clocks(daemon.pid, backends)
        await call()
        ended = _clocks(daemon.pid, backends)
        sums = [so_far + end - start for so_far, start, end in zip(sums, began, ended, strict=True)]
    scraping = (before + await _scraping(daemon.pid)) / 2
    of_prometheus, own, of_postgresql, wall = (each / PASSES for each in sums)
    return Cost(max(0.0, of_prometheus - scraping * wall), own, of_postgresql, wall)


def _clocks(prometheus: int, backends: list[int]) -> tuple[float, ...]:
    return _cpu(prometheus), _own_cpu(), sum(map(_cpu, backends)), time.perf_counter()


async def _scraping(pid: int) -> float:
    """Cores that Prometheus takes while nobody asks it anything."""
    before = _cpu(pid)
    await asyncio.sleep(QUIET_SECONDS)
    return (_cpu(pid) - before) / QUIET_SECONDS


def _cpu(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _sums(url: str) -> float:
    with psycopg.connect(url) as db:
        row = db.execute("SELECT sum(engine_seconds) FROM job_use").fetchone()
    assert row is not None
    return float(row[0])


def _figures(
    gpus: int, holds: list[Hold], ours: Cost, bare: Cost, coverage: float, *, labelled: bool
) -> Iterator[Figure]:
    how = "hpc_job" if labelled else "GPU indices"
    details = {
        "jobs": len(holds),
        "queries": ours.queries,
        "bare_queries": bare.queries,
        "measured_of_held": round(coverage, 4),
        "wall": f"{ours.wall:.2f} s, bare {bare.wall:.2f} s",
        "prometheus_cpu": f"{ours.prometheus:.2f} s, bare {bare.prometheus:.2f} s",
        "our_cpu": f"{ours.ours:.2f} s, PostgreSQL {ours.postgresql:.2f} s",
        "load": round(os.getloadavg()[0], 1),
    }
    yield Figure(
        f"telemetry by {how}: Prometheus",
        str(gpus),
        ours.prometheus,
        bare.prometheus,
        "s of CPU",
        4.0,
        "one pass over the window's samples a metric; means by device have more rows than sums by job",
        details,
        most=PROMETHEUS_SECONDS,
    )
    yield Figure(
        f"telemetry by {how}: Fairway",
        str(gpus),
        ours.ours + ours.postgresql,
        bare.ours or 0.01,
        "s of CPU",
        float("inf"),
        "decoding the answers, one object a device and metric, and the rows of PostgreSQL",
        details,
        most=OUR_SECONDS,
    )
