"""Leaving a cluster and lifting its guards, on a real ledger and a virtual cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from fairway.control.loops.apply import ApplyToCluster
from fairway.control.metrics import PolicyMetrics
from fairway.engines.virtual.engine import VirtualEngine
from fairway.ledger import ApplyKind, ApplyState, Ledger, Revision
from fairway.model.apply import Lifted
from fairway.model.fleet import Cluster, Fleet, VirtualConnection
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.team import Team
from fairway.policy.objects import FoundObject, ObjectKey
from fairway.services.fleets import Fleets, LastApplied
from fairway.services.plans import plan_cluster

HPC = ClusterName("hpc")
CLUSTER = Cluster(HPC, VirtualConnection())
VISION = ObjectKey("team", "vision")
CAROL = ObjectKey("member", "vision/carol")


def fleet(share: int, *, draining: bool = False) -> Fleet:
    team = Team(TeamName("vision"), share=share, members=(UserName("carol"),), draining=draining)
    return Fleet("acme", "USD", (CLUSTER,), (), (team,))


def parse(revision: Revision) -> Fleet:
    return fleet(abs(int(revision.text)), draining=int(revision.text) < 0)


@dataclass
class Bench:
    """A virtual cluster with a team that people made, and the ledger that governs it."""

    ledger: Ledger
    engine: VirtualEngine = field(default_factory=lambda: VirtualEngine(CLUSTER, (), clock=None))

    def __post_init__(self) -> None:
        self.engine.change_by_hand(VISION, {"share": 7, "priorities": ()}, by="root")

    async def objects(self) -> dict[ObjectKey, FoundObject]:
        return {o.key: o for o in (await self.engine.find_policy()).objects}

    async def adopt(self) -> None:
        await self.ledger.applies.queue_adoption(HPC, [VISION], by="ada")
        await self.carry_out()

    async def apply(self, share: int) -> None:
        mark = (await plan_cluster(self.engine, parse_share(share), HPC)).fingerprint
        await self.ledger.applies.queue(str(share), str(share), {HPC: mark}, force=True, by="ada")
        await self.carry_out()

    async def lift(self, kind: ApplyKind) -> ApplyState:
        number = await self.ledger.applies.queue_return(kind, HPC, "", by="eve")
        await self.carry_out()
        found = await self.ledger.applies.one(number)
        assert found is not None
        return found.state

    async def carry_out(self) -> None:
        fleets, metrics = Fleets(self.ledger, parse), PolicyMetrics(CollectorRegistry())
        step = ApplyToCluster(CLUSTER, (), lambda: self.engine, self.ledger, fleets, metrics, asyncio.Lock())
        lease = await self.ledger.leases.take("apply", HPC, "one", 30)
        assert lease is not None
        await step(lease)

    async def enforced(self) -> bool:
        return await LastApplied(HPC, self.ledger, Fleets(self.ledger, parse)).get() is not None


def parse_share(share: int) -> Fleet:
    return fleet(abs(share), draining=share < 0)


async def test_after_leaving_the_cluster_is_as_it_was(ledger: Ledger) -> None:
    bench = Bench(ledger)
    before = {key: o.fields for key, o in (await bench.objects()).items()}
    await bench.adopt()
    await bench.apply(20)
    await bench.apply(30)
    assert CAROL in await bench.objects()
    assert await bench.lift(ApplyKind.LEAVE) is ApplyState.DONE
    after = await bench.objects()
    assert {key: o.fields for key, o in after.items()} == before
    assert not after[VISION].ours
    assert await ledger.applies.saved(HPC) == ()


async def test_a_cluster_that_was_left_is_no_longer_governed_until_it_is_applied_again(
    ledger: Ledger,
) -> None:
    bench = Bench(ledger)
    await bench.adopt()
    await bench.apply(20)
    assert await bench.enforced()
    await bench.lift(ApplyKind.LEAVE)
    assert not await bench.enforced()
    (applied,) = await ledger.applies.applied(HPC)
    assert (applied.lifted, applied.lifted_by) == (Lifted.LEFT, "eve")
    await bench.adopt()
    await bench.apply(20)
    assert await bench.enforced()
    assert (await ledger.applies.applied(HPC))[0].lifted is None


async def test_an_object_that_is_adopted_twice_keeps_what_it_had_before_the_first_time(
    ledger: Ledger,
) -> None:
    bench = Bench(ledger)
    await bench.adopt()
    await bench.apply(20)
    stored = bench.engine._objects[VISION]
    bench.engine._objects[VISION] = replace(stored, ours=False)  # somebody took the mark off
    await bench.adopt()
    await bench.lift(ApplyKind.LEAVE)
    assert (await bench.objects())[VISION].fields["share"] == 7


async def test_releasing_lifts_drains_and_stops_enforcing(ledger: Ledger) -> None:
    bench = Bench(ledger)
    await bench.adopt()
    await bench.apply(-20)
    assert (await bench.objects())[VISION].fields["draining"] is True
    assert await bench.lift(ApplyKind.RELEASE) is ApplyState.DONE
    assert (await bench.objects())[VISION].fields["draining"] is False
    assert not await bench.enforced()
    assert (await ledger.applies.applied(HPC))[0].lifted is Lifted.RELEASED
    (shown,) = await ledger.drift.page()
    assert (shown.entry.found, shown.entry.changed_by) == ("released", "eve")
    await bench.apply(-20)
    assert (await bench.objects())[VISION].fields["draining"] is True
    assert await bench.enforced()
    assert await ledger.drift.page() == ()
    await bench.lift(ApplyKind.LEAVE)  # what was saved is not lost by a release
    assert (await bench.objects())[VISION].fields["share"] == 7
