"""Looking at a cluster through the adapter under test; what must hold of every look is asserted on each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairway.engines.port import Observes
from fairway.model.fleet import Pool
from fairway.model.names import NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node, Observation, PoolTotals, pool_totals
from tests.waiting import Deadline


async def look(engine: Observes) -> Observation:
    seen = await engine.observe()
    names = [node.name for node in seen.nodes]
    assert names == sorted(set(names))
    for node in seen.nodes:
        assert (node.reason == "") == (node.health is Health.READY), node
        for devices in node.devices:
            assert 0 <= devices.in_use <= devices.total, node
            assert 0 <= devices.unhealthy <= devices.total, node
    for totals in pool_totals(seen.nodes):
        assert totals.total == totals.in_use + totals.free + totals.unhealthy, totals
        assert min(totals.in_use, totals.free, totals.unhealthy) >= 0, totals
    return seen


async def until(
    engine: Observes, true: Callable[[Observation], bool], *, within_seconds: float = 60
) -> Observation:
    """Look until it is true. Engines need a moment to tell what happened to them."""
    deadline = Deadline(within_seconds)
    while True:
        seen = await look(engine)
        if true(seen):
            return seen
        assert not deadline.passed, f"not within {within_seconds} s; last seen: {seen}"
        await asyncio.sleep(0.3)


def the_node(seen: Observation, name: NodeName) -> Node:
    return next(node for node in seen.nodes if node.name == name)


def the_devices(node: Node, pool: Pool, slice_: SliceName | None = None) -> Devices:
    return next(d for d in node.devices if d.pool == pool.name and d.slice == slice_)


def the_totals(seen: Observation, pool: PoolName | None, slice_: SliceName | None = None) -> PoolTotals:
    return next(t for t in pool_totals(seen.nodes) if t.pool == pool and t.slice == slice_)


def in_use(
    node: NodeName, pool: Pool, count: int, slice_: SliceName | None = None
) -> Callable[[Observation], bool]:
    """Whether so many devices of the pool are in use on that node."""
    return lambda seen: the_devices(the_node(seen, node), pool, slice_).in_use == count


def healthy(node: NodeName, health: Health) -> Callable[[Observation], bool]:
    """Whether that node's health is this one."""
    return lambda seen: the_node(seen, node).health is health
