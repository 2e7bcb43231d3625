"""The nodes of a simulated cluster, and an index of their free devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Devices, Health, Node
from fairway.model.team import Supply
from fairway.simulate.cluster.jobs import SimJob


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The devices of one supply on one node."""

    name: NodeName
    supply: Supply
    total: int
    unhealthy: int = 0
    ready: bool = True
    """Whether it takes new jobs; the jobs of a drained node run on."""
    rack: int | None = None
    """None: the rack is not known, and the node counts as in the same rack as all others of its pool."""


class DeviceIndex:
    """An index of the devices of one supply on all nodes. A place is the number of a node in this index.

    Listed places are grouped in buckets by their number of free devices, so that the tightest fit is found in
    O(devices per node), however many nodes there are, and moving a place costs O(1). Counts that are updated
    with each move tell whether anything fits at all.
    """

    def __init__(self, number: int, supply: Supply, pool: Pool, nodes: Sequence[NodeSnapshot]) -> None:
        """Index healthy, idle and open nodes; `build_nodes` then sets what is not."""
        sizes, places = [node.total for node in nodes], range(len(nodes))
        self.number: Final = number
        """The number of the supply in its cluster."""
        self.supply: Final = supply
        self.spot: Final = pool.capacity is Capacity.SPOT
        self.nodes: Final = tuple(node.name for node in nodes)
        self.node_size: Final = max(sizes, default=0)
        """The devices of the largest node."""
        self.racks: Final = [node.rack or 0 for node in nodes]
        self.per_rack: Final = max(Counter(self.racks).values(), default=0)
        """The nodes of the largest rack."""
        self.total: Final = sizes
        self.free: Final = list(sizes)
        """Devices that are neither held nor unhealthy; negative if held devices become unhealthy."""
        self.unhealthy: Final = [0 for _ in places]
        self.open: Final = [True for _ in places]
        self.listed: Final = [True for _ in places]
        """Whether the place is in a bucket: open and not reserved."""
        self.positions: Final = [0 for _ in places]
        """The position of each place in its bucket."""
        self.buckets: Final[list[list[int]]] = [[] for _ in range(self.node_size + 1)]
        # The last place of a bucket is used first: so nodes fill up in order of their names.
        for place in reversed(places):
            self.positions[place] = len(self.buckets[sizes[place]])
            self.buckets[sizes[place]].append(place)
        self.available: Final = list(sizes)
        """Devices that are free or held by preemptible jobs."""
        self.free_at_least: Final = [sum(n >= count for n in sizes) for count in range(self.node_size + 1)]
        """The number of listed places with at least this many free devices."""
        self.available_at_least: Final = list(self.free_at_least)
        """The number of listed places with at least this many available devices."""
        self.free_total = sum(sizes)
        """Free devices of listed places."""
        self.unlisted_changes = 0
        """Counts changes of places that are not listed."""
        self.busy_until: Final = [0.0 for _ in places]
        """When the last job of a place ends at its time limit; preemptible jobs do not count."""
        self.jobs_on: Final[list[dict[SimJob, None]]] = [{} for _ in nodes]

    def rack(self, place: int) -> int:
        return self.racks[place]

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
            return self.in_one_rack(nodes, (p for bucket in buckets[per_node:] for p in bucket))
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

    def with_free(self, devices: int) -> Iterator[int]:
        """Generate the listed places with at least so many free devices, the tightest fit first."""
        for bucket in self.buckets[devices:]:
            yield from reversed(bucket)

    def in_one_rack(self, nodes: int, places: Iterable[int]) -> tuple[int, ...] | None:
        """Choose so many of the places in the rack that has the fewest of them to spare. O(places)."""
        racks: dict[int, list[int]] = {}
        for place in places:
            racks.setdefault(self.racks[place], []).append(place)
        enough = [(len(found), rack) for rack, found in racks.items() if len(found) >= nodes]
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


def build_nodes(
    pools: Iterable[Pool], layout: Iterable[NodeSnapshot] | None = None
) -> tuple[dict[Supply, DeviceIndex], dict[NodeName, SimulatedNode]]:
    """Build the nodes of pools, idle, and the index of each supply.

    `layout`: the nodes; None: those of virtual pools, all healthy. A node with devices of several pools
    counts as one node for each, `NODE/POOL` for all but the first.
    """
    pools = tuple(pools)
    if layout is None:
        layout = [node for pool in pools for node in _virtual_nodes(pool)]
    by_supply: dict[Supply, list[NodeSnapshot]] = {s: [] for pool in pools for s in pool.supplies}
    for one in layout:
        by_supply.setdefault(one.supply, []).append(one)
    indexes: dict[Supply, DeviceIndex] = {}
    nodes: dict[NodeName, SimulatedNode] = {}
    for pool in pools:
        for supply in (s for s in by_supply if s.pool == pool.name):
            index = DeviceIndex(len(indexes), supply, pool, by_supply[supply])
            indexes[supply] = index
            for place, one in enumerate(by_supply[supply]):
                node = nodes.setdefault(one.name, SimulatedNode(one.name, pool))
                if node.pool is not pool:
                    name = NodeName(f"{one.name}/{pool.name}")
                    node = nodes.setdefault(name, SimulatedNode(name, pool))
                node.places[supply.slice] = (index, place)
                if one.unhealthy:
                    index.unhealthy[place] = one.unhealthy
                    index.change_free(place, -one.unhealthy)
                if not one.ready:
                    node.drained = "not ready"
                    index.open[place] = False
                    index.set_listed(place, False)
    return indexes, nodes


def _virtual_nodes(pool: Pool) -> Iterator[NodeSnapshot]:
    place = pool.place
    if not isinstance(place, VirtualPlace):
        raise TypeError(f"pool {pool.name} has no size: it is not of a virtual cluster")
    for slice_, count in (*place.slices_per_gpu.items(),) or ((None, 1),):
        supply, total = Supply(pool.name, slice_), place.gpus_per_node * count
        for number in range(place.nodes):
            rack = None if place.nodes_per_rack is None else number // place.nodes_per_rack
            yield NodeSnapshot(NodeName(f"{pool.name}-{number + 1:04}"), supply, total, rack=rack)
