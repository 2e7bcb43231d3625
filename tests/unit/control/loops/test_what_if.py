"""Studies that are queued run in a process of their own, and their results are stored."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from fairway.control.loops.what_if import RunStudies
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import FLEET as WHOLE
from fairway.ledger import Lease, Ledger
from fairway.ledger import what_if as store
from fairway.ledger.what_if import MAX_QUEUED
from fairway.model.job import JobState
from fairway.model.study import StudyState
from fairway.services.fleets import Fleets
from tests.unit.ledger.job_samples import Desk, run, seen

FILE = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: lab
currency: USD
clusters: { hpc: { engine: virtual } }
pools:
  hpc-a100:
    { cluster: hpc, gpu: A100-80GB, capacity: owned, price: 2, virtual: { nodes: 1, gpus_per_node: 4 } }
teams:
  research: { guarantee: { hpc-a100: 4 }, members: [ann] }
"""


@pytest.fixture
async def lease(ledger: Ledger) -> Lease:
    await ledger.revisions.add(FILE, fleet_digest(FILE), "test")
    taken = await ledger.leases.take("what-if", WHOLE, "a", 60)
    assert taken is not None
    return taken


@pytest.fixture
def studies(ledger: Ledger) -> RunStudies:
    return RunStudies(ledger, Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet.yaml")))


async def submit_jobs(ledger: Ledger) -> None:
    """Three jobs of two GPUs: two run at once, and one waits for them."""
    desk = await Desk.of(ledger)
    await desk.see(
        *(seen(str(n), f"job-{n}", JobState.DONE, run(60 * (n // 2), 60 * (n // 2) + 60)) for n in range(3))
    )


async def test_a_study_is_run_and_its_result_stored(
    ledger: Ledger, lease: Lease, studies: RunStudies
) -> None:
    await submit_jobs(ledger)
    number = await ledger.studies.add(FILE, "pools.hpc-a100.nodes=1,2", 1, 2, "ann")
    assert number is not None

    await studies(lease)

    found = await ledger.studies.one(number)
    assert found is not None
    assert (found.state, found.message, found.progress) == (StudyState.DONE, "", 1.0)
    result = json.loads(found.result or "")
    assert [one["name"] for one in result["scenarios"]] == [
        "really happened",
        "current file",
        "pools.hpc-a100.nodes=1",
        "pools.hpc-a100.nodes=2",
    ]
    assert (result["jobs"], result["seeds"]) == (3, 2)
    assert result["scenarios"][3]["waits"]["mean_wait"]["mean"] == 0.0
    await studies(lease)
    assert multiprocessing.active_children() == []


async def test_a_study_without_jobs_fails_with_a_hint(
    ledger: Ledger, lease: Lease, studies: RunStudies
) -> None:
    number = await ledger.studies.add(FILE, "", 1, 1, "ann")
    await studies(lease)
    found = await ledger.studies.one(number or 0)
    assert found is not None
    assert (found.state, found.code, found.hint) == (StudyState.FAILED, "NothingToReplay", "choose more days")


async def test_a_study_that_takes_too_long_is_ended(ledger: Ledger, lease: Lease) -> None:
    await submit_jobs(ledger)
    number = await ledger.studies.add(FILE, "", 1, 1, "ann")
    fleets = Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet.yaml"))
    await RunStudies(ledger, fleets, study_seconds=0)(lease)
    found = await ledger.studies.one(number or 0)
    assert found is not None and found.code == "StudyTooLong"


async def test_a_study_whose_server_ended_is_begun_again_once(
    ledger: Ledger, lease: Lease, studies: RunStudies
) -> None:
    await submit_jobs(ledger)
    number = await ledger.studies.add(FILE, "", 1, 1, "ann")
    for _ in range(2):  # servers that ended while they ran it
        async with ledger.writing(lease) as tx:
            begun = await tx.studies.begin()
            assert begun is not None and begun.id == number
    await studies(lease)
    found = await ledger.studies.one(number or 0)
    assert found is not None and (found.state, found.code) == (StudyState.FAILED, "SimulationEnded")


async def test_the_queue_is_bounded_and_old_studies_are_deleted(
    ledger: Ledger, lease: Lease, studies: RunStudies, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [await ledger.studies.add(FILE, "", 1, 1, "ann") for _ in range(MAX_QUEUED + 1)]
    assert numbers[-1] is None
    monkeypatch.setattr(store, "KEPT", 4)
    for _ in range(MAX_QUEUED):
        await studies(lease)
    assert [study.id for study in await ledger.studies.newest(20)] == numbers[-2:-6:-1]
