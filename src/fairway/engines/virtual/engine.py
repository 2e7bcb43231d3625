"""The virtual engine: nodes made from the fleet file, moved by method calls instead of jobs and failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fairway import __version__
from fairway.engines.port import Refused
from fairway.model.fleet import Cluster, Pool, VirtualPlace
from fairway.model.names import NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node, Observation


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Devices that something holds on one node; two holds are never the same one."""

    node: NodeName
    pool: PoolName
    slice: SliceName | None
    devices: int


@dataclass(slots=True)
class _Machine:
    name: NodeName
    pool: Pool
    totals: dict[SliceName | None, int]
    holds: list[Hold] = field(default_factory=list)
    sick: dict[SliceName | None, int] = field(default_factory=dict)
    drained: str | None = None
    """The reason, when it is."""
    lost: bool = False

    def in_use(self, slice_: SliceName | None) -> int:
        return sum(hold.devices for hold in self.holds if hold.slice == slice_)

    def free(self, slice_: SliceName | None) -> int:
        if self.lost or self.drained is not None:
            return 0
        return max(0, self.totals.get(slice_, 0) - self.in_use(slice_) - self.sick.get(slice_, 0))

    def seen(self) -> Node:
        if self.lost:
            health, reason = Health.DOWN, "not responding"
        elif self.drained is not None:
            health, reason = Health.DRAINED, self.drained
        else:
            health, reason = Health.READY, ""
        devices = tuple(
            Devices(
                pool=self.pool.name,
                kind=self.pool.gpu.name if slice_ is None else f"{self.pool.gpu.name}:{slice_}",
                slice=slice_,
                total=total,
                in_use=self.in_use(slice_),
                unhealthy=self.sick.get(slice_, 0),
            )
            for slice_, total in self.totals.items()
        )
        return Node(self.name, health, reason, devices)


class VirtualEngine:
    """A cluster of the nodes its pools describe, all well and idle at first."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> None:
        self._cluster = cluster
        self._machines = {machine.name: machine for pool in pools for machine in _machines(pool)}

    async def observe(self) -> Observation:
        nodes = (self._machines[name].seen() for name in sorted(self._machines))
        return Observation(self._cluster.name, f"virtual {__version__}", tuple(nodes))

    async def close(self) -> None:
        """Nothing to let go of."""

    def hold(self, pool: PoolName, devices: int, slice_: SliceName | None = None) -> Hold:
        """Take devices on the first node that has as many free. Raises Refused if none has."""
        for machine in self._machines.values():
            if machine.pool.name == pool and machine.free(slice_) >= devices:
                hold = Hold(machine.name, pool, slice_, devices)
                machine.holds.append(hold)
                return hold
        raise Refused(
            "NotEnoughFree",
            f"no node of pool {pool} has {devices} free {slice_ or 'GPUs'}",
            f"fairway get nodes --pool {pool}",
        )

    def release(self, hold: Hold) -> None:
        self._machines[hold.node].holds.remove(hold)

    def drain(self, node: NodeName, reason: str) -> None:
        """Close a node to new work; what is held there stays held."""
        self._machines[node].drained = reason

    def resume(self, node: NodeName) -> None:
        self._machines[node].drained = None

    def lose(self, node: NodeName) -> None:
        """The node dies. What it ran stays on the books until it is released, as engines keep it a while."""
        self._machines[node].lost = True

    def recover(self, node: NodeName) -> None:
        self._machines[node].lost = False

    def sicken(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """So many devices of the node are unhealthy now; 0 heals them."""
        self._machines[node].sick[slice_] = devices


def _machines(pool: Pool) -> Iterator[_Machine]:
    if not isinstance(pool.place, VirtualPlace):
        raise TypeError(f"pool {pool.name} has no size: it is not of a virtual cluster")
    place = pool.place
    if place.slices_per_gpu:
        totals: dict[SliceName | None, int] = {
            slice_: place.gpus_per_node * count for slice_, count in place.slices_per_gpu.items()
        }
    else:
        totals = {None: place.gpus_per_node}
    for number in range(1, place.nodes + 1):
        yield _Machine(NodeName(f"{pool.name}-{number:04}"), pool, dict(totals))
