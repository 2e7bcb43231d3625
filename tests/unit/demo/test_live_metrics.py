"""The demo's live metrics are read like those of any Prometheus, and fit who holds what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairway.demo.jobs import ABANDONED
from fairway.demo.live_metrics import LiveMetrics, listen, serve_metrics
from fairway.engines.virtual import VirtualEngine
from fairway.model.fleet import Telemetry
from fairway.model.gpu_use import Holding, MetricCode, Window
from fairway.model.job import JobId
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName
from fairway.simulate.cluster import JobRequest, SimState, terms_of
from fairway.telemetry.health import HealthReader
from fairway.telemetry.metrics import BY_CODE
from fairway.telemetry.prometheus import Prometheus
from fairway.telemetry.queries import means
from fairway.telemetry.reader import NodeNames, WindowReader
from tests.unit.demo.test_history import FLEET

HPC = ClusterName("hpc")
START = 1_800_000_000


class Clusters:
    """The demo's clusters with some jobs, and metrics by a clock of their own."""

    def __init__(self) -> None:
        self.now = float(START)
        self.engines = {c.name: VirtualEngine(c, FLEET.pools_of(c.name), clock=None) for c in FLEET.clusters}
        self.metrics = LiveMetrics(FLEET, self.engines, lambda: self.now)
        simulator = self.engines[HPC].simulator
        simulator.apply(terms_of(FLEET))
        nlp = TeamName("nlp")
        a100 = PoolName("hpc-a100")
        self.jobs = {
            name: simulator.submit(request)
            for name, request in {
                "train": JobRequest(UserName("alice"), a100, 4, team=nlp, name="train-1"),
                "gang": JobRequest(UserName("alice"), a100, 8, 2, team=nlp, name="pretrain-2"),
                "forgotten": JobRequest(UserName("alice"), a100, team=nlp, name=ABANDONED),
                "slice": JobRequest(
                    UserName("farah"),
                    PoolName("hpc-mig"),
                    2,
                    slice=SliceName("1g.10gb"),
                    team=TeamName("vision"),
                    name="eval-3",
                ),
            }.items()
        }
        simulator.advance(simulator.now + 1)
        assert all(simulator.job(n).state is SimState.RUNNING for n in self.jobs.values())

    def holdings(self) -> list[Holding]:
        engine = self.engines[HPC]
        return [
            Holding(
                JobId(number),
                engine.simulator.job(number).devices,
                START,
                START + 300,
                frozenset({engine.engine_id(number)}),
            )
            for number in self.jobs.values()
        ]


@pytest.fixture
async def served() -> AsyncIterator[tuple[Clusters, Prometheus]]:
    clusters = Clusters()
    for _ in range(60):
        clusters.metrics.sample()
        clusters.now += 5
    listener = listen()
    serving = asyncio.create_task(serve_metrics(clusters.metrics, listener))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    prometheus = Prometheus(Telemetry(url, 'cluster="hpc"'))
    yield clusters, prometheus
    await prometheus.close()
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_window_of_it_is_what_jobs_did(served: tuple[Clusters, Prometheus]) -> None:
    clusters, prometheus = served
    nodes = NodeNames(frozenset(clusters.engines[HPC].simulator.nodes()))
    reader = WindowReader(prometheus, 'cluster="hpc"', nodes)
    use = await reader.read(Window(START, START + 300), clusters.holdings())
    assert use.interval == pytest.approx(5)
    assert len(use.readings) == 96 + 32 + 2 * 4 * 4, "every device, held or not"
    by_job = {name: use.jobs[JobId(number)] for name, number in clusters.jobs.items()}
    assert {name: len(devices) for name, devices in by_job.items()} == {
        "train": 4,
        "gang": 16,
        "forgotten": 1,
        "slice": 2,
    }
    for name, devices in by_job.items():
        for device, one in devices.items():
            assert one.measured == pytest.approx(300)
            assert bool(device.instance) == (name == "slice")
            ratio = one.ratio(MetricCode.ENGINE)
            assert ratio is not None
            assert (ratio == 0) == (name == "forgotten")
            assert (one.peak_memory_mib or 0) > 1000
    held = [device for devices in by_job.values() for device in devices]
    assert len(held) == len(set(held)), "no device is held twice"


async def test_what_it_does_not_know_is_empty(served: tuple[Clusters, Prometheus]) -> None:
    clusters, prometheus = served
    assert await prometheus.vector("up", START) == ()
    nodes = NodeNames(frozenset(clusters.engines[HPC].simulator.nodes()))
    assert await HealthReader(prometheus, 'cluster="hpc"', nodes).read(START + 300, ()) == ()


def test_devices_are_given_back() -> None:
    clusters = Clusters()
    engine = clusters.engines[HPC]
    clusters.metrics.sample()
    engine.simulator.cancel(clusters.jobs["gang"])
    engine.simulator.advance(engine.simulator.now + 1)
    clusters.now += 5
    clusters.metrics.sample()
    end = clusters.now
    gone = engine.engine_id(clusters.jobs["gang"])
    query = means(BY_CODE[MetricCode.MEMORY].names, 'cluster="hpc"', Window(int(end) - 4, int(end)))
    rows = clusters.metrics.answer(query, end)["result"]
    assert isinstance(rows, list)
    assert len(rows) == 160
    assert all(row["metric"].get("hpc_job") != gone for row in rows)
