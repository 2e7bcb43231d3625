"""Applies on a real ledger: done, refused, stopped, held up, killed in the middle and taken up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal

import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loop import LeasedLoop, Pace
from fairway.control.loops.apply import ApplyToCluster
from fairway.control.metrics import LoopMetrics, PolicyMetrics
from fairway.engines.port import Unreachable
from fairway.ledger import Apply, ApplyCluster, ApplyState, Lease, LeaseLost, Ledger, Revision
from fairway.ledger.policy.applies import restored, storable
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Team
from fairway.policy.objects import Action, Activity, ObjectKey
from fairway.services.fleets import Fleets
from fairway.services.plans import plan_cluster
from tests.unit.control.toy import Toy, World

HPC = ClusterName("hpc")
CLUSTER = Cluster(HPC, VirtualConnection())


def fleet(**shares: int) -> Fleet:
    teams = tuple(Team(TeamName(name), share=share) for name, share in shares.items())
    return Fleet("acme", "USD", (CLUSTER,), (), teams)


def text_of(wanted: Fleet) -> str:
    return " ".join(f"{t.name}={t.share}" for t in wanted.teams)


def parse(revision: Revision) -> Fleet:
    return fleet(**{name: int(share) for name, share in (p.split("=") for p in revision.text.split())})


class Bench:
    """A world, a ledger, and the step that serves them."""

    def __init__(self, ledger: Ledger, world: World | None = None) -> None:
        self.ledger = ledger
        self.world = world or World()
        self.now = 0.0
        self.writing = asyncio.Lock()

    async def queue(self, wanted: Fleet, *, force: bool = False, mark: str | None = None) -> int:
        if mark is None:
            mark = (await plan_cluster(Toy(self.world), wanted, HPC)).fingerprint
        text = text_of(wanted)
        return await self.ledger.applies.queue(text, text, {HPC: mark}, force=force, by="ada")

    async def lease(self, holder: str = "one") -> Lease:
        lease = await self.ledger.leases.take("apply", HPC, holder, 30)
        assert lease is not None
        return lease

    def step(self, pools: tuple[Pool, ...] = ()) -> ApplyToCluster:
        metrics = PolicyMetrics(CollectorRegistry())
        return ApplyToCluster(
            CLUSTER,
            pools,
            lambda: Toy(self.world),
            self.ledger,
            Fleets(self.ledger, parse),
            metrics,
            self.writing,
            clock=lambda: self.now,
        )

    async def carry_out(self) -> None:
        await self.step()(await self.lease())

    async def apply(self, number: int) -> Apply:
        found = await self.ledger.applies.one(number)
        assert found is not None
        return found

    async def on_hpc(self, number: int) -> ApplyCluster:
        (cluster,) = (await self.apply(number)).clusters
        return cluster


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def made(cluster: ApplyCluster) -> Mapping[str, bool]:
    return {c.change.key.name: c.made for c in cluster.changes}


async def test_an_apply_is_carried_out_and_remembered(ledger: Ledger) -> None:
    bench = Bench(ledger)
    bench.world.put("old", 9)
    number = await bench.queue(fleet(research=60, product=40))
    assert (await bench.apply(number)).state is ApplyState.WAITING
    await bench.carry_out()
    assert bench.world.values() == {"product": 40, "research": 60}
    kept = await bench.apply(number)
    assert (kept.state, kept.created_by, kept.force) == (ApplyState.DONE, "ada", False)
    (cluster,) = kept.clusters
    assert (cluster.total, cluster.done, cluster.code) == (3, 3, "")
    assert cluster.started_at is not None
    assert cluster.finished_at is not None
    told = [
        (c.change.action, c.change.key.name, [(f.before, f.after) for f in c.change.fields])
        for c in cluster.changes
    ]
    assert told == [
        (Action.CREATE, "research", [(None, 60)]),
        (Action.CREATE, "product", [(None, 40)]),
        (Action.DELETE, "old", [(9, None)]),
    ]
    newest, applied = await ledger.revisions.newest(), await ledger.applies.applied_fleet(HPC)
    assert newest == applied
    assert applied is not None
    assert applied.text == "research=60 product=40"
    assert [a.apply for a in await ledger.applies.applied()] == [number]
    assert bench.world.closed == 1


async def test_applies_are_carried_out_in_the_order_they_came(ledger: Ledger) -> None:
    bench = Bench(ledger)
    first = await bench.queue(fleet(a=1))
    second = await bench.queue(fleet(a=2), mark="")
    await bench.carry_out()
    assert [(await bench.apply(n)).state for n in (first, second)] == [ApplyState.DONE] * 2
    assert bench.world.values() == {"a": 2}
    assert [a.id for a in await ledger.applies.page()] == [second, first]
    assert [a.id for a in await ledger.applies.page(before=second)] == [first]
    assert await ledger.applies.page(cluster="elsewhere") == ()


async def test_a_cluster_that_moved_on_is_left_alone(ledger: Ledger) -> None:
    bench = Bench(ledger)
    bench.world.put("a", 1)
    number = await bench.queue(fleet(a=2))
    bench.world.put("a", 7)
    await bench.carry_out()
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.code, cluster.done) == (ApplyState.REFUSED, "PlanOutdated", 0)
    assert "fairway plan" in cluster.hint
    assert bench.world.written == []
    assert await ledger.applies.applied_fleet(HPC) is None


async def test_what_speaks_against_a_plan_stops_it_unless_forced(ledger: Ledger) -> None:
    bench = Bench(ledger)
    old = bench.world.put("old", 1)
    bench.world.jobs[old] = Activity(running=2)
    number = await bench.queue(fleet(a=1))
    await bench.carry_out()
    assert (await bench.on_hpc(number)).code == "WouldEndJobs"
    assert bench.world.written == []
    forced = await bench.queue(fleet(a=1), force=True)
    await bench.carry_out()
    assert (await bench.apply(forced)).state is ApplyState.DONE
    assert bench.world.values() == {"a": 1}


async def test_what_is_in_the_way_is_not_forced_but_adopted(ledger: Ledger) -> None:
    bench = Bench(ledger)
    key = bench.world.put("a", 5, ours=False)
    number = await bench.queue(fleet(a=1), force=True)
    await bench.carry_out()
    assert (await bench.on_hpc(number)).code == "InTheWay"
    adoption = await ledger.applies.queue_adoption(HPC, [key], by="ada")
    await bench.carry_out()
    assert (await bench.apply(adoption)).state is ApplyState.DONE
    assert bench.world.objects[key].ours
    assert bench.world.values() == {"a": 5}
    assert bench.world.written == [(Action.ADOPT, key)]
    assert await ledger.applies.applied_fleet(HPC) is None
    await bench.queue(fleet(a=1))
    await bench.carry_out()
    assert bench.world.values() == {"a": 1}


async def test_what_is_not_there_cannot_be_adopted(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await ledger.applies.queue_adoption(HPC, [ObjectKey("limit", "none")], by="ada")
    await bench.carry_out()
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.code) == (ApplyState.REFUSED, "NothingToAdopt")


async def test_it_stops_at_the_first_refusal_and_says_what_was_done(ledger: Ledger) -> None:
    bench = Bench(ledger)
    refusal = Refused("Refused", "no rights on b", "grant them")
    bench.world.faults[ObjectKey("limit", "b")] = refusal
    number = await bench.queue(fleet(a=1, b=2, c=3))
    await bench.carry_out()
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.code, cluster.hint) == (ApplyState.FAILED, "Refused", "grant them")
    assert (cluster.done, cluster.total) == (1, 3)
    assert made(cluster) == {"a": True, "b": False, "c": False}
    assert await ledger.applies.applied_fleet(HPC) is None


async def test_an_engine_that_does_not_answer_is_asked_again(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1, b=2))
    bench.world.faults[ObjectKey("limit", "b")] = Unreachable("Unreachable", "restarting", "wait")
    step, lease = bench.step(), await bench.lease()
    with pytest.raises(Unreachable):
        await step(lease)
    held = await bench.on_hpc(number)
    assert (held.state, held.code, held.done) == (ApplyState.RUNNING, "Unreachable", 1)
    bench.world.faults.clear()
    await step(lease)
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.code, made(cluster)) == (ApplyState.DONE, "", {"a": True, "b": True})
    assert [key.name for _, key in bench.world.written] == ["a", "b"]


async def test_patience_ends(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1))
    bench.world.deaf = Unreachable("Unreachable", "no answer", "look")
    step, lease = bench.step(), await bench.lease()
    for bench.now in (0.0, 60.0, 119.0):
        with pytest.raises(Unreachable):
            await step(lease)
    assert (await bench.on_hpc(number)).state is ApplyState.WAITING
    bench.now = 121.0
    await step(lease)
    assert (await bench.on_hpc(number)).state is ApplyState.FAILED


async def test_a_defect_ends_the_apply_and_is_told(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1))
    bench.world.deaf = RuntimeError("oh")
    with pytest.raises(RuntimeError):
        await bench.carry_out()
    assert (await bench.on_hpc(number)).code == "Unexpected"


@pytest.mark.parametrize("after", range(5))
async def test_killed_anywhere_it_is_taken_up_and_nothing_is_done_twice(ledger: Ledger, after: int) -> None:
    bench = Bench(ledger)
    bench.world.put("old", 9)
    wanted = fleet(a=1, b=2, c=3)
    number = await bench.queue(wanted)
    bench.world.slow = 0.05
    killed = asyncio.create_task(bench.step()(await bench.lease("one")))
    await until(lambda: len(bench.world.written) >= after)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    one = await bench.lease("one")
    await ledger.leases.release(one)
    await bench.step()(await bench.lease("two"))
    assert bench.world.values() == {"a": 1, "b": 2, "c": 3}
    assert len(bench.world.written) == len(set(bench.world.written)) == 4
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.done, cluster.total) == (ApplyState.DONE, 4, 4)
    assert made(cluster) == {"a": True, "b": True, "c": True, "old": True}


async def test_a_resumed_apply_does_not_end_jobs_that_came_meanwhile(ledger: Ledger) -> None:
    bench = Bench(ledger)
    old = bench.world.put("old", 9)
    number = await bench.queue(fleet(a=1))
    bench.world.faults[old] = Unreachable("Unreachable", "restarting", "wait")
    step, lease = bench.step(), await bench.lease()
    with pytest.raises(Unreachable):
        await step(lease)
    bench.world.faults.clear()
    bench.world.jobs[old] = Activity(running=1)
    await step(lease)
    cluster = await bench.on_hpc(number)
    assert (cluster.state, cluster.code) == (ApplyState.FAILED, "WouldEndJobs")
    assert made(cluster) == {"a": True, "old": False}
    assert old in bench.world.objects


async def test_a_job_that_comes_before_the_deletion_saves_its_object(ledger: Ledger) -> None:
    bench = Bench(ledger)
    old = bench.world.put("old", 9)
    number = await bench.queue(fleet(a=1))
    bench.world.slow = 0.2

    async def submit() -> None:
        await until(lambda: bench.world.looks > 1)
        bench.world.jobs[old] = Activity(waiting=1)

    await asyncio.gather(bench.carry_out(), submit())
    assert (await bench.on_hpc(number)).code == "WouldEndJobs"
    assert old in bench.world.objects


async def test_who_loses_the_lease_stops_writing(ledger: Ledger) -> None:
    bench = Bench(ledger)
    await bench.queue(fleet(**{f"t{i:02}": i for i in range(40)}))
    bench.world.slow = 0.1
    lease = await bench.lease("one")
    losing = asyncio.create_task(bench.step()(lease))
    await until(lambda: len(bench.world.written) >= 2)
    await ledger.leases.release(lease)
    with pytest.raises(LeaseLost):
        await losing
    assert len(bench.world.written) < 20


async def test_a_long_apply_is_not_cut_and_shows_how_far_it_is(ledger: Ledger) -> None:
    """A loop without a limit of its own for a round; the engine's silence is what ends one."""
    bench = Bench(ledger)
    number = await bench.queue(fleet(**{f"t{i:02}": i for i in range(15)}))
    bench.world.slow = 0.1
    pace = Pace(lease_seconds=60, interval_seconds=0.05, step_seconds=None)
    loop = LeasedLoop(
        "apply", HPC, bench.step(), ledger, holder="one", pace=pace, metrics=LoopMetrics(CollectorRegistry())
    )
    running = asyncio.create_task(loop.run())
    try:
        seen = []
        async with asyncio.timeout(120):
            while (cluster := await bench.on_hpc(number)).state is not ApplyState.DONE:
                seen.append((cluster.done, cluster.current))
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    on_the_way = {(done, current) for done, current in seen if 0 < done < 15}
    assert on_the_way
    assert all(current == f"limit t{done - 1:02}" for done, current in on_the_way)


async def test_a_cluster_that_leaves_the_fleet_skips_what_waits(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1))
    revision = await ledger.revisions.add("", "none", "ada")
    await ledger.revisions.follow(revision.id, {})
    assert (await bench.on_hpc(number)).code == "ClusterLeft"
    assert (await bench.apply(number)).state is ApplyState.SKIPPED
    assert await ledger.applies.next_work(HPC) is None


def test_values_survive_the_ledger() -> None:
    assert restored([1, ["a", [None, True]], "x"]) == (1, ("a", (None, True)), "x")
    assert storable(("a\0b", 1)) == ("ab", 1)


async def test_a_loop_of_other_pools_leaves_it_to_the_one_that_comes(ledger: Ledger) -> None:
    """Its engine would look for the pools where they no longer are, and find that the cluster moved on."""
    bench = Bench(ledger)
    number = await bench.queue(fleet(research=2))
    old = Pool(
        PoolName("old"),
        HPC,
        GpuType("A100-80GB", 80),
        Capacity.OWNED,
        Decimal(1),
        VirtualPlace(nodes=1),
    )
    lease = await bench.lease()
    await bench.step((old,))(lease)
    assert (await bench.apply(number)).state is ApplyState.WAITING
    await bench.step()(lease)
    assert (await bench.apply(number)).state is ApplyState.DONE


async def test_an_apply_is_done_when_the_engine_has_the_changes_and_not_before(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1))
    bench.world.behind = Unreachable("ControllerBehind", "slurmctld does not have account a yet", "look")
    with pytest.raises(Unreachable):
        await bench.carry_out()
    here = await bench.on_hpc(number)
    assert (here.state, here.code, here.done) == (ApplyState.RUNNING, "ControllerBehind", 1)
    bench.world.behind = None
    await bench.carry_out()
    assert (await bench.on_hpc(number)).state is ApplyState.DONE


async def test_nothing_is_written_that_the_engine_would_not_get(ledger: Ledger) -> None:
    bench = Bench(ledger)
    number = await bench.queue(fleet(a=1))
    bench.world.detached = Unreachable("AccountingDetached", "slurmdbd has no address", "reconfigure")
    with pytest.raises(Unreachable):
        await bench.carry_out()
    assert bench.world.written == []
    assert (await bench.on_hpc(number)).code == "AccountingDetached"
    bench.world.detached = None
    await bench.carry_out()
    assert (await bench.on_hpc(number)).state is ApplyState.DONE
