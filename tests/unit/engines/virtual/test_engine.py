from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.virtual import VirtualEngine
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Health, PoolTotals, pool_totals

CLUSTER = Cluster(ClusterName("demo"), VirtualConnection())
WHOLE, SLICED, SLICE = PoolName("whole"), PoolName("sliced"), SliceName("1g.10gb")


def engine() -> VirtualEngine:
    gpu = GpuType("A100-80GB", memory_gb=80)
    return VirtualEngine(
        CLUSTER,
        (
            Pool(
                WHOLE, CLUSTER.name, gpu, Capacity.OWNED, Decimal(1), VirtualPlace(nodes=2, gpus_per_node=4)
            ),
            Pool(
                SLICED,
                CLUSTER.name,
                gpu,
                Capacity.OWNED,
                Decimal(1),
                VirtualPlace(nodes=1, gpus_per_node=2, slices_per_gpu={SLICE: 7}),
                slices=(SLICE,),
            ),
        ),
    )


async def totals(of: VirtualEngine) -> tuple[PoolTotals, ...]:
    return pool_totals((await of.observe()).nodes)


async def test_nodes_are_named_after_their_pool() -> None:
    seen = await engine().observe()

    assert [node.name for node in seen.nodes] == ["sliced-0001", "whole-0001", "whole-0002"]
    assert {d.slice: d.total for d in seen.nodes[0].devices} == {SLICE: 14}


async def test_holds_go_where_there_is_room_and_no_further() -> None:
    cluster = engine()

    nodes = [cluster.occupy(WHOLE, 3).node for _ in range(2)]

    assert nodes == ["whole-0001", "whole-0002"]
    with pytest.raises(Refused):
        cluster.occupy(WHOLE, 2)
    with pytest.raises(Refused):
        cluster.occupy(WHOLE, 1, SLICE)


async def test_only_the_hold_that_is_released_ends() -> None:
    cluster = engine()
    one, same = cluster.occupy(WHOLE, 1), cluster.occupy(WHOLE, 1)

    cluster.vacate(one)

    assert (await totals(cluster))[1].in_use == same.devices
    with pytest.raises(ValueError, match="not in list"):
        cluster.vacate(one)


async def test_a_node_that_is_not_well_takes_nothing() -> None:
    cluster = engine()
    cluster.simulator.drain(NodeName("whole-0001"), "fan")
    cluster.simulator.lose(NodeName("whole-0002"))

    with pytest.raises(Refused):
        cluster.occupy(WHOLE, 1)
    assert [node.health for node in (await cluster.observe()).nodes[1:]] == [Health.DRAINED, Health.DOWN]

    cluster.simulator.resume(NodeName("whole-0001"))
    assert cluster.occupy(WHOLE, 4).node == "whole-0001"


moves = st.lists(
    st.tuples(
        st.sampled_from(["hold", "slice", "release", "drain", "resume", "lose", "recover", "sicken"]),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(moves)
async def test_it_adds_up_whatever_happens(moves: list[tuple[str, int]]) -> None:
    cluster = engine()
    held = []
    for move, number in moves:
        node = NodeName(f"whole-000{number % 2 + 1}")
        try:
            match move:
                case "hold":
                    held.append(cluster.occupy(WHOLE, number))
                case "slice":
                    held.append(cluster.occupy(SLICED, number, SLICE))
                case "release" if held:
                    cluster.vacate(held.pop())
                case "drain":
                    cluster.simulator.drain(node, "fan")
                case "resume":
                    cluster.simulator.resume(node)
                case "lose":
                    cluster.simulator.lose(node)
                case "recover":
                    cluster.simulator.recover(node)
                case "sicken":
                    cluster.simulator.set_unhealthy(node, number)
        except Refused:
            pass
        for row in await totals(cluster):
            assert row.total == row.in_use + row.free + row.unhealthy
            assert min(row.in_use, row.free, row.unhealthy) >= 0
    assert sum(row.in_use for row in await totals(cluster)) == sum(hold.devices for hold in held)
