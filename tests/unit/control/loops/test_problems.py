"""Operators get one notice when something stops working, and one when it works again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from fairway.control.loops.problems import ReportProblems
from fairway.engines.port import Unreachable
from fairway.ledger import FLEET, Lease, Ledger
from fairway.model.condition import Condition, ConditionType
from fairway.model.notice_rules import NoticeKind
from fairway.model.observation import Observation
from fairway.services.fleets import Fleets
from tests.unit.control.loops.test_apply import HPC, Bench, fleet, parse
from tests.unit.control.loops.test_drift import Look


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("problems", FLEET, "test", 60)
    assert taken is not None
    yield taken


async def told(ledger: Ledger) -> list[str]:
    return [one.notice.subject for one in await ledger.notices.unrouted(100)]


async def begun(ledger: Ledger) -> ReportProblems:
    bench = Bench(ledger)
    await bench.queue(fleet(a=1, b=2))
    await bench.carry_out()
    return ReportProblems(ledger, Fleets(ledger, parse))


async def test_a_cluster_that_cannot_be_reached_is_reported_after_some_minutes_and_its_end(
    ledger: Ledger, lease: Lease, database_url: str
) -> None:
    report = await begun(ledger)
    observe = await ledger.leases.take("observe", HPC, "test", 60)
    assert observe is not None
    error = Unreachable("Unreachable", "hpc:6820 refuses connections", "check slurmrestd")
    with psycopg.connect(database_url, autocommit=True) as db:
        for _ in range(2):
            async with ledger.writing(observe) as tx:
                await tx.observations.write_failure(HPC, error)
            await report(lease)
            assert await told(ledger) == []  # it may be a restart
        db.execute("UPDATE cluster_state SET since = since - interval '6 minutes'")
        for _ in range(2):
            await report(lease)
        assert await told(ledger) == ["cluster hpc cannot be reached"]
        (stored,) = await ledger.notices.unrouted(10)
        assert stored.notice.operators
        assert stored.notice.kind is NoticeKind.HEALTH
        assert "check slurmrestd" in stored.notice.text

        async with ledger.writing(observe) as tx:
            await tx.observations.write(Observation(HPC, "24.11", ()))
        for _ in range(2):
            await report(lease)
        assert await told(ledger) == [
            "cluster hpc cannot be reached",
            "resolved: cluster hpc cannot be reached",
        ]
        db.execute("UPDATE cluster_state SET attempted_at = now() - interval '20 minutes'")
        await report(lease)
        assert (await told(ledger))[2:] == ["cluster hpc is not observed"]


async def test_drift_is_reported_when_found_when_it_grows_and_when_it_is_gone(
    ledger: Ledger, lease: Lease
) -> None:
    bench = Bench(ledger)
    look = Look(bench)
    await bench.queue(fleet(a=1, b=2))
    await bench.carry_out()
    report = ReportProblems(ledger, Fleets(ledger, parse))
    held = await ledger.leases.take("drift", HPC, "one", 30)
    assert held is not None
    for name in ("a", "b"):
        bench.world.put(name, 7, by="eve")
        for _ in range(2):
            await look.drift(held)
            await report(lease)
    assert await told(ledger) == ["drift on cluster hpc: 1 object", "drift on cluster hpc: 2 objects"]
    last = (await ledger.notices.unrouted(10))[-1].notice
    assert last.kind is NoticeKind.DRIFT
    assert "limit b, limit a" in last.text
    bench.world.put("a", 1)
    await look.drift(held)
    await report(lease)
    assert len(await told(ledger)) == 2  # less is not news
    bench.world.put("b", 2)
    await look.drift(held)
    for _ in range(2):
        await report(lease)
    assert (await told(ledger))[2:] == ["resolved: drift on cluster hpc: 2 objects"]  # once


async def test_a_condition_is_reported_unless_it_is_a_task(
    ledger: Ledger, lease: Lease, database_url: str
) -> None:
    report = await begun(ledger)
    mirror = await ledger.leases.take("mirror", HPC, "one", 30)
    assert mirror is not None
    found = [
        Condition(type_, "Code", "it does not", "look")
        for type_ in (ConditionType.JOBS_NOT_FOLLOWED, ConditionType.INSTALL_PENDING)
    ]
    async with ledger.writing(mirror) as tx:
        await tx.conditions.write([one.type for one in found], found)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE cluster_condition SET since = since - interval '6 minutes'")
    await report(lease)
    assert await told(ledger) == ["cluster hpc: JobsNotFollowed"]
    async with ledger.writing(mirror) as tx:
        await tx.conditions.write([one.type for one in found], ())
    await report(lease)
    assert (await told(ledger))[1:] == ["resolved: cluster hpc: JobsNotFollowed"]


async def test_budgets_that_nobody_sums_are_reported(ledger: Ledger, lease: Lease, database_url: str) -> None:
    report = await begun(ledger)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(
            "INSERT INTO budget_standing (team, period, amount, spent, per_day, level, since, checked_at)"
            " VALUES ('a', '2026-11-01', 1, 0, 0, 'ok', now(), now())"
        )
        await report(lease)
        assert await told(ledger) == []
        db.execute("UPDATE budget_standing SET checked_at = now() - interval '16 minutes'")
        await report(lease)
        assert await told(ledger) == ["budgets are not checked"]
