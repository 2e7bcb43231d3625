"""Jobs that share GPUs by shards or MPS on a real Slurm are reported as the parts of GPUs that they hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairway.model.fleet import SlurmConnection
from fairway.model.job import EngineId, SeenJob
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.imported import SITE, engine_of, imported_fleet

if TYPE_CHECKING:
    from fairway.model.fleet import Fleet
    from lab.instance import Instance

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

Held = tuple[str, int]
WITHIN = 60.0

JOBS: dict[tuple[str, ...], Held] = {
    ("-p", "small", "--gres=shard:3"): ("small/shared-4", 3),
    ("-p", "small", "--gres=shard:2", "-N2", "-w", "s01,s02"): ("small/shared-4", 4),
    ("-p", "visual", "--gres=mps:50"): ("visual/shared-100", 50),
    ("-p", "small", "--gres=gpu:1", "-w", "w01"): ("small", 1),
}
"""Options of sbatch, and what the job holds: 16 shards are of 4 GPUs, 200 of MPS are of 2."""


@pytest.mark.nightly("a cluster of its own; tests/unit/engines/slurm/jobs/test_shares.py has each rule")
@pytest.mark.parametrize("version", ["24.11", "26.05"])
async def test_shares_of_gpus_are_parts_in_queue_and_records(version: str) -> None:
    instance = up("slurm", f"shares-{version.replace('.', '')}", "--site", "shards", "--version", version)
    try:
        fleet = with_tools(await imported_fleet(instance), instance)
        ids = {EngineId(sbatch(instance, *options)): held for options, held in JOBS.items()}
        async with engine_of(fleet) as engine:
            held: dict[EngineId, Held] = {}
            mark, until = None, time.monotonic() + WITHIN
            while held != ids and time.monotonic() < until:
                batch = await engine.changes(mark, fleet)
                mark = batch.mark
                held |= {job.engine_id: held_by(job) for job in batch.jobs if job.attempts}
            assert held == ids
            instance.run("scancel", *ids)
            recorded: dict[EngineId, Held] = {}
            while recorded != ids and time.monotonic() < until + WITHIN:
                found = await engine.look_up(list(ids), fleet)
                recorded = {name: held_by(job) for name, job in found.items() if job.ended_at}
            assert recorded == ids
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)


def held_by(job: SeenJob) -> Held:
    """The supply and the devices of the job's last attempt."""
    return str(job.supply), job.attempts[-1].devices


def with_tools(fleet: Fleet, instance: Instance) -> Fleet:
    """Let Fairway call the lab's own squeue and sacct."""
    cluster = fleet.cluster(SITE)
    assert isinstance(cluster.connection, SlurmConnection)
    connection = replace(cluster.connection, tools=instance.facts()["tools"])
    return replace(fleet, clusters=(replace(cluster, connection=connection),))


def sbatch(instance: Instance, *options: str) -> str:
    words = ("--parsable", "--output=/dev/null", "--time=30", *options, "--wrap=sleep 600")
    return instance.run("sbatch", *words, user="alice").stdout.strip()
