"""Nodes of a simulated cluster, and an index of the devices that are free on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fairway.engines.virtual.simulator.jobs import SimJob
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Devices, Health, Node
from fairway.model.team import Supply


class DeviceIndex:
    """Every node's devices of one supply. A place is the number of a node in here.

    Open places that nobody reserved stand in one bucket for each count of free devices, so the tightest fit
    is found in O(devices of a node) whatever the number of nodes, and moving a place costs O(1). Whether
    anything fits at all is read off a count that each move keeps in step.
    """

    __slots__ = (
        "at",
        "at_least",
        "buckets",
        "busy_until",
        "capacity",
        "free",
        "free_total",
        "jobs_on",
        "listed",
        "loose_at",
        "loose_at_least",
        "most",
        "nodes",
        "number",
        "open",
        "per_rack",
        "sick",
        "spot",
        "supply",
        "total",
        "unlisted_moves",
    )

    def __init__(
        self, number: int, supply: Supply, pool: Pool, per_node: int, nodes: tuple[NodeName, ...]
    ) -> None:
        place = _size(pool)
        self.number: Final = number
        """Which of the cluster's supplies it is of."""
        self.supply: Final = supply
        self.spot: Final = pool.capacity is Capacity.SPOT
        self.nodes: Final = nodes
        self.most: Final = per_node
        self.capacity: Final = per_node * len(nodes)
        self.per_rack: Final = place.nodes_per_rack or len(nodes)
        self.total: Final = [per_node] * len(nodes)
        self.free: Final = [per_node] * len(nodes)
        """Not held and not sick; below 0 when devices that are held sicken."""
        self.sick: Final = [0] * len(nodes)
        self.open: Final = [True] * len(nodes)
        self.listed: Final = [True] * len(nodes)
        """Stands in a bucket: open, and nobody reserved it."""
        self.at: Final = list(range(len(nodes)))
        """Where in its bucket each place stands."""
        self.buckets: Final[list[list[int]]] = [[] for _ in range(per_node + 1)]
        # The last of a bucket is taken first: nodes fill up in the order of their names.
        self.buckets[per_node] = list(range(len(nodes) - 1, -1, -1))
        for position, place_number in enumerate(self.buckets[per_node]):
            self.at[place_number] = position
        self.loose_at: Final = [per_node] * len(nodes)
        """Free, or held by jobs that are preemptible always."""
        self.at_least: Final = [len(nodes)] * (per_node + 1)
        """How many listed places have at least so many devices free."""
        self.loose_at_least: Final = [len(nodes)] * (per_node + 1)
        """As at_least, of devices that are loose."""
        self.free_total = self.capacity
        """Free devices of listed places."""
        self.unlisted_moves = 0
        """How often something changed on places that are not listed."""
        self.busy_until: Final = [0.0] * len(nodes)
        """When the last job of a place ends by its time limit; what is preemptible always does not count."""
        self.jobs_on: Final[list[dict[SimJob, None]]] = [{} for _ in nodes]

    def rack(self, place: int) -> int:
        return place // self.per_rack

    @property
    def most_free(self) -> int:
        """The most devices any listed place has free."""
        at_least = self.at_least
        for count in range(self.most, 0, -1):
            if at_least[count]:
                return count
        return 0

    def find_for(self, job: SimJob) -> tuple[int, ...] | None:
        """Places for the job, the tightest; None: there is no room for it."""
        if job.together:
            return self.find_together(job.nodes, job.per_node)
        return self.find(job.nodes, job.per_node)

    def find(self, nodes: int, per_node: int) -> tuple[int, ...] | None:
        """So many places with so much free each, the tightest; None: there are not so many."""
        if self.at_least[per_node] < nodes:
            return None
        buckets = self.buckets
        if nodes == 1:
            count = per_node
            while not buckets[count]:
                count += 1
            return (buckets[count][-1],)
        found: list[int] = []
        for count in range(per_node, self.most + 1):
            bucket = buckets[count]
            if bucket:
                found += bucket[: -(nodes - len(found)) - 1 : -1]
                if len(found) == nodes:
                    break
        return tuple(found)

    def find_together(self, nodes: int, per_node: int) -> tuple[int, ...] | None:
        """As find, in one rack: the one with the fewest places to spare. O(places that are free enough)."""
        if self.at_least[per_node] < nodes:
            return None
        racks: dict[int, list[int]] = {}
        for count in range(per_node, self.most + 1):
            for place in self.buckets[count]:
                racks.setdefault(place // self.per_rack, []).append(place)
        enough = [(len(places), rack) for rack, places in racks.items() if len(places) >= nodes]
        return tuple(racks[min(enough)[1]][:nodes]) if enough else None

    def change_free(self, place: int, by: int, low: bool = False) -> None:
        """So many more (or fewer) devices of a place are free. `low`: by a job that is preemptible always."""
        before = self.free[place]
        after = self.free[place] = before + by
        listed = self.listed[place]
        if not low:
            loose_before = self.loose_at[place]
            loose_after = self.loose_at[place] = loose_before + by
            if listed:
                _move(self.loose_at_least, loose_before, loose_after)
        if listed:
            if before < 0 or after < 0:  # something that is held went sick
                before, after = max(before, 0), max(after, 0)
            if before != after:
                _move(self.at_least, before, after)
                buckets, at = self.buckets, self.at
                bucket = buckets[before]
                last = bucket.pop()
                if last != place:
                    position = at[place]
                    bucket[position] = last
                    at[last] = position
                bucket = buckets[after]
                at[place] = len(bucket)
                bucket.append(place)
                self.free_total += after - before
        else:
            self.unlisted_moves += 1

    def set_listed(self, place: int, listed: bool) -> None:
        """Put a place into its bucket, or take it out."""
        if self.listed[place] != listed:
            self.listed[place] = listed
            self.unlisted_moves += 1
            free, by = max(self.free[place], 0), 1 if listed else -1
            (self._list if listed else self._unlist)(place, free)
            for count in range(free + 1):
                self.at_least[count] += by
            for count in range(max(self.loose_at[place], 0) + 1):
                self.loose_at_least[count] += by

    def _list(self, place: int, count: int) -> None:
        bucket = self.buckets[count]
        self.at[place] = len(bucket)
        bucket.append(place)
        self.free_total += count

    def _unlist(self, place: int, count: int) -> None:
        bucket = self.buckets[count]
        last = bucket.pop()
        if last != place:
            position = self.at[place]
            bucket[position] = last
            self.at[last] = position
        self.free_total -= count

    def put(self, job: SimJob, places: tuple[int, ...]) -> None:
        """The job holds its devices there from now on."""
        taken, low, ends = -job.per_node, job.low, job.ends
        busy_until, jobs_on = self.busy_until, self.jobs_on
        for place in places:
            self.change_free(place, taken, low)
            jobs_on[place][job] = None
            if not low and ends > busy_until[place]:
                busy_until[place] = ends

    def remove(self, job: SimJob, places: tuple[int, ...]) -> None:
        """The job holds nothing there any more."""
        freed, low, ends = job.per_node, job.low, job.ends
        busy_until, jobs_on = self.busy_until, self.jobs_on
        for place in places:
            here = jobs_on[place]
            del here[job]
            if not low and ends >= busy_until[place]:
                busy_until[place] = max([j.ends for j in here if not j.low], default=0.0) if here else 0.0
            self.change_free(place, freed, low)

    def could_ever(self, nodes: int, per_node: int, together: bool) -> bool:
        """Whether there would be room if everything were idle and healthy."""
        rack = min(self.per_rack, len(self.nodes))
        return per_node <= self.most and nodes <= (rack if together else len(self.nodes))


def _move(at_least: list[int], before: int, after: int) -> None:
    """One place of `before` devices has `after` now; what is below 0 counts as 0."""
    if after > before:
        for count in range((before if before > 0 else 0) + 1, after + 1):
            at_least[count] += 1
    else:
        for count in range((after if after > 0 else 0) + 1, before + 1):
            at_least[count] -= 1


class SimulatedNode:
    """One node with its health and its place in each index of its pool."""

    __slots__ = ("drained", "lost", "name", "places", "pool")

    def __init__(self, name: NodeName, pool: Pool) -> None:
        self.name: Final = name
        self.pool: Final = pool
        self.places: Final[dict[SliceName | None, tuple[DeviceIndex, int]]] = {}
        self.drained: str | None = None
        """The reason, when it is."""
        self.lost = False

    @property
    def ready(self) -> bool:
        return not self.lost and self.drained is None

    def in_use(self, slice_: SliceName | None) -> int:
        index, place = self.places[slice_]
        return index.total[place] - index.sick[place] - index.free[place]

    def free(self, slice_: SliceName | None) -> int:
        """Devices something could get there now."""
        index, place = self.places[slice_]
        return max(0, index.free[place]) if self.ready else 0

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
                total=index.total[place],
                in_use=self.in_use(slice_),
                unhealthy=index.sick[place],
            )
            for slice_, (index, place) in self.places.items()
        )
        return Node(self.name, health, reason, devices)


def build_nodes(pools: Iterable[Pool]) -> tuple[dict[Supply, DeviceIndex], dict[NodeName, SimulatedNode]]:
    """Build the nodes that pools describe, all well and idle, and the index of each supply."""
    indexes: dict[Supply, DeviceIndex] = {}
    nodes: dict[NodeName, SimulatedNode] = {}
    for pool in pools:
        own = [SimulatedNode(name, pool) for name in _names(pool)]
        nodes |= {node.name: node for node in own}
        names = tuple(node.name for node in own)
        for supply, per_node in _per_node(pool):
            index = DeviceIndex(len(indexes), supply, pool, per_node, names)
            indexes[supply] = index
            for number, node in enumerate(own):
                node.places[supply.slice] = (index, number)
    return indexes, nodes


def _size(pool: Pool) -> VirtualPlace:
    if not isinstance(pool.place, VirtualPlace):
        raise TypeError(f"pool {pool.name} has no size: it is not of a virtual cluster")
    return pool.place


def _names(pool: Pool) -> Iterator[NodeName]:
    return (NodeName(f"{pool.name}-{number:04}") for number in range(1, _size(pool).nodes + 1))


def _per_node(pool: Pool) -> Iterator[tuple[Supply, int]]:
    place = _size(pool)
    if not place.slices_per_gpu:
        yield Supply(pool.name), place.gpus_per_node
    for slice_, count in place.slices_per_gpu.items():
        yield Supply(pool.name, slice_), place.gpus_per_node * count
