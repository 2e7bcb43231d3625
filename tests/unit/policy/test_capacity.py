"""What pools have, told apart by why nobody uses it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import (
    CapacitySpan,
    NodeDevices,
    NodeGroup,
    StoredCapacity,
    capacity_samples,
    capacity_update,
    fragmented,
)

GPU = Supply(PoolName("gpu"))
SMALL, LARGE = (Supply(PoolName("mig"), SliceName(s)) for s in ("1g.10gb", "3g.40gb"))
POOL = Pool(
    GPU.pool, ClusterName("hpc"), GpuType("A100", 80), Capacity.OWNED, Decimal(1), VirtualPlace(nodes=4)
)
MIG = replace(POOL, name=SMALL.pool, slices=(SliceName("1g.10gb"), SliceName("3g.40gb")))
READY, DRAINED, DOWN = Health.READY, Health.DRAINED, Health.DOWN


def nodes(health: Health, total: int, in_use: int, unhealthy: int = 0, count: int = 1) -> NodeGroup:
    return NodeGroup(health, (NodeDevices(GPU, total, in_use, unhealthy),), count)


@pytest.mark.parametrize(
    ("least", "found"),
    [(None, 0), (1, 0), (2, 3), (4, 3), (5, 3 + 8), (9, 3 + 8 + 8)],
)
def test_free_is_fragmented_where_nothing_that_waits_fits(least: int | None, found: int) -> None:
    there = [
        nodes(READY, 8, 7, count=3),  # one free on each of three
        nodes(READY, 8, 4, count=2),
        nodes(READY, 8, 0),
        nodes(DRAINED, 8, 0),
    ]
    waiting = {} if least is None else {GPU: least}
    assert fragmented(there, waiting).get(GPU, 0) == found


def test_what_is_held_back_is_not_free() -> None:
    assert fragmented([nodes(READY, 8, 4, unhealthy=3)], {GPU: 2}) == {GPU: 1}


def test_unheld_devices_of_nodes_that_take_no_work() -> None:
    there = [nodes(READY, 8, 2, 1, count=2), nodes(DRAINED, 8, 3), nodes(DOWN, 8, 8), nodes(DOWN, 8, 0)]
    (sample,) = capacity_samples((POOL,), there, {}, lambda pool, slices: 0)
    assert sample == CapacitySample(GPU, total=40, drained=5, down=2 + 8, fragmented=0, gpus=40)


def test_the_gpus_of_a_sliced_pool_are_counted_once() -> None:
    there = [NodeGroup(READY, (NodeDevices(SMALL, 7, 0), NodeDevices(LARGE, 2, 1)), 3)]
    seen = capacity_samples((MIG,), there, {}, lambda pool, slices: sum(slices.values()) // 4)
    assert [(sample.supply, sample.total, sample.gpus) for sample in seen] == [(SMALL, 21, 6), (LARGE, 6, 0)]
    told = capacity_samples((replace(MIG, gpus=5),), there, {}, lambda pool, slices: 99)
    assert [sample.gpus for sample in told] == [5, 0]


def test_devices_of_no_pool_of_the_cluster_are_left_out() -> None:
    assert capacity_samples((MIG,), [nodes(READY, 8, 0)], {}, lambda pool, slices: 0) == ()


A, B = CapacitySample(GPU, 8, gpus=8), CapacitySample(GPU, 8, drained=8, gpus=8)
HOUR = 3600


def test_what_stays_is_closed_by_full_hours() -> None:
    known = [StoredCapacity(A, 2 * HOUR)]
    assert capacity_update(known, [A], 2 * HOUR + 50, 2 * HOUR) is None
    later = capacity_update(known, [A], 5 * HOUR + 50, 5 * HOUR)
    assert later is not None
    assert later.closed == (CapacitySpan(A, 2 * HOUR, 5 * HOUR),)
    assert later.now == (StoredCapacity(A, 5 * HOUR),)


def test_what_changes_held_until_it_was_seen() -> None:
    change = capacity_update([StoredCapacity(A, HOUR)], [B], 3 * HOUR + 7, 3 * HOUR)
    assert change is not None
    assert change.closed == (CapacitySpan(A, HOUR, 3 * HOUR + 7),)
    assert change.now == (StoredCapacity(B, 3 * HOUR + 7),)


def test_what_is_gone_is_closed_and_what_is_new_begins() -> None:
    other = CapacitySample(SMALL, 7)
    change = capacity_update([StoredCapacity(A, HOUR)], [other], HOUR + 9, HOUR)
    assert change is not None
    assert (change.closed, change.now, change.gone) == (
        (CapacitySpan(A, HOUR, HOUR + 9),),
        (StoredCapacity(other, HOUR + 9),),
        (GPU,),
    )


def test_a_clock_that_went_back_closes_nothing_twice() -> None:
    change = capacity_update([StoredCapacity(A, HOUR + 100)], [B], HOUR + 90, HOUR)
    assert change is not None
    assert change.closed == ()
    assert change.now == (StoredCapacity(B, HOUR + 100),)
