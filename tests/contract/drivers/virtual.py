"""Moves a virtual cluster, by the methods that stand for jobs and failures there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal

from fairway.engines.port import Observes
from fairway.engines.virtual import VirtualEngine
from fairway.model.fleet import Capacity, Cluster, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from tests.contract.driver import Driver, Kind

_CLUSTER = ClusterName("virtual")
_GPU = GpuType("A100-80GB", memory_gb=80)
_SLICE = SliceName("1g.10gb")


class VirtualDriver:
    cluster = Cluster(_CLUSTER, VirtualConnection())
    whole = Pool(
        PoolName("whole"), _CLUSTER, _GPU, Capacity.OWNED, Decimal(1), VirtualPlace(nodes=3, gpus_per_node=8)
    )
    sliced = Pool(
        PoolName("sliced"),
        _CLUSTER,
        _GPU,
        Capacity.OWNED,
        Decimal(1),
        VirtualPlace(nodes=1, gpus_per_node=2, slices_per_gpu={_SLICE: 7}),
        slices=(_SLICE,),
    )

    def __init__(self) -> None:
        self._engine = VirtualEngine(self.cluster, (self.whole, self.sliced))

    def engine(self, *pools: Pool) -> Observes:
        assert pools == (self.whole, self.sliced), "a virtual cluster is made of its pools"
        return self._engine

    async def counts(self) -> Mapping[Kind, int]:
        return {(self.whole.name, None): 24, (self.sliced.name, _SLICE): 14}

    @asynccontextmanager
    async def held(
        self, pool: Pool, devices: int, slice_: SliceName | None = None
    ) -> AsyncIterator[NodeName]:
        hold = self._engine.occupy(pool.name, devices, slice_)
        yield hold.node
        self._engine.vacate(hold)

    @asynccontextmanager
    async def drained(self, node: NodeName, reason: str) -> AsyncIterator[None]:
        self._engine.simulator.drain(node, reason)
        yield
        self._engine.simulator.resume(node)

    @asynccontextmanager
    async def lost(self, node: NodeName) -> AsyncIterator[None]:
        self._engine.simulator.lose(node)
        yield
        self._engine.simulator.recover(node)

    @asynccontextmanager
    async def sick(self, node: NodeName, pool: Pool, devices: int) -> AsyncIterator[None]:
        self._engine.simulator.set_unhealthy(node, devices)
        yield
        self._engine.simulator.set_unhealthy(node, 0)


@asynccontextmanager
async def open_driver(name: str) -> AsyncIterator[Driver]:
    yield VirtualDriver()
