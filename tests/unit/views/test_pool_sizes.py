"""Sizes of pools for a replay, from what is observed of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fairway.model.fleet import Capacity, Pool, SlurmPlace, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import SliceName
from fairway.views.pool_sizes import observed_sizes
from fairway.wire import fleet as wire
from tests.unit.simulate.replay.fleets import GPU, fleet, pool, team


def seen(name: str, gpus: wire.PoolCounts | None = None, *cuts: wire.PoolSliceCounts) -> wire.Pool:
    return wire.Pool(
        name=name,
        reachable=True,
        observed_at=None,
        age_seconds=None,
        cluster="lab",
        gpu="A100-80GB",
        slice_kinds=[],
        capacity=Capacity.OWNED,
        price_per_gpu_hour=Decimal(2),
        currency="USD",
        gpus=gpus,
        slices=list(cuts) or None,
    )


def counts(total: int, nodes: int) -> dict[str, int]:
    return {
        "total": total,
        "in_use": 0,
        "free": total,
        "unhealthy": 0,
        "nodes": nodes,
        "nodes_drained": 0,
        "nodes_down": 0,
    }


def on_slurm(*slices: str) -> Pool:
    return replace(
        pool(), gpu=CATALOGUE["A100-80GB"], place=SlurmPlace("gpu"), slices=tuple(map(SliceName, slices))
    )


def test_whole_gpus() -> None:
    found = fleet(team("red"), pools=(on_slurm(),))
    assert observed_sizes(found, [seen(GPU, wire.PoolCounts(**counts(30, 4)))]) == {GPU: VirtualPlace(4, 8)}


def test_gpus_of_slices_are_as_many_as_the_slices_of_a_node_need() -> None:
    found = fleet(team("red"), pools=(on_slurm("1g.10gb", "3g.40gb"),))
    cuts = [
        wire.PoolSliceCounts(slice="1g.10gb", **counts(24, 2)),
        wire.PoolSliceCounts(slice="3g.40gb", **counts(8, 2)),
    ]
    size = observed_sizes(found, [seen(GPU, None, *cuts)])[GPU]
    assert size == VirtualPlace(2, 4, {SliceName("1g.10gb"): 3, SliceName("3g.40gb"): 1})


def test_nothing_for_virtual_pools_and_for_those_not_observed() -> None:
    assert observed_sizes(fleet(team("red")), [seen(GPU, wire.PoolCounts(**counts(8, 1)))]) == {}
    found = fleet(team("red"), pools=(on_slurm(),))
    assert observed_sizes(found, []) == observed_sizes(found, [seen(GPU)]) == {}
