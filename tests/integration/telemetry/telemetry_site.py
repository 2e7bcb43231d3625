"""Jobs of a real engine that drive the exporters of the lab, and loops that read what Prometheus has."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fairway.control.loops.telemetry import ReadTelemetry
from fairway.engines.port import Mirrors
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Fleet, Telemetry
from fairway.services.fleets import Fleets, LastApplied
from lab import Instance
from lab.gpus import Exporter
from tests.waiting import Deadline, eventually

WINDOW = 10
DELAY = 4
"""Seconds after a window's end: a scrape and a sighting have arrived by then."""
INTERVAL = 2
"""Between two scrapes: more than the second to which engines tell times."""


async def scraped(gpus: Instance, times: int = 5) -> None:
    """Wait until every node has been scraped so often, so that the interval can be seen."""
    asked = urllib.parse.urlencode({"query": 'min(count_over_time(up{job="dcgm"}[15m]))'})

    def often() -> bool:
        url = f"{gpus.env()['PROMETHEUS_URL']}/api/v1/query?{asked}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return bool(found) and float(found[0]["value"][1]) >= times

    await eventually(often, 60, "every node is scraped")


@dataclass(frozen=True)
class Measured:
    """What a ledger has of one job."""

    held: float
    measured: float
    busy: float
    devices: frozenset[tuple[str, str, str]]


_SUMS = """
    SELECT job.id, COALESCE(engine_job.engine_id, ''),
        (SELECT sum(devices * extract(epoch FROM ended_at - started_at)) FROM attempt WHERE job = job.id),
        (SELECT COALESCE(sum(engine_seconds), 0) FROM job_use WHERE job = job.id),
        (SELECT COALESCE(sum(engine), 0) FROM job_use WHERE job = job.id),
        (SELECT COALESCE(sum(engine_seconds), 0) FROM gpu_use WHERE job = job.id),
        ARRAY(SELECT node || '/' || gpu || '/' || instance FROM gpu_use WHERE job = job.id)
    FROM job LEFT JOIN engine_job ON engine_job.job = job.id
"""


@dataclass
class Reading:
    """One ledger, its leases and its telemetry loop on one Prometheus."""

    gpus: Instance
    ledger: Ledger
    url: str
    cluster: str
    mirror: Lease
    telemetry: Lease
    step: ReadTelemetry

    @classmethod
    async def of(
        cls,
        gpus: Instance,
        ledger: Ledger,
        url: str,
        fleet: Fleet,
        *,
        window: int = WINDOW,
        delay: int = DELAY,
        prometheus: str | None = None,
    ) -> Reading:
        name = fleet.clusters[0].name
        await ledger.revisions.add("fleet", "digest", "test")
        applied = LastApplied(name, ledger, Fleets(ledger, lambda _: fleet))
        source = Telemetry(prometheus or gpus.env()["PROMETHEUS_URL"])
        step = ReadTelemetry(name, source, ledger, applied, window_seconds=window, delay_seconds=delay)
        leases = [await ledger.leases.take(loop, name, "test", 3600) for loop in ("mirror", "telemetry")]
        assert leases[0] is not None
        assert leases[1] is not None
        return cls(gpus, ledger, url, name, leases[0], leases[1], step)

    @property
    def exporter(self) -> Exporter:
        return Exporter(self.gpus.env()["EXPORTER_URL"])

    async def read_to(self, moment: float, within: float = 60.0) -> None:
        """Read windows until one that ends after `moment` is in."""
        deadline = Deadline(within)
        while True:
            await self.step(self.telemetry)
            mark = await self.ledger.gpu_use.mark(self.cluster)
            if mark is not None and mark.read_to > moment:
                return
            assert not deadline.passed, f"read to {mark}, not {moment}"
            await asyncio.sleep(0.5)

    def sums(self) -> dict[str, Measured]:
        """By the engine's id."""
        with psycopg.connect(self.url) as db:
            rows = db.execute(_SUMS).fetchall()
        for row in rows:
            assert math.isclose(row[3], row[5], abs_tol=1e-6), "by hour and by GPU"
        return {
            row[1]: Measured(
                float(row[2] or 0), row[3], row[4], frozenset(tuple(one.split("/")) for one in row[6])
            )
            for row in rows
        }


@dataclass
class Following:
    """A mirror that is followed all the time, into several ledgers."""

    engine: Mirrors
    fleet: Fleet
    readings: Sequence[Reading]
    jobs: dict[str, Any] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Following:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        mark: str | None = None
        while True:
            batch = await self.engine.changes(mark, self.fleet)
            for reading in self.readings:
                async with reading.ledger.writing(reading.mirror) as tx:
                    await tx.mirror.write_jobs(batch.jobs, batch.mark)
            self.jobs |= {job.engine_id: job for job in batch.jobs}
            mark = batch.mark

    async def until(self, ids: Iterable[str], states: Iterable[str], within: float = 60.0) -> None:
        assert self._task is not None
        deadline, wanted, every = Deadline(within), set(states), list(ids)
        while not all(id_ in self.jobs and self.jobs[id_].state.value in wanted for id_ in every):
            if self._task.done():
                self._task.result()
            left = {id_: self.jobs[id_].state if id_ in self.jobs else None for id_ in every}
            assert not deadline.passed, f"not {wanted}: {left}"
            await asyncio.sleep(0.1)


def faults(
    reading: Reading, names: Mapping[str, str | tuple[str, ...]], *, scrapes: float = 1.0
) -> list[str]:
    """How a ledger's sums differ from what its exporter served, by more than so many scrapes of each GPU.

    `names` has the exporter's names of each engine job. Where several held a GPU, each has its share.
    """
    found = reading.sums()
    wrong: list[str] = []
    for engine_id, called in names.items():
        ours = found[engine_id]
        every = (called,) if isinstance(called, str) else called
        holds = [hold for name in every for hold in reading.exporter.truth(name).holds]
        parts = [hold.share / hold.held if hold.held else 1.0 for hold in holds]
        slack = scrapes * INTERVAL * len({(hold.node, hold.gpu) for hold in holds}) + 0.01
        if ours.measured > ours.held + 1e-6:
            wrong.append(f"{engine_id}: measured {ours.measured} of {ours.held} held")
        samples = sum(hold.samples * part for hold, part in zip(holds, parts, strict=True))
        engine = sum(hold.figures["engine"].sum * part for hold, part in zip(holds, parts, strict=True))
        # An exporter may name a job that is over until it is told: what is beyond its time is not the job's.
        for what, value, wanted in (
            ("measured", ours.measured, min(samples * INTERVAL, ours.held)),
            ("busy", ours.busy, min(engine * INTERVAL, ours.held)),
        ):
            if abs(value - wanted) > slack:
                wrong.append(
                    f"{engine_id} ({called}): {what} {value:.2f} of {ours.held} held,"
                    f" served {wanted:.2f} ± {slack} in samples {[hold.samples for hold in holds]}"
                )
    return wrong
