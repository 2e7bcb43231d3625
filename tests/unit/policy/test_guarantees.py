"""Guarantees against the devices that the nodes of a cluster have."""

from __future__ import annotations

from dataclasses import replace

from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node
from fairway.model.team import Supply
from fairway.policy.guarantees import count_devices, guarantees_to_check, guarantees_too_high
from tests.unit.engines.slurm.policy.made import fleet

HPC = ClusterName("hpc")
GPU = Supply(PoolName("gpu"))


def node(total: int, pool: str = "gpu", health: Health = Health.READY) -> Node:
    devices = (Devices(PoolName(pool), "gpu:a100", None, total, 0),)
    return Node(NodeName(f"n{total}"), health, "", devices)


def without_sizes() -> Fleet:
    here = fleet()
    return replace(here, pools=tuple(replace(pool, gpus=None) for pool in here.pools))


def test_more_than_the_nodes_have_is_an_objection() -> None:
    here = without_sizes()
    supplies = guarantees_to_check(here, HPC)
    assert GPU in supplies
    total = sum(g.guarantee for t in here.teams if t.parent is None and (g := t.grant(GPU)))
    (objection,) = guarantees_too_high(
        here, (GPU,), count_devices((node(total - 2), node(1, health=Health.DOWN)))
    )
    assert (objection.code, objection.forceable) == ("GuaranteesTooHigh", True)
    assert f"add up to {total}" in objection.message and f"have {total - 1}" in objection.message
    assert "borrow: { gpu: 1 }" in objection.hint
    # Nodes that are down are counted: they come back.
    assert (
        list(guarantees_too_high(here, (GPU,), count_devices((node(total - 1), node(1, health=Health.DOWN)))))
        == []
    )


def test_a_size_in_the_file_and_pools_that_grow_are_not_compared() -> None:
    here = without_sizes()
    sized = replace(here, pools=tuple(replace(pool, gpus=8) for pool in here.pools))
    assert guarantees_to_check(sized, HPC) == ()
    grows = replace(here, pools=tuple(replace(pool, capacity=Capacity.ON_DEMAND) for pool in here.pools))
    assert guarantees_to_check(grows, HPC) == ()


def test_devices_of_another_pool_or_slice_do_not_count() -> None:
    here = without_sizes()
    cut = Node(
        NodeName("cut"), Health.READY, "", (Devices(PoolName("gpu"), "gpu:1g", SliceName("1g.10gb"), 99, 0),)
    )
    assert list(guarantees_too_high(here, (GPU,), count_devices((node(99, "other"), cut)))) != []
