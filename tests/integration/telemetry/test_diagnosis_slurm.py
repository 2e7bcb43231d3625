"""Jobs of a real Slurm, and hours of GPU use in each shape: `why` has the diagnosis of each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from fairway.engines.slurm import SlurmEngine
from fairway.ledger import Ledger
from fairway.model.fleet import Fleet
from lab import Instance, obtain
from lab.gpus.dcgm import Options
from tests.integration.jobs.slurm_jobs import fleet_of, sbatch
from tests.integration.telemetry.shapes import CODES, GPUS, diagnosed, holdings, prometheus, serve, started

__all__ = ["prometheus"]
pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.timeout(300)]

VERSIONS = [
    pytest.param("24.11", id="slurm-24"),
    pytest.param("26.05", id="slurm-26", marks=pytest.mark.nightly("CI runs it on the other Slurm")),
]


@pytest.fixture(params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Instance]:
    name = f"test-{os.getpid()}-why-{request.param.replace('.', '')}"
    instance = obtain("slurm", name, request.param, {})
    try:
        instance.up()
        yield instance
    finally:
        instance.wipe()


@pytest.fixture
def fleet(slurm: Instance) -> Fleet:
    return fleet_of(slurm)


@pytest.fixture
async def engine(fleet: Fleet) -> AsyncIterator[SlurmEngine]:
    made = SlurmEngine(fleet.clusters[0], fleet.pools)
    yield made
    await made.close()


async def test_each_shape_has_its_diagnosis(
    slurm: Instance,
    engine: SlurmEngine,
    fleet: Fleet,
    prometheus: Instance,
    ledger: Ledger,
    database_url: str,
) -> None:
    sent = {
        sbatch(
            slurm,
            "alice",
            "--partition=gpu",
            f"--gres=gpu:a100:{GPUS.get(shape, 1)}",
            # Waits for storage are measured by node.
            "--nodelist=gpu004" if shape == "io" else "--exclude=gpu004",
            "--time=60",
            f"--job-name={shape}",
            "--wrap=sleep 3600",
        ): shape
        for shape in CODES
    }
    shapes, since = await started(ledger, engine, fleet, sent)
    jobs = list(shapes)
    serve(prometheus, shapes, holdings(database_url, jobs), since, Options(interval=60.0))
    said = await diagnosed(prometheus, ledger, database_url, fleet, jobs, since)
    codes = {shapes[job]: why.diagnosis.code if why.diagnosis else None for job, why in said.items()}
    assert codes == CODES
