"""Replicas of time-slicing and MPS are parts of a GPU, whether a pool declares them or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.cost.rates import gpus_behind
from fairway.engines.kubernetes.jobs.join import SupplyLookup, join
from fairway.engines.kubernetes.jobs.observed import ObservedJob
from fairway.engines.kubernetes.nodes.devices import REPLICAS
from fairway.engines.kubernetes.nodes.facts import PodDevices
from fairway.engines.kubernetes.policy.advice import UNDECLARED
from fairway.engines.kubernetes.policy.read import _capacities
from fairway.engines.kubernetes.policy.translate import translate
from fairway.model.fleet import Pool
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.observation import Devices, Health
from fairway.model.team import Supply
from fairway.policy.capacity import NodeDevices, NodeGroup, capacity_samples
from tests.unit.engines.kubernetes.jobs.test_join import FLEET, a_job, a_pod
from tests.unit.engines.kubernetes.nodes.made import node, pool
from tests.unit.engines.kubernetes.nodes.test_observe import GPU, facts, only
from tests.unit.engines.kubernetes.policy.fleets import nothing

SHARED = "nvidia.com/gpu.shared"
FOUR = {REPLICAS: "4", "nvidia.com/gpu.sharing-strategy": "mps"}
P = PoolName("p")
QUARTER = SliceName("shared-4")


@pytest.mark.parametrize(
    ("devices", "pools", "seen"),
    [
        ({GPU: 16}, [pool("p")], (P, GPU, QUARTER, 16)),  # time-slicing without another name
        ({SHARED: 16}, [pool("p")], (P, SHARED, QUARTER, 16)),  # with one
        ({GPU: 16}, [pool("p", slices=("shared-4",))], (P, GPU, QUARTER, 16)),
        ({SHARED: 16}, [pool("p", slices=("shared-4",), resource=SHARED)], (P, SHARED, QUARTER, 16)),
        ({GPU: 16}, [pool("p", slices=("shared-2",))], (P, GPU, QUARTER, 16)),  # the node knows better
        ({GPU: 16}, [], (None, GPU, QUARTER, 16)),
        ({SHARED: 16}, [pool("p", slices=("1g.10gb",))], (None, SHARED, QUARTER, 16)),
    ],
)
def test_what_a_node_with_four_replicas_has(
    devices: dict[str, int], pools: list[Pool], seen: tuple[PoolName | None, str, SliceName, int]
) -> None:
    held = PodDevices("n", tuple((name, 3) for name in devices))
    owner, kind, slice_, total = seen
    assert only(facts(devices, labels=FOUR), *pools, held) == (Devices(owner, kind, slice_, total, in_use=3),)


def test_capacity_is_that_of_the_gpus() -> None:
    """Sixteen replicas of four GPUs, which were sixteen GPUs before."""
    of = replace(pool("p"), gpu=CATALOGUE["L40S"])
    (devices,) = only(facts({GPU: 16}, labels=FOUR), of)
    group = NodeGroup(Health.READY, (NodeDevices(Supply(P, devices.slice), devices.total, devices.in_use),))
    (sample,) = capacity_samples([of], [group], {}, lambda p, slices: gpus_behind(p.gpu, slices))
    assert (sample.supply, sample.total, sample.gpus) == (Supply(P, QUARTER), 16, 4)


@pytest.mark.parametrize("replicas", ["", "1", "0", "many"])
def test_a_node_that_shares_nothing_has_whole_gpus(replicas: str) -> None:
    assert only(facts(labels={REPLICAS: replicas}), pool("p")) == (Devices(P, GPU, None, 8, 0),)


A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


def test_jobs_hold_replicas_of_the_node_that_they_are_on() -> None:
    observed = a_observed(FOUR)
    lookup = SupplyLookup(FLEET, ClusterName("cloud"))
    assert join(observed, lookup).supply == Supply(PoolName("a100"), QUARTER)
    by_flavor = replace(observed, flavors=((GPU, "a100"),))
    assert join(by_flavor, lookup).supply == Supply(PoolName("a100"), QUARTER)
    assert join(by_flavor, lookup).attempts[0].devices == 2
    assert join(replace(a_observed({}), flavors=((GPU, "a100"),)), lookup).supply == Supply(PoolName("a100"))


def test_jobs_without_a_node_hold_what_most_nodes_of_their_pool_have() -> None:
    nodes = [tuple((A100 | labels).items()) for labels in (FOUR, FOUR, {})]
    lookup = SupplyLookup(FLEET, ClusterName("cloud"), nodes)
    gone = replace(a_observed(FOUR), flavors=((GPU, "a100"),), node_labels={}, pods=())
    assert join(gone, lookup).supply == Supply(PoolName("a100"), QUARTER)
    there = replace(a_observed({}), flavors=((GPU, "a100"),))
    assert join(there, lookup).supply == Supply(PoolName("a100"))


def a_observed(labels: dict[str, str]) -> ObservedJob:
    return ObservedJob(
        "research", "train", a_job(), pods=(a_pod(),), node_labels={"node-p": tuple((A100 | labels).items())}
    )


def test_a_plan_says_what_the_pool_does_not_declare() -> None:
    nodes = [
        node(metadata={"name": "n1", "labels": A100 | FOUR}, status={"capacity": {GPU: "16"}}),
        node(metadata={"name": "n2", "labels": A100}, status={"capacity": {GPU: "8"}}),
    ]
    settings = _capacities(nodes, FLEET.pools, {})
    assert settings[f"{UNDECLARED}a100"] == "shared-4"
    told = [
        n
        for n in translate(FLEET, ClusterName("cloud"), nothing(**settings)).notices
        if n.code == "SharingNotDeclared"
    ]
    assert len(told) == 1
    assert "pool a100 (shared-4, " in told[0].message
    assert "slices: [shared-4]" in told[0].hint
    quiet = _capacities(nodes[1:], FLEET.pools, {})
    codes = {n.code for n in translate(FLEET, ClusterName("cloud"), nothing(**quiet)).notices}
    assert "SharingNotDeclared" not in codes
