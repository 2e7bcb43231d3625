"""Replicas of services: each counted once, for exactly the time that its pod was there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.ledger import JobRow, Ledger
from fairway.ledger.jobs.replicas import merge_replicas
from fairway.ledger.jobs.store import HELD_EXACTLY
from fairway.ledger.records.jobs import JobFilter, StoredAttempt
from fairway.model.diagnosis import DEFAULT_DIAGNOSIS
from fairway.model.job import Attempt, Ending, EngineId, JobState, SeenJob
from fairway.model.names import NodeName, PoolName, TeamName, UserName
from fairway.model.team import Supply
from tests.tier import examples
from tests.unit.ledger.job_samples import Desk, at, run

RUNNING, WAITING, HELD, CANCELLED = JobState.RUNNING, JobState.WAITING, JobState.HELD, JobState.CANCELLED


def pod(name: str, start: float, end: float | None = None, ending: Ending | None = None) -> Attempt:
    return run(start, end, ending, replica=name)


def service(state: JobState, *pods: Attempt, nodes: int = 2, **more: Any) -> SeenJob:
    given: dict[str, Any] = {
        "user": UserName(""),
        "team": TeamName("research"),
        "submitted_at": at(0),
        "supply": Supply(PoolName("hpc-a100")),
        "gpus": 2,
        "kind": "Deployment",
        "service": True,
    }
    engine_id = EngineId("serving/deployment/llm/1a2b3c4d")
    return SeenJob(engine_id, "llm", state=state, attempts=pods, nodes=nodes, **given | more)


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


async def only(desk: Desk) -> JobRow:
    (row,) = await desk.ledger.jobs.page(JobFilter())
    return row


async def replicas(desk: Desk) -> dict[int, Attempt]:
    detail = await desk.detail((await only(desk)).id)
    return {one.number: one.attempt for one in detail.attempts}


async def test_a_service_is_one_job_whatever_its_replicas_do(desk: Desk) -> None:
    await desk.see(service(WAITING, reason="no quota", reason_code="NotEnoughFree"))
    row = await only(desk)
    assert (row.kind, row.service, row.state, row.replicas, row.devices) == (
        "Deployment",
        True,
        WAITING,
        0,
        4,
    )
    assert (row.started_at, row.reason) == (None, "no quota")
    await desk.see(service(RUNNING, pod("a", 10)))
    await desk.see(service(RUNNING, pod("b", 20), pod("a", 10)))  # in any order
    row = await only(desk)
    assert (row.state, row.replicas, row.nodes, row.devices, row.attempts) == (RUNNING, 2, 2, 4, 2)
    assert row.started_at == at(10)
    await desk.see(service(RUNNING, pod("a", 10, 30, Ending.PREEMPTED), pod("b", 20), nodes=1))
    row = await only(desk)
    assert (row.replicas, row.nodes, row.devices) == (1, 1, 2)
    await desk.see(service(RUNNING, pod("b", 20), pod("c", 40)))  # what ended was delivered
    assert await replicas(desk) == {
        1: pod("a", 10, 30, Ending.PREEMPTED),
        2: pod("b", 20),
        3: pod("c", 40),
    }
    await desk.see(service(HELD, pod("b", 20, 50), pod("c", 40, 50), nodes=0, supply=None))
    row = await only(desk)
    assert (row.state, row.replicas, row.devices, row.pool) == (HELD, 0, 0, "hpc-a100")
    await desk.see(service(CANCELLED, ended_at=at(60), nodes=0, supply=None))
    row = await only(desk)
    assert (row.state, row.replicas, row.attempts, row.started_at) == (CANCELLED, 0, 3, at(10))


async def test_a_service_is_found_by_its_kind(desk: Desk) -> None:
    await desk.see(service(RUNNING, pod("a", 10)))
    jobs = desk.ledger.jobs
    for which in (JobFilter(kind="deployment"), JobFilter(service=True), JobFilter(kind="Deployment")):
        assert len(await jobs.page(which)) == 1
    for which in (JobFilter(kind="RayCluster"), JobFilter(service=False), JobFilter(kind="")):
        assert await jobs.page(which) == ()


async def test_a_statefulset_names_the_next_pod_as_the_last_one(desk: Desk) -> None:
    """Within seconds, too: the second pod is there after the first has ended."""
    await desk.see(service(RUNNING, pod("web-0", 10, 12)))
    await desk.see(service(RUNNING, pod("web-0", 12)))
    await desk.see(service(RUNNING, pod("web-0", 12, 14), pod("web-0", 14, 16), pod("web-0", 16)))
    assert await replicas(desk) == {
        1: pod("web-0", 10, 12),
        2: pod("web-0", 12, 14),
        3: pod("web-0", 14, 16),
        4: pod("web-0", 16),
    }


async def test_a_start_that_is_corrected_and_a_pod_that_is_gone_stay_one_replica(desk: Desk) -> None:
    await desk.see(service(RUNNING, pod("a", 10), pod("b", 10)))
    await desk.see(service(RUNNING, pod("a", 12), pod("b", 10)))
    bare = replace(pod("b", 3, 30, Ending.FAILED), nodes=(), devices=0)  # a deleted pod took its node along
    await desk.see(service(RUNNING, pod("a", 12), bare))
    assert await replicas(desk) == {1: pod("a", 12), 2: pod("b", 10, 30, Ending.FAILED)}


async def test_what_is_not_reported_any_more_is_lost_when_it_was_last_seen(
    desk: Desk, database_url: str
) -> None:
    await desk.see(service(RUNNING, pod("a", 10), pod("b", 10)), mark="1")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE mirror_mark SET at = %s", (at(40),))
    await desk.see(service(RUNNING, pod("a", 10), pod("b", 70)), mark="2")
    lost = Ending.LOST
    assert (await replicas(desk))[2] == pod("b", 10, 40, lost)
    await desk.see(service(RUNNING, pod("b", 10, 45, Ending.NODE_LOST), pod("b", 70)), mark="3")
    found = await replicas(desk)
    assert found[2] == pod("b", 10, 45, Ending.NODE_LOST)  # it is found after all
    assert found[1].ending is lost


async def test_pods_replace_the_one_attempt_that_stood_for_all_of_them(desk: Desk) -> None:
    """A work queue of an older Fairway: the job held all GPUs from its first pod's start on."""
    queue = replace(service(RUNNING), service=False, kind="", attempts=(run(10),))
    await desk.see(queue)
    await desk.see(replace(queue, attempts=(pod("a", 10, 20), pod("b", 20))))
    assert await replicas(desk) == {2: pod("a", 10, 20), 3: pod("b", 20)}
    assert (await only(desk)).replicas == 1


async def test_a_report_reads_few_of_very_many_replicas(desk: Desk, database_url: str) -> None:
    await desk.see(service(RUNNING, pod("a", 10)))
    row = await only(desk)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes,"
            " replica)"
            " SELECT %s, n, 'serving/deployment/llm/1a2b3c4d', %s, %s, 'done', 2, '{}', 'old-' || n"
            " FROM generate_series(2, 20001) AS n",
            (row.id, at(1), at(2)),
        )
        connection.execute("UPDATE job SET attempts = 20001")
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE attempt")
        await desk.see(service(RUNNING, pod("a", 10, 30), pod("b", 30)))
        query = "SELECT number FROM attempt WHERE replica IN ('a', 'b') ORDER BY 1"
        assert connection.execute(query).fetchall() == [(1,), (20002,)]
    async with desk.ledger.writing(desk.mirror) as tx:
        link = await tx.mirror._load([service(RUNNING, pod("b", 30))], "")
        assert [one.number for one in link.attempts[row.id]] == [20002]


# Any scaling, and reports that come twice, late or not at all.


@dataclass
class World:
    """Pods of one service, and a mirror that reports them: what lives, and what ended and is undelivered."""

    random: random.Random
    now: int = 0
    pods: list[Attempt] = field(default_factory=list)
    reported: dict[tuple[str, datetime], Attempt] = field(default_factory=dict)
    """As each pod was last reported."""

    def live(self) -> list[int]:
        return [n for n, one in enumerate(self.pods) if one.ending is None]

    def step(self) -> None:
        self.now += self.random.choice([1, 2, 3, 7, 60, 3600])
        live = self.live()
        for n in self.random.sample(live, self.random.randint(0, len(live))):
            self.pods[n] = replace(self.pods[n], ended_at=at(self.now), ending=Ending.DONE)
        names = {self.pods[n].replica for n in self.live()}
        for _ in range(self.random.randint(0, 3)):
            name = self.random.choice([f"web-{self.random.randint(0, 3)}", f"pod-{len(self.pods)}"])
            if name not in names:
                names.add(name)
                self.pods.append(Attempt(at(self.now), (NodeName("n1"),), 2, replica=name))

    def report(self) -> SeenJob:
        """All that live, and what ended since a report showed it running or at all."""
        shown = [
            one
            for one in self.pods
            if one.ending is None or self.reported.get((one.replica, one.started_at)) != one
        ]
        self.random.shuffle(shown)
        return service(RUNNING if self.live() else WAITING, *shown)

    def deliver(self, report: SeenJob) -> None:
        self.reported |= {(one.replica, one.started_at): one for one in report.attempts}


def seconds_of(attempts: Sequence[Attempt]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in attempts:
        if one.ended_at is not None:
            total[one.replica] += round((one.ended_at - one.started_at) / timedelta(seconds=1))
    return total


@settings(max_examples=examples(400))
@given(st.integers(0, 2**32), st.integers(5, 60))
def test_replica_seconds_are_those_of_the_pods(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    stored: dict[int, StoredAttempt] = {}
    owners: dict[int, str] = {}
    total = 0
    past: list[SeenJob] = []
    for _ in range(steps):
        world.step()
        report = world.report()
        batch = [report]
        if world.random.random() < 0.2:
            batch = []  # the mirror is away: what ended meanwhile is reported later
        elif past and world.random.random() < 0.3:
            batch = [world.random.choice(past[-3:]), report]  # an old one comes again before
        if batch and world.random.random() < 0.2:
            batch.append(report)  # twice
        for one in batch:
            names = {a.replica for a in one.attempts}
            loaded = [s for s in stored.values() if s.attempt.ending is None or s.attempt.replica in names]
            merged = merge_replicas(loaded, total, one, at(world.now))
            assert not merged.gone
            total = merged.total
            stored |= {put.number: put for put in merged.put}
            for put in merged.put:
                assert owners.setdefault(put.number, put.attempt.replica) == put.attempt.replica
        if batch:
            world.deliver(report)
            past.append(report)
            assert merged.running is not None
            assert len(merged.running) == len(world.live())
    for n in world.live():
        world.pods[n] = replace(world.pods[n], ended_at=at(world.now + 9), ending=Ending.DONE)
    end = world.report()
    names = {a.replica for a in end.attempts}
    loaded = [s for s in stored.values() if s.attempt.ending is None or s.attempt.replica in names]
    stored |= {put.number: put for put in merge_replicas(loaded, total, end, at(world.now)).put}
    assert seconds_of([one.attempt for one in stored.values()]) == seconds_of(world.pods)
    assert len(stored) == len(world.pods)


async def test_the_times_of_very_many_replicas_are_added_up_by_day(desk: Desk) -> None:
    """To the second in all; each day for itself."""
    pods = [pod(f"p{n}", -200_000 + 7 * n, -150_000 + 9 * n) for n in range(HELD_EXACTLY)]
    await desk.see(service(RUNNING, *pods, pod("live", -1000), submitted_at=at(-300_000)))
    row = await only(desk)
    now = at(0)
    held = (await desk.ledger.jobs.held([row.id], now))[row.id]
    assert len(held) <= 2 * 4 + 1
    assert sum(h.devices * (h.end - h.start) for h in held) == sum(
        2 * round(((one.ended_at or now) - one.started_at) / timedelta(seconds=1))
        for one in (*pods, pod("live", -1000))
    )
    assert [h.running for h in held].count(True) == 1


async def test_idle_rules_know_a_service_by_its_kind(desk: Desk) -> None:
    await desk.see(service(RUNNING, pod("a", 10)))
    found = await desk.ledger.idle.candidate((await only(desk)).id, DEFAULT_DIAGNOSIS)
    assert found is not None
    assert (found.job.is_service, found.job.devices) == (True, 2)
