"""The nodes of a simulated cluster, and an index of their free devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fairway.engines.virtual.simulator.jobs import SimJob
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Devices, Health, Node
from fairway.model.team import Supply


class DeviceIndex:
    """An index of the devices of one supply on all nodes. A place is the number of a node in this index.

    Listed places are grouped in buckets by their number of free devices, so that the tightest fit is found in
    O(devices per node), however many nodes there are, and moving a place costs O(1). Counts that are updated
    with each move tell whether anything fits at all.
    """

    def __init__(
        self, number: int, supply: Supply, pool: Pool, per_node: int, nodes: tuple[NodeName, ...]
    ) -> None:
        self.number: Final = number
        """The number of the supply in its cluster."""
        self.supply: Final = supply
        self.spot: Final = pool.capacity is Capacity.SPOT
        self.nodes: Final = nodes
        self.node_size: Final = per_node
        self.per_rack: Final = min(_virtual_place(pool).nodes_per_rack or len(nodes), len(nodes))
        self.total: Final = [per_node] * len(nodes)
        self.free: Final = [per_node] * len(nodes)
        """Devices that are neither held nor unhealthy; negative if held devices become unhealthy."""
        self.unhealthy: Final = [0] * len(nodes)
        self.open: Final = [True] * len(nodes)
        self.listed: Final = [True] * len(nodes)
        """Whether the place is in a bucket: open and not reserved."""
        self.positions: Final = list(range(len(nodes) - 1, -1, -1))
        """The position of each place in its bucket."""
        self.buckets: Final[list[list[int]]] = [[] for _ in range(per_node + 1)]
        # The last place of a bucket is used first: so nodes fill up in order of their names.
        self.buckets[per_node] = list(range(len(nodes) - 1, -1, -1))
        self.available: Final = [per_node] * len(nodes)
        """Devices that are free or held by preemptible jobs."""
        self.free_at_least: Final = [len(nodes)] * (per_node + 1)
        """The number of listed places with at least this many free devices."""
        self.available_at_least: Final = [len(nodes)] * (per_node + 1)
        """The number of listed places with at least this many available devices."""
        self.free_total = per_node * len(nodes)
        """Free devices of listed places."""
        self.unlisted_changes = 0
        """Counts changes of places that are not listed."""
        self.busy_until: Final = [0.0] * len(nodes)
        """When the last job of a place ends at its time limit; preemptible jobs do not count."""
        self.jobs_on: Final[list[dict[SimJob, None]]] = [{} for _ in nodes]

    def rack(self, place: int) -> int:
        return place // self.per_rack

    @property
    def max_free(self) -> int:
        """The largest number of free devices on one listed place."""
        return next((count for count in range(self.node_size, 0, -1) if self.free_at_least[count]), 0)

    def find_for(self, job: SimJob) -> tuple[int, ...] | None:
        """Find the listed places that fit the job most tightly. Returns None if it does not fit."""
        nodes, per_node, buckets = job.nodes, job.per_node, self.buckets
        if self.free_at_least[per_node] < nodes:
            return None
        if job.together:
            return self._find_in_rack(nodes, per_node)
        if nodes == 1:
            count = per_node
            while not buckets[count]:
                count += 1
            return (buckets[count][-1],)
        found: list[int] = []
        for count in range(per_node, self.node_size + 1):
            bucket = buckets[count]
            if bucket:
                found += bucket[: -(nodes - len(found)) - 1 : -1]
                if len(found) == nodes:
                    break
        return tuple(found)

    def _find_in_rack(self, nodes: int, per_node: int) -> tuple[int, ...] | None:
        """Find places in the rack that has the fewest to spare. O(places with enough free devices)."""
        racks: dict[int, list[int]] = {}
        for count in range(per_node, self.node_size + 1):
            for place in self.buckets[count]:
                racks.setdefault(place // self.per_rack, []).append(place)
        enough = [(len(places), rack) for rack, places in racks.items() if len(places) >= nodes]
        return tuple(racks[min(enough)[1]][:nodes]) if enough else None

    def change_free(self, place: int, by: int, preemptible: bool = False) -> None:
        """Add `by` to the free devices of a place. `preemptible`: because of a preemptible job."""
        before = self.free[place]
        after = self.free[place] = before + by
        listed = self.listed[place]
        if not preemptible:
            available_before = self.available[place]
            available_after = self.available[place] = available_before + by
            if listed:
                _update_counts(self.available_at_least, available_before, available_after)
        if listed:
            if before < 0 or after < 0:  # held devices became unhealthy
                before, after = max(before, 0), max(after, 0)
            if before != after:
                _update_counts(self.free_at_least, before, after)
                buckets, positions = self.buckets, self.positions
                bucket = buckets[before]
                last = bucket.pop()
                if last != place:
                    position = positions[place]
                    bucket[position] = last
                    positions[last] = position
                bucket = buckets[after]
                positions[place] = len(bucket)
                bucket.append(place)
                self.free_total += after - before
        else:
            self.unlisted_changes += 1

    def set_listed(self, place: int, listed: bool) -> None:
        """Add a place to its bucket, or remove it."""
        if self.listed[place] == listed:
            return
        self.listed[place] = listed
        self.unlisted_changes += 1
        free, by = max(self.free[place], 0), 1 if listed else -1
        bucket, positions = self.buckets[free], self.positions
        if listed:
            positions[place] = len(bucket)
            bucket.append(place)
        elif (last := bucket.pop()) != place:
            position = positions[place]
            bucket[position] = last
            positions[last] = position
        self.free_total += by * free
        for count in range(free + 1):
            self.free_at_least[count] += by
        for count in range(max(self.available[place], 0) + 1):
            self.available_at_least[count] += by

    def allocate(self, job: SimJob, places: tuple[int, ...]) -> None:
        """Allocate the job's devices on these places."""
        taken, preemptible, ends = -job.per_node, job.preemptible, job.latest_end
        busy_until, jobs_on = self.busy_until, self.jobs_on
        for place in places:
            self.change_free(place, taken, preemptible)
            jobs_on[place][job] = None
            if not preemptible and ends > busy_until[place]:
                busy_until[place] = ends

    def deallocate(self, job: SimJob, places: tuple[int, ...]) -> None:
        """Free the job's devices on these places."""
        freed, preemptible, ends = job.per_node, job.preemptible, job.latest_end
        busy_until, jobs_on = self.busy_until, self.jobs_on
        for place in places:
            jobs = jobs_on[place]
            del jobs[job]
            if not preemptible and ends >= busy_until[place]:
                busy_until[place] = max([j.latest_end for j in jobs if not j.preemptible], default=0.0)
            self.change_free(place, freed, preemptible)


def _update_counts(counts: list[int], before: int, after: int) -> None:
    """Update the counts for a place that has `after` devices instead of `before`; negative counts as 0."""
    if after > before:
        for count in range((before if before > 0 else 0) + 1, after + 1):
            counts[count] += 1
    else:
        for count in range((after if after > 0 else 0) + 1, before + 1):
            counts[count] -= 1


class SimulatedNode:
    """A node with its health, and its place in each index of its pool."""

    __slots__ = ("drained", "lost", "name", "places", "pool")

    def __init__(self, name: NodeName, pool: Pool) -> None:
        self.name: Final = name
        self.pool: Final = pool
        self.places: Final[dict[SliceName | None, tuple[DeviceIndex, int]]] = {}
        self.drained: str | None = None
        """The reason if the node is drained."""
        self.lost = False

    @property
    def ready(self) -> bool:
        return not self.lost and self.drained is None

    def free(self, slice_: SliceName | None) -> int:
        """Return the free devices, 0 if the node is not ready."""
        index, place = self.places[slice_]
        return max(0, index.free[place]) if self.ready else 0

    def observed(self) -> Node:
        """Convert to the node of an observation."""
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
                total=index.total[place],
                in_use=index.total[place] - index.unhealthy[place] - index.free[place],
                unhealthy=index.unhealthy[place],
            )
            for slice_, (index, place) in self.places.items()
        )
        return Node(self.name, health, reason, devices)


def build_nodes(pools: Iterable[Pool]) -> tuple[dict[Supply, DeviceIndex], dict[NodeName, SimulatedNode]]:
    """Build the nodes of pools, healthy and idle, and the index of each supply."""
    indexes: dict[Supply, DeviceIndex] = {}
    nodes: dict[NodeName, SimulatedNode] = {}
    for pool in pools:
        pool_nodes = [SimulatedNode(name, pool) for name in _node_names(pool)]
        nodes |= {node.name: node for node in pool_nodes}
        names = tuple(node.name for node in pool_nodes)
        for supply, per_node in _supplies(pool):
            index = DeviceIndex(len(indexes), supply, pool, per_node, names)
            indexes[supply] = index
            for number, node in enumerate(pool_nodes):
                node.places[supply.slice] = (index, number)
    return indexes, nodes


def _virtual_place(pool: Pool) -> VirtualPlace:
    if not isinstance(pool.place, VirtualPlace):
        raise TypeError(f"pool {pool.name} has no size: it is not of a virtual cluster")
    return pool.place


def _node_names(pool: Pool) -> Iterator[NodeName]:
    return (NodeName(f"{pool.name}-{number:04}") for number in range(1, _virtual_place(pool).nodes + 1))


def _supplies(pool: Pool) -> Iterator[tuple[Supply, int]]:
    place = _virtual_place(pool)
    if not place.slices_per_gpu:
        yield Supply(pool.name), place.gpus_per_node
    for slice_, count in place.slices_per_gpu.items():
        yield Supply(pool.name, slice_), place.gpus_per_node * count
