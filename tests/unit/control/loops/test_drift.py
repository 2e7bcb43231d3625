"""Drift and interventions on a real ledger: found, named, healed; and never in the middle of an apply."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.drift import FindDrift
from fairway.control.loops.intervene import InterveneCluster
from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Unreachable
from fairway.ledger import ApplyState, Drift, DriftKind, Lease, Ledger
from fairway.model.condition import ConditionType
from fairway.model.names import ClusterName
from fairway.policy.objects import Advice, Intervention, ObjectKey
from fairway.services.fleets import Fleets, LastApplied
from fairway.services.plans import plan_cluster
from tests.unit.control.loops.test_apply import CLUSTER, HPC, Bench, fleet, parse
from tests.unit.control.toy import Toy


class Look:
    """The drift and intervene loops of one cluster, step by step."""

    def __init__(self, bench: Bench) -> None:
        self.registry = CollectorRegistry()
        metrics, ledger = PolicyMetrics(self.registry), bench.ledger
        applied = LastApplied(HPC, ledger, Fleets(ledger, parse))
        self.drift = FindDrift(HPC, lambda: Toy(bench.world), ledger, applied, metrics)
        self.intervene = InterveneCluster(
            HPC, lambda: Toy(bench.world), ledger, applied, metrics, bench.writing
        )

    def metric(self) -> float | None:
        return self.registry.get_sample_value("fairway_drift_objects", {"cluster": "hpc"})


async def lease(ledger: Ledger, loop: str) -> Lease:
    taken = await ledger.leases.take(loop, HPC, "one", 30)
    assert taken is not None
    return taken


async def drifts(ledger: Ledger) -> dict[str, Drift]:
    return {d.entry.key.name: d for d in await ledger.drift.page()}


async def test_before_the_first_apply_nobody_looks(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look = Look(bench)
    await look.drift(await lease(ledger, "drift"))
    await look.intervene(await lease(ledger, "intervene"))
    assert bench.world.looks == 0


async def test_what_somebody_changed_is_named_and_an_apply_heals_it(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "drift")
    await bench.queue(fleet(a=1, b=2, c=3))
    await bench.carry_out()
    await look.drift(held)
    assert await ledger.drift.page() == ()
    assert look.metric() == 0
    (applied,) = await ledger.applies.applied()
    assert applied.looked_at is not None

    bench.world.put("a", 7, by="eve")
    del bench.world.objects[ObjectKey("limit", "b")]
    bench.world.put("c", 3, ours=False)
    bench.world.put("d", 4)
    bench.world.put("stranger", 4, ours=False)
    await look.drift(held)
    found = await drifts(ledger)
    assert {name: d.entry.kind for name, d in found.items()} == {
        "a": DriftKind.CHANGED,
        "b": DriftKind.MISSING,
        "c": DriftKind.UNMARKED,
        "d": DriftKind.EXTRA,
    }
    changed = found["a"].entry
    assert (changed.field, changed.wanted, changed.found, changed.changed_by) == ("value", 1, 7, "eve")
    assert look.metric() == 4

    bench.world.put("a", 8, by="eve")
    await look.drift(held)
    again = (await drifts(ledger))["a"]
    assert (again.entry.found, again.since) == (8, found["a"].since)

    bench.world.put("c", 3)
    await bench.queue(fleet(a=1, b=2, c=3))
    await bench.carry_out()
    assert await ledger.drift.page() == ()
    await look.drift(held)
    assert await ledger.drift.page() == ()
    assert look.metric() == 0
    await look.drift.close()
    assert look.metric() is None


async def test_pages_go_by_the_last_one_seen(ledger: Ledger) -> None:
    bench = Bench(ledger)
    await bench.queue(fleet(a=1, b=2, c=3))
    await bench.carry_out()
    bench.world.objects.clear()
    await Look(bench).drift(await lease(ledger, "drift"))
    first = await ledger.drift.page(limit=2)
    last = first[-1].entry
    rest = await ledger.drift.page(after=(HPC, last.key.kind, last.key.name, last.field))
    assert [d.entry.key.name for d in (*first, *rest)] == ["a", "b", "c"]
    assert await ledger.drift.page(cluster="elsewhere") == ()


async def test_what_an_apply_is_just_changing_is_not_drift(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "drift")
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    number = await bench.queue(fleet(a=2))
    applying = await bench.lease()
    async with ledger.writing(applying) as tx:
        await tx.applies.start(number, ())
    bench.world.put("a", 2)
    await look.drift(held)
    assert await ledger.drift.page() == ()
    assert (await bench.apply(number)).state is ApplyState.RUNNING


async def test_a_look_that_compared_with_an_older_fleet_is_not_kept(ledger: Ledger) -> None:
    bench = Bench(ledger)
    first = await bench.queue(fleet(a=1))
    await bench.carry_out()
    await bench.queue(fleet(a=2))
    await bench.carry_out()
    plan = await plan_cluster(Toy(bench.world), fleet(a=1), HPC)
    assert plan.changes
    async with ledger.writing(await lease(ledger, "drift")) as tx:
        assert not await tx.drift.write(first, ())


async def test_drift_goes_with_its_cluster(ledger: Ledger) -> None:
    bench = Bench(ledger)
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    bench.world.objects.clear()
    await Look(bench).drift(await lease(ledger, "drift"))
    assert len(await ledger.drift.page()) == 1
    other = replace(CLUSTER, name=ClusterName("other"))
    revision = await ledger.revisions.add("other", "other", "ada")
    await ledger.revisions.follow(revision.id, {other.name: other.engine})
    assert await ledger.drift.page() == ()


async def test_interventions_are_kept_with_their_reason(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "intervene")
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    await look.intervene(held)
    assert await ledger.drift.interventions() == ()
    bench.world.interventions = [
        Intervention("priority", f"scontrol requeue {job}", str(job), "an urgent job waits")
        for job in (17, 18)
    ]
    await look.intervene(held)
    newest, oldest = await ledger.drift.interventions()
    assert (oldest.promise, oldest.verb, oldest.job, oldest.why) == (
        "priority",
        "scontrol requeue 17",
        "17",
        "an urgent job waits",
    )
    assert await ledger.drift.interventions(before=newest.id) == (oldest,)
    assert await ledger.drift.interventions(cluster="elsewhere") == ()
    counted = look.registry.get_sample_value(
        "fairway_interventions_total", {"cluster": "hpc", "promise": "priority"}
    )
    assert counted == 2


async def test_no_intervention_towards_a_fleet_that_is_being_replaced(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "intervene")
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    bench.world.interventions = [Intervention("memory", "weigh a", "a", "share 1")]
    async with bench.writing:  # an apply of this server is at it
        await look.intervene(held)
    number = await bench.queue(fleet(a=2))  # one waits, for whatever server
    await look.intervene(held)
    assert await ledger.drift.interventions() == ()
    await bench.carry_out()
    assert (await bench.apply(number)).state is ApplyState.DONE
    await look.intervene(held)
    assert len(await ledger.drift.interventions()) == 1


async def test_a_cluster_that_could_not_be_looked_at_says_so_until_it_was(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "drift")
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    await look.drift(held)
    assert await ledger.conditions.all() == ()

    bench.world.deaf = Unreachable("ClusterUnreachable", "no connection", "systemctl status slurmrestd")
    for _ in range(2):
        with pytest.raises(Unreachable):
            await look.drift(held)
    (stored,) = await ledger.conditions.all()
    assert (stored.cluster, stored.condition.type) == (HPC, ConditionType.DRIFT_NOT_CHECKED)
    assert stored.condition.code == "ClusterUnreachable"

    bench.world.deaf = None
    await look.drift(held)
    assert await ledger.conditions.all() == ()


async def test_what_is_not_installed_stays_a_condition_from_the_apply_on_until_it_is(ledger: Ledger) -> None:
    bench = Bench(ledger)
    look, held = Look(bench), await lease(ledger, "drift")
    bench.world.advice = [Advice("job_submit.lua", "-- again", "team a unknown to it", "why")]
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    (pending,) = await ledger.conditions.all()
    assert pending.condition.type is ConditionType.INSTALL_PENDING
    assert "team a unknown to it" in pending.condition.message
    await look.drift(held)
    assert await ledger.conditions.all() == (pending,)
    bench.world.advice = []
    await look.drift(held)
    assert await ledger.conditions.all() == ()
