"""The engines of one server: a virtual cluster is one thing, whoever asks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.files import parse_fleet
from fairway.model.fleet import VirtualPlace
from fairway.model.names import ClusterName
from fairway.server import EngineFactory
from fairway.services.plans import Planner, plan_cluster
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
    one = engines(FLEET.clusters[0], FLEET.pools)
    applied = await apply_plan(one, await plan_cluster(one, FLEET, DEMO))
    assert applied.done
    assert not applied.left
    other = engines(FLEET.clusters[0], FLEET.pools)
    assert (await plan_cluster(other, FLEET, DEMO)).changes == ()
    plan = await Planner(engines.for_reads).plan(FLEET)
    assert plan.failures == ()
    assert [c.changes for c in plan.clusters] == [()]


async def test_a_plan_for_other_pools_leaves_the_cluster_as_it_is() -> None:
    engines = EngineFactory()
    one = engines(FLEET.clusters[0], FLEET.pools)
    await Planner(engines.for_reads).plan(LARGER)
    assert engines(FLEET.clusters[0], FLEET.pools) is one


async def test_a_cluster_that_gets_more_nodes_keeps_its_policy() -> None:
    engines = EngineFactory()
    one = engines(FLEET.clusters[0], FLEET.pools)
    await apply_plan(one, await plan_cluster(one, FLEET, DEMO))
    before = (await Planner(engines.for_reads).plan(LARGER)).clusters[0]
    resized = engines(LARGER.clusters[0], LARGER.pools)
    assert len((await resized.observe()).nodes) == 3
    assert (await plan_cluster(resized, LARGER, DEMO)).fingerprint == before.fingerprint


@pytest.mark.parametrize("how", ["for_reads", "__call__"])
def test_a_server_whose_engines_are_elsewhere_builds_none(how: str) -> None:
    engines = EngineFactory("https://control.test")
    with pytest.raises(RuntimeError, match=r"demo is to be asked by https://control\.test alone"):
        getattr(engines, how)(FLEET.clusters[0], FLEET.pools)
