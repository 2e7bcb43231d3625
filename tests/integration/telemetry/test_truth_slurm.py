"""Jobs of real Slurm, their GPUs named by its Prolog: each gets what the exporter served while it ran.

Two exporters show the same jobs: one as DCGM 4.5 does and with `hpc_job`, one as DCGM 4.6 does and without.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fairway.engines.slurm import SlurmEngine
from fairway.ledger import Ledger
from fairway.model.fleet import Telemetry
from lab import Instance, obtain
from lab.gpus import Exporter
from lab.slurm import configure
from tests.integration.jobs.slurm_jobs import fleet_of, in_thread, sbatch
from tests.integration.telemetry.telemetry_site import INTERVAL, Following, Reading, faults, scraped

pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.timeout(400)]

SCRIPTS = Path(__file__).parents[3] / "deploy/slurm"
FOLDER = "srv/gpu-jobs"
# One slurmd a node on real clusters; here several share a file system.
EACH_NODE = "#!/bin/sh\nGPU_JOBS=/{folder}/$SLURMD_NODENAME exec /etc/slurm/{script}\n"
VERSIONS = [
    pytest.param("24.11", id="slurm-24"),
    pytest.param("26.05", id="slurm-26", marks=pytest.mark.nightly("CI runs it on the other Slurm")),
]


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Instance]:
    name = f"test-{os.getpid()}-truth-{request.param.replace('.', '')}"
    instance = obtain("slurm", name, request.param, {})
    try:
        instance.up()
        root = Path(instance.env()["SLURM_ROOT"])
        (root / FOLDER).mkdir(mode=0o755)
        for script in ("gpu-jobs-prolog.sh", "gpu-jobs-epilog.sh"):
            (root / "etc/slurm" / script).write_text((SCRIPTS / script).read_text())
            (root / "etc/slurm" / f"each-{script}").write_text(EACH_NODE.format(folder=FOLDER, script=script))
            for one in (script, f"each-{script}"):
                (root / "etc/slurm" / one).chmod(0o755)
        configure(
            instance,
            [
                "Prolog=/etc/slurm/each-gpu-jobs-prolog.sh",
                "Epilog=/etc/slurm/each-gpu-jobs-epilog.sh",
                "PrologFlags=Alloc",
            ],
        )
        yield instance
    finally:
        instance.wipe()


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Instance, Instance]]:
    made = [
        obtain("gpus", f"test-{os.getpid()}-{name}", None, {"interval": INTERVAL, **options})
        for name, options in (
            ("named", {}),
            ("plain", {"new_names": 1, "lower_hostname": 1, "no_hpc_job": 1}),
        )
    ]
    try:
        for instance in made:
            instance.up()
        yield made[0], made[1]
    finally:
        for instance in made:
            instance.wipe()


class Nodes:
    """The exporters of all nodes: each GPU is busy for the jobs that its file names, as they are written."""

    def __init__(self, slurm: Instance, exporters: list[Exporter]) -> None:
        self._folder = Path(slurm.env()["SLURM_ROOT"]) / FOLDER
        self._exporters = exporters
        self._held: set[tuple[str, str, str]] = set()
        self.seen: set[tuple[str, str, str]] = set()
        """Job, node and GPU that were in a file."""
        self._shapes = ("good", "small", "io", "loader", "comm")

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(0.05)

    def _look(self) -> None:
        now: set[tuple[str, str, str]] = set()
        for file in self._folder.glob("*/[0-9]*"):
            node, gpu = file.parent.name, file.name
            if node.startswith("mig"):  # Slurm's own numbers: which instance that is, only the site knows
                gpu = f"0.{int(gpu) + 1}"
            with suppress(FileNotFoundError):
                now |= {(job, node, gpu) for job in file.read_text().split()}
        self.seen |= now
        ended = {job for job, *_ in self._held} - {job for job, *_ in now}
        begun = [
            {"job": job, "node": node, "gpus": [gpu], "shape": self._shapes[int(job) % 5]}
            for job, node, gpu in sorted(now - self._held)
        ]
        for exporter in self._exporters:
            for job in ended:
                exporter.end(job)
            if begun:
                exporter.hold_all(begun)
        self._held = now


@pytest.fixture
async def nodes(slurm: Instance, both: tuple[Instance, Instance]) -> AsyncIterator[Nodes]:
    exporters = [Exporter(one.env()["EXPORTER_URL"]) for one in both]
    for exporter in exporters:
        exporter.forget()
    made = Nodes(slurm, exporters)
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), task.exception()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def raw_ids(slurm: Instance) -> dict[str, str]:
    """Slurm's own number of each job and task, by its own tool."""
    said = slurm.run("squeue", "-h", "-r", "-t", "all", "-O", "jobarrayid:30,jobid:30").stdout
    return dict(line.split() for line in said.splitlines())


async def test_every_job_gets_what_its_gpus_did(
    slurm: Instance,
    both: tuple[Instance, Instance],
    nodes: Nodes,
    ledger: Ledger,
    database_url: str,
    make_database: Callable[[str | None], str],
    migrated_url: str,
) -> None:
    fleet = fleet_of(slurm)
    measured = replace(fleet.clusters[0], telemetry=Telemetry(both[0].env()["PROMETHEUS_URL"]))
    engine = SlurmEngine(measured, fleet.pools)
    second_url = make_database(migrated_url)
    second = await Ledger.connect(second_url)
    readings = [
        await Reading.of(both[0], ledger, database_url, fleet),
        await Reading.of(both[1], second, second_url, fleet),
    ]
    try:
        async with Following(engine, fleet, readings) as following:
            for reading in readings:
                await scraped(reading.gpus)
                await reading.step(reading.telemetry)  # the mark: what begins now is read as a whole

            def submit(*words: str, user: str = "alice") -> str:
                return sbatch(slurm, user, *words)

            array = await asyncio.to_thread(submit, "--array=0-2", "--gres=gpu:a100:1", "--wrap=sleep 14")
            gang = await asyncio.to_thread(submit, "-N2", "--gres=gpu:a100:2", "--wrap=sleep 17")
            back = await asyncio.to_thread(submit, "--requeue", "--gres=gpu:a100:2", "--wrap=sleep 9")
            whole = await asyncio.to_thread(submit, "--gres=gpu:a100:8", "--wrap=sleep 6", user="bob")
            slice_ = await asyncio.to_thread(submit, "-pmig", "--gres=gpu:1g.10gb:1", "--wrap=sleep 15")
            tasks = [f"{array}_{task}" for task in range(3)]
            ids = [*tasks, gang, back, whole, slice_]
            await following.until(ids, ["running"])
            after = await asyncio.to_thread(submit, "--gres=gpu:a100:8", "--wrap=sleep 5", user="bob")
            await asyncio.sleep(4)
            await in_thread(slurm, "scontrol", "requeue", back)
            names = await asyncio.to_thread(raw_ids, slurm)
            await following.until([*ids, after], ["done"], within=90)
            ended = time.time()
            for reading in readings:
                await reading.read_to(ended, within=60)
    finally:
        await engine.close()
        await second.close()
    named = {id_: names[id_] for id_ in [*ids, after]}
    assert named[tasks[0]] != tasks[0]
    assert len({job for job, *_ in nodes.seen} & set(named.values())) == len(named)
    assert len([1 for job, *_ in nodes.seen if job == named[gang]]) == 4
    assert faults(readings[0], named) == []
    located = {id_: name for id_, name in named.items() if id_ != slice_}
    assert faults(readings[1], located) == []
    by_name, by_index = (reading.sums() for reading in readings)
    assert by_index[slice_].measured == 0  # nothing says whose it is: not measured, not idle
    assert len(followed_attempts := following.jobs[back].attempts) == 2, followed_attempts
    for id_, name in located.items():
        assert by_name[id_].devices == by_index[id_].devices
        gpus = len({(node, gpu) for job, node, gpu in nodes.seen if job == name})
        # An exporter names a job from the first scrape after its start on: of each attempt, once a GPU.
        late = INTERVAL * gpus * len(following.jobs[id_].attempts)
        assert abs(by_name[id_].measured - by_index[id_].measured) <= late + 0.01
    logging.getLogger(__name__).info("by name %s; by index %s", by_name, by_index)
