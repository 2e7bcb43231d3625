"""An event of a GPU is one row, knows its job, and a job that hardware ended comes back for free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from fairway.ledger import Lease, Ledger
from fairway.ledger.telemetry.gpu_events import GpuEvent
from fairway.model.gpu_health import EventClass, GpuSighting
from fairway.model.job import Attempt, Ending, EngineId, JobId, JobState, NodeGpus
from fairway.model.names import NodeName
from fairway.policy.retry import MAX_SPARED
from tests.unit.ledger.job_samples import Desk, at, new_job, retries, run, seen

CLUSTER = "hpc"


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


@pytest.fixture
async def health(ledger: Ledger) -> Lease:
    taken = await ledger.leases.take("health", CLUSTER, "test", 60)
    assert taken is not None
    return taken


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def sighting(begins: float, code: str = "xid-79", gpu: str = "3", **more: Any) -> GpuSighting:
    given: dict[str, Any] = {"uuid": "GPU-3", "onset_known": True, "seen_at": at(begins).timestamp()}
    return GpuSighting("n1", gpu, code, at(begins).timestamp(), **given | more)


async def record(
    ledger: Ledger, health: Lease, *sightings: GpuSighting, settled: datetime | None = None
) -> tuple[GpuEvent, ...]:
    """All is known unless `settled` says up to when."""
    now = datetime.now(UTC)
    async with ledger.writing(health) as tx:
        return await tx.gpu_events.record(
            sightings, read_at=now.timestamp(), settled_to=(settled or now).timestamp()
        )


def placed(engine_id: str, attempt: Attempt, *gpus: int) -> Attempt:
    """An attempt whose engine tells what exporters call it, and which GPUs it has."""
    return replace(attempt, gpus=(NodeGpus(NodeName("n1"), (engine_id,), gpus),))


async def failed(desk: Desk, count: int = 1, *gpus: int) -> tuple[JobId, str]:
    """A running job with retries: its id and engine name."""
    (id_,) = await desk.submit(new_job(**retries(count)))
    (name,) = await desk.send(id_)
    engine_id = f"e{id_}-1"
    await desk.see(seen(engine_id, name, JobState.RUNNING, placed(engine_id, run(5), *gpus)))
    return id_, name


FAILS = run(5, 30, Ending.FAILED, exit_code=1)


async def test_what_lasts_is_one_event(ledger: Ledger, health: Lease) -> None:
    (event,) = await record(ledger, health, sighting(0), sighting(0))
    assert (event.class_, event.job, event.uuid) == (EventClass.HARDWARE, None, "GPU-3")
    later = sighting(400, seen_at=at(400).timestamp())
    assert await record(ledger, health, later) == ()
    (stored,) = await ledger.gpu_events.listed(at(0), cluster=CLUSTER)
    assert (stored.at, stored.last_seen) == (at(0), at(400))
    assert len(await record(ledger, health, sighting(1100))) == 1
    assert len(await ledger.gpu_events.report(CLUSTER, [sighting(1101), sighting(1101, "xid-48")])) == 1


async def test_an_event_knows_the_job_that_the_exporter_names(
    ledger: Ledger, desk: Desk, health: Lease
) -> None:
    id_, _ = await failed(desk)
    (event,) = await record(ledger, health, sighting(20, holders=frozenset({f"e{id_}-1"})))
    assert (event.job, event.attempt) == (id_, 1)
    assert await ledger.gpu_events.of_job(id_) == (event,)


async def test_an_event_knows_the_job_that_the_engine_put_there(
    ledger: Ledger, desk: Desk, health: Lease
) -> None:
    id_, _ = await failed(desk, 1, 2, 3)
    three, four = await record(ledger, health, sighting(20), sighting(20, gpu="4", uuid="GPU-4"))
    assert (three.job, four.job) == (id_, None)
    assert await ledger.gpu_events.of_job(id_) == (three,)


async def test_what_was_wrong_before_is_nobodys(ledger: Ledger, desk: Desk, health: Lease) -> None:
    id_, _ = await failed(desk)
    named = sighting(20, holders=frozenset({f"e{id_}-1"}), onset_known=False)
    (event,) = await record(ledger, health, named)
    assert event.job is None


async def test_what_an_alert_told_first_is_completed_by_the_exporter(
    ledger: Ledger, desk: Desk, health: Lease
) -> None:
    id_, _ = await failed(desk)
    (alert,) = await ledger.gpu_events.report(CLUSTER, [sighting(24, onset_known=False, uuid="")])
    assert (alert.job, alert.onset_known) == (None, False)
    now = at(30).timestamp()
    assert await ledger.gpu_events.known(CLUSTER, now) == frozenset()
    (event,) = await record(ledger, health, sighting(20, holders=frozenset({f"e{id_}-1"})))
    assert (event.job, event.at, event.uuid, event.onset_known) == (id_, at(20), "GPU-3", True)
    assert await ledger.gpu_events.known(CLUSTER, now) == frozenset({("n1", "3", "xid-79")})
    assert await ledger.gpu_events.report(CLUSTER, [sighting(25, onset_known=False)]) == ()
    assert await ledger.gpu_events.listed(at(0)) == (event,)


async def test_hardware_uses_up_no_retry_and_the_node_is_avoided(
    ledger: Ledger, desk: Desk, health: Lease, db: psycopg.Connection[Any]
) -> None:
    id_, name = await failed(desk)
    await record(ledger, health, sighting(26, holders=frozenset({f"e{id_}-1"})))
    await desk.see(seen(f"e{id_}-1", name, JobState.FAILED, FAILS))
    row = await desk.row(id_)
    assert row.state is JobState.QUEUED
    assert "GPU 3 of n1 fell off the bus (XID 79) 4 s before it ended; uses up no retry" in row.reason
    assert db.execute("SELECT failures FROM job").fetchone() == (0,)
    (order,) = await ledger.dispatch.pending_submits(CLUSTER, 10)
    assert order.avoid == ()  # the pool has no other node: late is better than never
    for node in ("n1", "n2"):
        db.execute(
            "INSERT INTO node (cluster, name, health, since) VALUES ('hpc', %s, 'ready', now())", (node,)
        )
        db.execute(
            "INSERT INTO device (cluster, node, kind, pool, total, in_use, unhealthy)"
            " VALUES ('hpc', %s, 'gpu', 'hpc-a100', 4, 0, 0)",
            (node,),
        )
    (order,) = await ledger.dispatch.pending_submits(CLUSTER, 10)
    assert order.order().avoid == (NodeName("n1"),)


async def test_a_program_that_fails_by_itself_uses_up_a_retry(
    ledger: Ledger, desk: Desk, health: Lease, db: psycopg.Connection[Any]
) -> None:
    id_, name = await failed(desk)
    await record(ledger, health, sighting(26, "xid-31", holders=frozenset({f"e{id_}-1"})))
    await desk.see(seen(f"e{id_}-1", name, JobState.FAILED, FAILS))
    assert db.execute("SELECT failures, state FROM job").fetchone() == (1, "queued")


async def test_the_decision_waits_until_the_event_can_be_known(
    ledger: Ledger, desk: Desk, health: Lease, db: psycopg.Connection[Any]
) -> None:
    """The engine tells of the end before Prometheus has the event, and no retry is left."""
    id_, name = await failed(desk, 1)
    db.execute("UPDATE job SET failures = 1")
    now = datetime.now(UTC).replace(microsecond=0)
    before = now - timedelta(seconds=20)
    ends = seen(f"e{id_}-1", name, JobState.FAILED, replace(FAILS, ended_at=now))
    await record(ledger, health, settled=before)
    assert (await desk.see(ends)).deferred == (EngineId(f"e{id_}-1"),)
    assert await desk.state(id_) is JobState.RUNNING
    broken = replace(sighting(0, holders=frozenset({f"e{id_}-1"})), at=now.timestamp() - 1)
    await record(ledger, health, broken, settled=before)
    assert (await desk.see(ends)).deferred == ()
    assert await desk.state(id_) is JobState.QUEUED


async def test_without_an_event_it_ends_once_all_is_known(
    ledger: Ledger, desk: Desk, health: Lease, db: psycopg.Connection[Any]
) -> None:
    id_, name = await failed(desk, 1)
    db.execute("UPDATE job SET failures = 1")
    now = datetime.now(UTC).replace(microsecond=0)
    ends = seen(f"e{id_}-1", name, JobState.FAILED, replace(FAILS, ended_at=now))
    await record(ledger, health, settled=now - timedelta(seconds=20))
    assert (await desk.see(ends)).ended == ()
    await record(ledger, health, settled=now)
    assert (await desk.see(ends)).ended == (id_,)
    assert await desk.state(id_) is JobState.FAILED


async def test_hardware_excuses_a_few_failures_only(
    ledger: Ledger, desk: Desk, health: Lease, db: psycopg.Connection[Any]
) -> None:
    id_, name = await failed(desk, 1)
    db.execute("UPDATE job SET failures = 1")
    for number in range(1, MAX_SPARED + 2):
        engine_id = f"e{id_}-{number}"
        begins = -5 + 10 * number
        broken = sighting(begins + 2, gpu=str(number), holders=frozenset({engine_id}))
        await desk.see(seen(engine_id, name, JobState.RUNNING, placed(engine_id, run(begins))))
        await record(ledger, health, broken)
        fails = run(begins, begins + 5, Ending.FAILED, exit_code=1)
        await desk.see(seen(engine_id, name, JobState.FAILED, fails))
        if number <= MAX_SPARED:
            assert await desk.state(id_) is JobState.QUEUED
            (name,) = await desk.send(id_)
    assert await desk.state(id_) is JobState.FAILED


async def test_the_gpu_that_fails_every_week(ledger: Ledger, health: Lease) -> None:
    week = timedelta(days=7).total_seconds()
    often = [sighting(-week * n) for n in reversed(range(4))]
    for one in often:
        await record(ledger, health, one)
    many = [sighting(-700 * n, gpu="5", uuid="GPU-5") for n in reversed(range(6))]
    for one in many:
        await record(ledger, health, one)
    await record(ledger, health, sighting(0, "xid-13", gpu="6", uuid="GPU-6"))
    found = await ledger.gpu_events.failing(at(-30 * 86_400))
    assert [(gpu.uuid, gpu.events) for gpu in found] == [("GPU-3", 4), ("GPU-5", 6)]
    assert found[0].weeks == 4
    assert found[1].weeks <= 2
