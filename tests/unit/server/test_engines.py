"""The engines of one server: a virtual cluster is one thing, whoever asks for it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.engines.virtual.engine import VirtualEngine
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, VirtualPlace
from fairway.model.job import EngineId, JobState
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.server import EngineFactory
from fairway.services.plans import Planner, plan_cluster
from fairway.simulate.cluster.jobs import JobRequest
from tests.plans import apply_plan

DEMO = ClusterName("demo")
FLEET = parse_fleet(
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters: { demo: { engine: virtual } }
pools: { gpu: { cluster: demo, gpu: A100-80GB, capacity: owned, price: 1, virtual: { nodes: 2 } } }
teams:
  research: { guarantee: { gpu: 8 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, members: [bob] }
""",
    "fleet.yaml",
)
LARGER = replace(FLEET, pools=(replace(FLEET.pools[0], place=VirtualPlace(nodes=3)),))


async def test_every_loop_and_every_plan_sees_the_same_virtual_cluster() -> None:
    engines = EngineFactory()
    one = engine_of(engines, FLEET)
    applied = await apply_plan(one, await plan_cluster(one, FLEET, DEMO))
    assert applied.done
    assert not applied.left
    other = engine_of(engines, FLEET)
    assert (await plan_cluster(other, FLEET, DEMO)).changes == ()
    plan = await Planner(engines.for_reads).plan(FLEET)
    assert plan.failures == ()
    assert [c.changes for c in plan.clusters] == [()]


async def test_a_plan_for_other_pools_leaves_the_cluster_as_it_is() -> None:
    engines = EngineFactory()
    one = engine_of(engines, FLEET)
    await Planner(engines.for_reads).plan(LARGER)
    assert engine_of(engines, FLEET) is one


async def test_a_cluster_that_gets_more_nodes_keeps_its_policy() -> None:
    engines = EngineFactory()
    one = engine_of(engines, FLEET)
    await apply_plan(one, await plan_cluster(one, FLEET, DEMO))
    before = (await Planner(engines.for_reads).plan(LARGER)).clusters[0]
    resized = engine_of(engines, LARGER)
    assert len((await resized.observe()).nodes) == 3
    assert (await plan_cluster(resized, LARGER, DEMO)).fingerprint == before.fingerprint


def engine_of(engines: EngineFactory, fleet: Fleet) -> VirtualEngine:
    engine = engines(*fleet.engine_parts(DEMO))
    assert isinstance(engine, VirtualEngine)
    return engine


def job(engine: VirtualEngine, pool: str = "gpu") -> EngineId:
    request = JobRequest(UserName("alice"), PoolName(pool), gpus=8, team=TeamName("research"), seconds=3600)
    return engine.submit_natively(request)


async def states(engine: VirtualEngine) -> dict[EngineId, JobState]:
    return {job.engine_id: job.state for job in (await engine.changes(None, FLEET)).jobs}


async def test_a_new_price_ends_no_job_and_other_nodes_leave_none() -> None:
    engines = EngineFactory()
    engine = engine_of(engines, FLEET)
    await apply_plan(engine, await plan_cluster(engine, FLEET, DEMO))
    running = job(engine)
    (pool,), (cluster,) = FLEET.pools, FLEET.clusters
    pricing = replace(pool.pricing, discount=Decimal("0.1"))
    dearer = replace(
        FLEET,
        clusters=(replace(cluster, overhead={"power": Decimal(100)}),),
        pools=(replace(pool, price=Decimal(7), pricing=pricing),),
    )
    assert await states(engine_of(engines, dearer)) == {running: JobState.RUNNING}
    assert await states(engine_of(engines, LARGER)) == {}


async def test_a_pool_that_was_removed_and_added_again_takes_jobs() -> None:
    """Also of whoever keeps a reference to the engine, as the demo does."""
    other = replace(FLEET.pools[0], name=PoolName("other"))
    without = replace(FLEET, pools=(other,), teams=tuple(replace(t, grants=()) for t in FLEET.teams))
    engines = EngineFactory()
    engine = engine_of(engines, FLEET)
    for fleet in (FLEET, without, FLEET):
        now = engine_of(engines, fleet)
        await apply_plan(now, await plan_cluster(now, fleet, DEMO))
        with pytest.raises(Refused) if fleet is without else nullcontext():
            running = job(engine)
            assert await states(now) == {running: JobState.RUNNING}


@pytest.mark.parametrize("how", ["for_reads", "__call__"])
def test_a_server_whose_engines_are_elsewhere_builds_none(how: str) -> None:
    engines = EngineFactory("https://control.test")
    with pytest.raises(RuntimeError, match=r"demo is to be asked by https://control\.test alone"):
        getattr(engines, how)(FLEET.clusters[0], FLEET.pools)
