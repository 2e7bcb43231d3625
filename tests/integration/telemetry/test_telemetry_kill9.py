"""Nothing twice and nothing lost: the loop is killed -9 while exporters and Prometheus fail in every way.

Few kills in every run, fifty nightly; FAIRWAY_TELEMETRY_KILLS chooses another number.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError

from fairway.ledger import Ledger
from fairway.model.errors import FairwayError
from lab import Instance, obtain
from lab.gpus import Exporter
from tests.integration.telemetry.telemetry_process import serve, step_of
from tests.integration.telemetry.telemetry_site import scraped
from tests.metered import CLUSTER, Hand
from tests.waiting import Deadline

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

INTERVAL = 1
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.integration.telemetry.telemetry_process"])


class Proxy:
    """Between the loop and Prometheus: passes on, or fails in the way it is told."""

    def __init__(self, upstream: str) -> None:
        self.mode = "pass"
        self.failed = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with suppress(OSError):  # whoever asked was killed
                    self._answer(*proxy.ask(upstream + self.path, body))

            def _answer(self, status: int, said: bytes, promised: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(promised))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def ask(self, url: str, body: bytes) -> tuple[int, bytes, int]:
        """Status, body, and how long the body is said to be."""
        mode = self.mode
        self.failed += mode != "pass"
        if mode == "422":
            said = b'{"status":"error","errorType":"execution","error":"many-to-many matching"}'
            return 422, said, len(said)
        if mode == "slow":
            time.sleep(1.5)  # longer than the lease of whoever waits
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read()
            return error.code, said, len(said)
        except OSError:
            return 502, b"away", 4
        if mode == "half":
            return 200, said[: len(said) // 2], len(said) // 2
        if mode == "cut":
            return 200, said[: len(said) // 2], len(said)
        if mode == "partial":
            said = said[:-1] + b',"warnings":["partial response: a store did not answer"]}'
        return 200, said, len(said)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def gpus() -> Iterator[Instance]:
    instance = obtain("gpus", f"test-{os.getpid()}-kill9", None, {"interval": INTERVAL})
    try:
        instance.up()
        yield instance
    finally:
        instance.wipe()


@dataclass
class Job:
    """A job of the ledger that the exporter knows by its number."""

    id: int
    name: str
    node: str
    gpus: tuple[int, ...]
    start: float
    end: float | None = None


@dataclass
class Cluster:
    """Jobs that begin and end, written as a mirror would, and shown by the exporter."""

    db: psycopg.Connection[Any]
    exporter: Exporter
    labelled: bool
    jobs: list[Job] = field(default_factory=list)

    def begin(self, node: str, gpus: tuple[int, ...], shape: str) -> Job:
        hand = Hand(self.db)
        now = float(int(time.time()))
        made = hand.job(hand.class_())
        job = Job(made, str(1000 + made), node, gpus, now)
        with self.db.transaction():
            hand.attempt(made, 1, now, devices=len(gpus))
            row = (made, node, CLUSTER, [job.name], [] if self.labelled else list(gpus))
            self.db.execute("INSERT INTO attempt_gpu VALUES (%s, 1, %s, %s, %s, %s, NULL)", row)
        self.exporter.hold(job.name, node, gpus, shape, noise=0.1)  # type: ignore[arg-type]
        self.jobs.append(job)
        return job

    def end(self, job: Job) -> None:
        self.exporter.end(job.name)
        job.end = float(int(time.time()) + 1)
        at = datetime.fromtimestamp(job.end, UTC)
        with self.db.transaction():
            Hand(self.db).attempt(job.id, 1, job.start, job.end, devices=len(job.gpus))
            self.db.execute("UPDATE attempt_gpu SET ended_at = %s WHERE job = %s", (at, job.id))
            self.db.execute("UPDATE job SET state = 'done' WHERE id = %s", (job.id,))

    def faults(self, restarts: int) -> list[str]:
        """Each way in which sums are not what was served, or not what other sums are."""
        wrong: list[str] = []
        for job in self.jobs:
            (measured, busy) = self._one(
                "SELECT COALESCE(sum(engine_seconds), 0), COALESCE(sum(engine), 0) FROM job_use"
                " WHERE job = %s",
                job.id,
            )
            (by_gpu,) = self._one(
                "SELECT COALESCE(sum(engine_seconds), 0) FROM gpu_use WHERE job = %s", job.id
            )
            (windows,) = self._one("SELECT COALESCE(sum(measured), 0) FROM job_window WHERE job = %s", job.id)
            holds = self.exporter.truth(job.name).holds
            samples = sum(h.samples * h.share / h.held for h in holds if h.held)
            engine = sum(h.figures["engine"].sum * h.share / h.held for h in holds if h.held)
            assert job.end is not None
            held = (job.end - job.start) * len(job.gpus)
            slack = INTERVAL * len(job.gpus) * (1 + restarts) + 0.05 * samples
            if measured > held + 1e-6:
                wrong.append(f"{job.name}: measured {measured}, held {held}")
            if abs(measured - samples * INTERVAL) > slack:
                wrong.append(
                    f"{job.name}: measured {measured:.2f}, served {samples * INTERVAL:.2f} ± {slack:.2f}"
                )
            if abs(busy - engine * INTERVAL) > slack:
                wrong.append(f"{job.name}: busy {busy:.2f}, served {engine * INTERVAL:.2f} ± {slack:.2f}")
            if max(measured, by_gpu, windows) - min(measured, by_gpu, windows) > 1e-6:
                wrong.append(f"{job.name}: by hour {measured}, by GPU {by_gpu}, by window {windows}")
        sums = [
            self._one(f"SELECT sum(engine_seconds) FROM {table}")[0]
            for table in ("job_use", "use_hour", "use_day")
        ]
        if max(sums) - min(sums) > 1e-6:
            wrong.append(f"jobs, hours and days: {sums}")
        return wrong

    def _one(self, query: Any, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self.db.execute(query, values).fetchone()
        assert row is not None
        return row


async def torment(
    gpus: Instance, url: str, kills: int, *, labelled: bool = True, fault: str = "none"
) -> tuple[list[str], str]:
    dice = random.Random(kills)
    exporter = Exporter(gpus.env()["EXPORTER_URL"])
    exporter.forget()
    exporter.configure(hpc_job=labelled)
    proxy = Proxy(gpus.env()["PROMETHEUS_URL"])
    ledger = await Ledger.connect(url)
    await ledger.revisions.add("fleet", "digest", "test")
    await scraped(gpus)
    await _start(ledger, proxy.url)
    process: BaseProcess | None = None
    restarts = 0
    modes = ("pass", "422", "slow", "half", "cut", "partial")
    with psycopg.connect(url, autocommit=True) as db:
        cluster = Cluster(db, exporter, labelled)
        try:
            stay = [
                cluster.begin("gpu001", (0, 1), "good"),
                cluster.begin("gpu002", (0,), "small"),
                cluster.begin("gpu003", (4, 5, 6), "loader"),
            ]
            if labelled:
                stay.append(cluster.begin("gpu002", (0,), "small"))  # two on one GPU
            passing = cluster.begin("gpu004", (3,), "io")
            for number in range(kills):
                process = _FORKS.Process(target=serve, args=(url, proxy.url, fault), daemon=True)
                process.start()
                await asyncio.sleep(dice.uniform(0.8, 2.6))
                proxy.mode = modes[number % len(modes)] if number % 2 else "pass"
                if number == kills // 3:
                    exporter.silence(6, "gpu001")
                if number == kills // 2:
                    await asyncio.to_thread(gpus.kill, "prometheus")
                    await asyncio.to_thread(gpus.up)
                    restarts += 1
                if number % 4 == 3:
                    cluster.end(passing)
                    passing = cluster.begin("gpu004", (3,), "io")
                process.kill()
                process.join(30)
            proxy.mode = "pass"
            for job in (*stay, passing):
                cluster.end(job)
            await _finish(ledger, proxy.url)
            mark = await ledger.gpu_use.mark(CLUSTER)
            (windows,) = db.execute("SELECT count(DISTINCT started_at) FROM job_window").fetchone() or (0,)
            return cluster.faults(restarts), (
                f"{kills} kills, {proxy.failed} failed answers, {windows} windows with jobs, {mark};"
                f" {len(cluster.jobs)} jobs"
            )
        finally:
            if process is not None:
                process.kill()
                process.join(30)
            proxy.close()
            await ledger.close()


async def _start(ledger: Ledger, prometheus: str) -> None:
    lease = await ledger.leases.take("telemetry", CLUSTER, "first", 1)
    assert lease is not None
    step = step_of(ledger, prometheus)
    await step(lease)
    await step.close()


async def _finish(ledger: Ledger, prometheus: str) -> None:
    """Read on until everything that ended by now is in."""
    ended, deadline = time.time() + 2, Deadline(120)
    step = step_of(ledger, prometheus)
    while True:
        with suppress(FairwayError):
            lease = await ledger.leases.take("telemetry", CLUSTER, "last", 60)
            if lease is not None:
                await step(lease)
        mark = await ledger.gpu_use.mark(CLUSTER)
        if mark is not None and mark.read_to > ended:
            break
        assert not deadline.passed, mark
        await asyncio.sleep(0.3)
    await step.close()


async def test_a_few_kills_lose_and_double_nothing(gpus: Instance, database_url: str) -> None:
    faults, told = await torment(gpus, database_url, int(os.environ.get("FAIRWAY_TELEMETRY_KILLS", "7")))
    logging.getLogger(__name__).info(told)
    assert faults == [], told


@pytest.mark.nightly("fifty kills each, with and without labels; CI runs seven")
@pytest.mark.parametrize("labelled", [True, False], ids=["named", "by-index"])
async def test_fifty_kills_lose_and_double_nothing(gpus: Instance, database_url: str, labelled: bool) -> None:
    faults, told = await torment(gpus, database_url, 50, labelled=labelled)
    logging.getLogger(__name__).info(told)
    assert faults == [], told


@pytest.mark.nightly("two planted faults, a minute")
@pytest.mark.parametrize("fault", ["two transactions", "skips what fails"])
async def test_planted_faults_are_found(gpus: Instance, database_url: str, fault: str) -> None:
    try:
        faults, told = await torment(gpus, database_url, 16, fault=fault)
    except IntegrityError:
        assert fault == "two transactions"  # the ledger itself refuses a window of a job twice
    else:
        assert faults != [], told
