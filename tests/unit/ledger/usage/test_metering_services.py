"""Replicas of services in usage: each for its own time, whatever the service becomes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from fairway.cost.calendar import Calendar
from fairway.ledger import Lease, Ledger, UsageFilter
from fairway.model.charge import Label, Span
from fairway.model.job import Attempt, Ending, EngineId, JobState, SeenJob
from fairway.model.names import NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from tests.metered import CLUSTER, read, seconds
from tests.unit.ledger.job_samples import Desk
from tests.unit.ledger.usage.test_metering import HOUR, NOON, db, meter

__all__ = ["db"]

MORNING = NOON - 6 * HOUR
GPU = PoolName("gpu")


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def pod(name: str, start: int, end: int | None = None, devices: int = 2) -> Attempt:
    ended = None if end is None else moment(end)
    return Attempt(
        moment(start), (NodeName("n1"),), devices, ended, None if end is None else Ending.DONE, replica=name
    )


def service(*pods: Attempt, name: str = "llm", **other: Any) -> SeenJob:
    runs = any(one.ending is None for one in pods)
    given: dict[str, Any] = {
        "user": UserName(""),
        "team": TeamName("ml"),
        "state": JobState.RUNNING if runs else JobState.WAITING,
        "submitted_at": moment(MORNING),
        "supply": Supply(GPU),
        "gpus": 2,
        "nodes": 20,
        "priority": PriorityName("normal"),
        "kind": "Deployment",
        "service": True,
    }
    return SeenJob(EngineId(f"serving/deployment/{name}/1a2b3c4d"), name, attempts=pods, **given | other)


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("meter", CLUSTER, "test", 60)
    assert taken is not None
    yield taken


def until(one: Attempt, now: int) -> int:
    return now if one.ended_at is None else seconds(one.ended_at)


async def by_service(ledger: Ledger, until: int) -> dict[str, int]:
    spans = {PoolName(pool): [Span(MORNING, NOON + HOUR)] for pool in ("gpu", "fast", "hpc-a100")}
    found = await ledger.usage.sums(spans, (Label.SERVICE,), UsageFilter(), until, local=Calendar(UTC))
    totals: dict[str, int] = {}
    for row in found:
        if row.labels[0]:
            totals[row.labels[0]] = totals.get(row.labels[0], 0) + row.device_seconds
    return totals


async def test_twenty_replicas_that_scale_up_and_down(
    ledger: Ledger, desk: Desk, lease: Lease, db: psycopg.Connection[Any]
) -> None:
    """Reports every few minutes, the meter at any time, some by another server; live sums always agree."""
    chance = random.Random(7)
    await meter(ledger, lease, MORNING)
    pods: list[Attempt] = []
    now, delivered = MORNING, 0
    while now < NOON:
        now += chance.randint(30, 900)
        for n, one in enumerate(pods):
            if one.ending is None and chance.random() < 0.2:
                pods[n] = replace(one, ended_at=moment(now), ending=Ending.PREEMPTED)
        live = sum(one.ending is None for one in pods)
        for _ in range(chance.randint(0, 20 - live)):
            pods.append(pod(f"llm-{len(pods)}", now - chance.randint(0, 20)))
        if chance.random() < 0.8:
            await desk.see(service(*pods[delivered:]))
            delivered = next((n for n, one in enumerate(pods) if one.ending is None), len(pods))
            if chance.random() < 0.3:
                await desk.see(service(*pods[delivered:]))  # twice
            truth = sum(2 * (until(one, now) - seconds(one.started_at)) for one in pods)
            assert await by_service(ledger, now) == {"llm": truth}
        if chance.random() < 0.5:
            mark = max(MORNING, (now - 60) // HOUR * HOUR)
            await meter(ledger, lease, mark, most=chance.choice([1, 3, 1000]))
        if chance.random() < 0.1:
            later = await ledger.leases.take("meter", CLUSTER, f"server-{now}", 60)
            lease = later or lease
    await desk.see(service(*pods[delivered:]))
    while (await meter(ledger, lease, NOON)).taken:
        pass
    assert read(db, NOON).faults(Calendar(UTC)) == []
    assert len(pods) > 40


async def test_what_ended_stays_with_its_team_and_what_runs_in_its_pool(
    ledger: Ledger, desk: Desk, lease: Lease, db: psycopg.Connection[Any]
) -> None:
    async def used() -> dict[tuple[str, str], int]:
        while (await meter(ledger, lease, NOON)).taken:
            pass
        found = db.execute(
            "SELECT team, pool, sum(device_seconds)::int FROM usage_day JOIN job_class ON id = class"
            " GROUP BY 1, 2 HAVING sum(device_seconds) <> 0"
        )
        return {(team, pool): total for team, pool, total in found}

    first, second = pod("a", MORNING, MORNING + 100), pod("b", MORNING)
    await desk.see(service(first, second))
    whole = 2 * (NOON - MORNING)
    assert await used() == {("ml", "gpu"): 200 + whole}
    await desk.see(service(second, team=TeamName("web")))  # its namespace went to another team
    assert await used() == {("ml", "gpu"): 200, ("web", "gpu"): whole}
    # A rollout into another pool: the pod that runs stays where it is.
    moved = service(second, pod("c", NOON - 50), team=TeamName("web"), supply=Supply(PoolName("fast")))
    await desk.see(moved)
    assert await used() == {("ml", "gpu"): 200, ("web", "gpu"): whole, ("web", "fast"): 100}
    # Without a pod, nothing tells the pool; the last ones end.
    gone = service(
        *(replace(one, ended_at=moment(NOON), ending=Ending.DONE) for one in moved.attempts),
        state=JobState.HELD,
        team=TeamName("web"),
        supply=None,
        nodes=0,
    )
    await desk.see(gone)
    assert await used() == {("ml", "gpu"): 200, ("web", "gpu"): whole, ("web", "fast"): 100}
    assert await by_service(ledger, NOON) == {"llm": 200 + whole + 100}
    await desk.see(replace(gone, attempts=(), team=TeamName("other")))
    assert await used() == {("ml", "gpu"): 200, ("web", "gpu"): whole, ("web", "fast"): 100}


async def test_usage_by_service_and_by_kind(ledger: Ledger, desk: Desk, lease: Lease) -> None:
    await desk.see(
        service(pod("a", MORNING, MORNING + 100), pod("b", MORNING, MORNING + 50)),
        service(pod("c", MORNING, MORNING + 10), name="chat", kind="RayService"),
        service(pod("", MORNING, MORNING + 7), name="train", service=False, kind=""),
    )
    await meter(ledger, lease, NOON)
    assert await by_service(ledger, NOON) == {"llm": 300, "chat": 20}
    spans = {GPU: [Span(MORNING, NOON)]}
    kinds = await ledger.usage.sums(spans, (Label.KIND,), UsageFilter(), NOON, local=Calendar(UTC))
    assert {row.labels[0]: row.device_seconds for row in kinds} == {
        "Deployment": 300,
        "RayService": 20,
        "": 14,
    }
