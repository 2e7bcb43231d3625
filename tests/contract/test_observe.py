"""What `observe()` promises, on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from fairway.engines.port import Observes
from fairway.model.observation import Health, pool_totals
from tests.contract.conftest import on
from tests.contract.driver import Driver, Sickens
from tests.contract.looking import healthy, in_use, look, the_devices, the_node, the_totals, until


@pytest.fixture
async def engine(driver: Driver) -> AsyncIterator[Observes]:
    opened = driver.engine(driver.whole, driver.sliced)
    yield opened
    await opened.close()


async def test_counts_all_the_cluster_has(driver: Driver, engine: Observes) -> None:
    counted = await driver.counts()
    assert all(counted.values())

    seen = await look(engine)

    assert seen.cluster == driver.cluster.name
    assert {(t.pool, t.slice): t.total for t in pool_totals(seen.nodes) if t.pool} == counted


async def test_names_the_engine_and_its_version(driver: Driver, engine: Observes) -> None:
    kind, _, version = (await look(engine)).engine_version.partition(" ")

    assert kind == driver.cluster.engine
    assert version[:1].isdigit() or version[:1] == "v"


async def test_held_gpus_are_in_use_until_released(driver: Driver, engine: Observes) -> None:
    async with driver.held(driver.whole, 3) as node:
        seen = await until(engine, in_use(node, driver.whole, 3))
        assert the_totals(seen, driver.whole.name).in_use >= 3
        assert the_node(seen, node).health is Health.READY

    await until(engine, in_use(node, driver.whole, 0))


async def test_held_slices_are_counted_as_slices(driver: Driver, engine: Observes) -> None:
    profile, *others = driver.sliced.slices

    async with driver.held(driver.sliced, 2, profile) as node:
        seen = await until(engine, in_use(node, driver.sliced, 2, profile))
        for other in others:
            assert the_devices(the_node(seen, node), driver.sliced, other).in_use == 0
        assert not any(d.slice is None and d.in_use for d in the_node(seen, node).devices)

    await until(engine, in_use(node, driver.sliced, 0, profile))


async def test_a_drained_node_keeps_its_jobs_and_offers_nothing(driver: Driver, engine: Observes) -> None:
    before = the_totals(await look(engine), driver.whole.name)

    async with driver.held(driver.whole, 2) as node, driver.drained(node, "fan is noisy, see T-7"):
        seen = await until(engine, healthy(node, Health.DRAINED))
        closed = the_node(seen, node)
        devices = the_devices(closed, driver.whole)
        assert "fan is noisy, see T-7" in closed.reason
        assert devices.in_use == 2
        during = the_totals(seen, driver.whole.name)
        assert during.total == before.total
        assert during.nodes_drained >= 1
        assert during.unhealthy >= devices.total - 2
        assert during.free <= during.total - devices.total

    seen = await until(engine, healthy(node, Health.READY))
    assert the_devices(the_node(seen, node), driver.whole).in_use == 0


@pytest.mark.timeout(240)
async def test_a_lost_node_is_down_within_a_minute(driver: Driver, engine: Observes) -> None:
    async with driver.held(driver.whole, 1) as node:
        pass  # only to learn of a node that nobody else uses
    total = the_totals(await look(engine), driver.whole.name).total

    async with driver.lost(node):
        seen = await until(engine, healthy(node, Health.DOWN), within_seconds=60)
        assert the_totals(seen, driver.whole.name).total == total
        assert the_totals(seen, driver.whole.name).nodes_down >= 1

    await until(engine, healthy(node, Health.READY), within_seconds=60)


async def test_two_looks_at_an_unchanged_cluster_are_equal(driver: Driver, engine: Observes) -> None:
    for _ in range(3):  # somebody else may use the cluster between two looks, but hardly each time
        if await look(engine) == await look(engine):
            return
    pytest.fail("six looks, no two in a row the same")


async def test_an_adapter_may_be_closed_twice(driver: Driver) -> None:
    opened = driver.engine(driver.whole, driver.sliced)
    await look(opened)

    await opened.close()
    await opened.close()


@on("slurm-24", "slurm-26", "kubernetes")
async def test_what_no_pool_claims_is_counted_under_none(driver: Driver) -> None:
    profile = driver.sliced.slices[0]
    count = (await driver.counts())[driver.sliced.name, profile]
    opened = driver.engine(driver.whole)
    try:
        seen = await look(opened)
    finally:
        await opened.close()

    assert the_totals(seen, None, profile).total >= count
    assert {t.pool for t in pool_totals(seen.nodes)} == {None, driver.whole.name}


@on("virtual", "kubernetes")
async def test_sick_devices_are_not_free(driver: Driver, engine: Observes) -> None:
    async with driver.held(driver.whole, 1) as node:
        pass
    sickens = cast("Sickens", driver)

    async with sickens.sick(node, driver.whole, 2):
        seen = await until(
            engine, lambda seen: the_devices(the_node(seen, node), driver.whole).unhealthy == 2
        )
        assert the_node(seen, node).health is Health.READY
        assert the_totals(seen, driver.whole.name).unhealthy >= 2

    await until(engine, lambda seen: the_devices(the_node(seen, node), driver.whole).unhealthy == 0)
