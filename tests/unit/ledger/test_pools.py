"""What the pages of the fleet and of a pool ask of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairway.ledger import Ledger
from fairway.ledger.pools import DeviceRow
from fairway.model.job import Attempt, Ending, JobState
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, TeamName
from fairway.model.observation import Health
from fairway.model.team import Supply
from tests.unit.ledger.job_samples import Desk, at, new_job, run, seen
from tests.unit.ledger.samples import gpus, node, observation, slices

A100 = Supply(PoolName("hpc-a100"))


async def observe(ledger: Ledger) -> None:
    lease = await ledger.leases.take("observe", "hpc", "a", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.observations.write(
            observation(
                node("n1", gpus(in_use=8)),
                node("n2", gpus(in_use=3), health=Health.DRAINED, reason="disk"),
                node("n3", gpus(), health=Health.DOWN),
                node("n4", slices(in_use=2), gpus(pool=None)),
            )
        )


def holding(*nodes: str, devices: int) -> Attempt:
    return Attempt(at(0), tuple(NodeName(name) for name in nodes), devices)


def all_nodes(rows: Sequence[DeviceRow]) -> list[NodeName]:
    return [row.node for row in rows]


async def test_drained_is_what_nobody_holds_on_drained_nodes(ledger: Ledger) -> None:
    await observe(ledger)
    now = await ledger.pools.fleet()
    assert now.drained == {Supply(PoolName("a100")): 5}
    assert [(c.cluster, c.reachable) for c in now.clusters] == [("hpc", True)]
    assert {(p.pool, p.slice): p.total for p in now.pools} == {
        (None, None): 8,
        ("a100", None): 24,
        ("mig", "1g.10gb"): 7,
    }


async def test_what_waits_is_grouped_by_whose_it_is_and_why(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    room = {"reason": "Resources", "reason_code": "NotEnoughFree"}
    await desk.see(
        seen("1", "a", JobState.WAITING, **room, gpus=4, submitted_at=at(-50)),
        seen("2", "b", JobState.WAITING, **room, gpus=2, nodes=2, submitted_at=at(-90)),
        seen("3", "c", JobState.WAITING, reason="Priority"),
        seen("4", "d", JobState.WAITING, reason="Resources", team=TeamName("product")),
        seen("5", "e", JobState.RUNNING, run(0)),
        seen("6", "f", JobState.HELD),
        seen("7", "g", JobState.DONE, run(0, 1)),
    )
    await desk.submit(new_job("queued", gpus=1))
    groups = (await ledger.pools.fleet()).waiting
    first = groups[0]
    assert (first.team, first.supply, first.reason, first.jobs) == ("research", A100, "Resources", 2)
    assert (first.devices, first.least, first.oldest) == (8, 2, at(-90))
    assert (first.code, first.reason_code) == ("", "NotEnoughFree")
    assert sorted((g.team, g.reason, g.jobs) for g in groups[1:]) == [
        ("product", "Resources", 1),
        ("research", "", 1),
        ("research", "Priority", 1),
    ]


async def test_devices_of_a_pool_are_its_own_with_the_health_of_their_node(ledger: Ledger) -> None:
    await observe(ledger)
    rows = (await ledger.pools.pool("hpc", "a100", largest=1, select_nodes=all_nodes)).devices
    assert [(r.node, r.health, r.reason, r.total, r.in_use) for r in rows] == [
        ("n1", Health.READY, "", 8, 8),
        ("n2", Health.DRAINED, "disk", 8, 3),
        ("n3", Health.DOWN, "", 8, 0),
    ]
    (cut,) = (await ledger.pools.pool("hpc", "mig", largest=1, select_nodes=all_nodes)).devices
    assert (cut.node, cut.slice, cut.total, cut.in_use) == ("n4", SliceName("1g.10gb"), 7, 2)
    assert (await ledger.pools.pool("cloud", "a100", largest=1, select_nodes=all_nodes)).devices == ()


async def test_free_devices_are_those_of_ready_nodes(ledger: Ledger) -> None:
    await observe(ledger)
    hpc = ClusterName("hpc")
    assert sorted(await ledger.pools.free(hpc, Supply(PoolName("a100")))) == [0, 0, 0]
    assert await ledger.pools.free(hpc, Supply(PoolName("mig"), SliceName("1g.10gb"))) == [5]
    assert await ledger.pools.free(hpc, Supply(PoolName("mig"))) == []
    assert await ledger.pools.free(ClusterName("cloud"), Supply(PoolName("a100"))) == []


async def test_holders_are_the_largest_and_those_on_the_nodes_that_are_looked_at(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await desk.see(
        seen("1", "large", JobState.RUNNING, holding("n1", "n2", devices=16)),
        seen("2", "here", JobState.RUNNING, holding("n3", devices=2)),
        seen("3", "elsewhere", JobState.RUNNING, holding("n4", devices=1)),
        seen("4", "over", JobState.DONE, run(0, 1)),
        seen("5", "other", JobState.RUNNING, holding("n3", devices=8), supply=Supply(PoolName("other"))),
        seen("6", "again", JobState.RUNNING, run(0, 1), holding("n3", devices=2)),
    )
    now = await ledger.pools.pool("hpc", "hpc-a100", largest=1, select_nodes=lambda _: [NodeName("n3")])
    assert [(h.name, h.devices, h.nodes, h.rank) for h in now.holders] == [
        ("large", 16, ("n1", "n2"), 1),
        ("here", 2, ("n3",), 2),
        ("again", 2, ("n3",), 3),
    ]


async def test_a_service_holds_what_its_replicas_hold_together(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    pods = [replace(holding(on, devices=2), replica=f"llm-{n}") for n, on in enumerate(("n1", "n1", "n2"))]
    ended = replace(holding("n9", devices=2), replica="old", ended_at=at(1), ending=Ending.DONE)
    await desk.see(
        seen("serving/deployment/llm/1", "llm", JobState.RUNNING, *pods, ended, service=True, nodes=3),
        seen("2", "train", JobState.RUNNING, holding("n3", devices=4)),
    )
    found = await ledger.pools.pool("hpc", "hpc-a100", largest=10, select_nodes=all_nodes)
    assert [(h.name, h.devices, sorted(h.nodes)) for h in found.holders] == [
        ("llm", 6, ["n1", "n1", "n2"]),
        ("train", 4, ["n3"]),
    ]
