"""Compute the capacity of a cluster's pools at one point in time: total, drained, down, fragmented. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fairway.model.fleet import Pool
from fairway.model.names import SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one supply on one node."""

    supply: Supply
    total: int
    in_use: int
    unhealthy: int = 0


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A number of nodes with the same health and the same devices in use."""

    health: Health
    devices: tuple[NodeDevices, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class StoredCapacity:
    """A shelf as stored in the ledger, and the time up to which it is metered."""

    shelf: CapacitySample
    metered_to: int


@dataclass(frozen=True, slots=True)
class CapacitySpan:
    """A shelf that was unchanged from `start` to `end`."""

    shelf: CapacitySample
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CapacityUpdate:
    """The writes of one meter run: closed intervals, current shelves, and supplies that no longer exist."""

    closed: tuple[CapacitySpan, ...]
    now: tuple[StoredCapacity, ...]
    gone: tuple[Supply, ...]


Behind = Callable[[Pool, Mapping[SliceName, int]], int]
"""Returns the number of GPUs that the slices of one node are cut from; implemented by `cost.slicing`."""


def fragmented(nodes: Iterable[NodeGroup], waiting: Mapping[Supply, int]) -> dict[Supply, int]:
    """Count, by supply, the free devices on nodes where no waiting job fits.

    `waiting` is the smallest request per node of the jobs that wait for free devices of the supply. A supply
    without waiting jobs has no fragmented devices: its free devices are idle.
    """
    found: dict[Supply, int] = {}
    for alike in nodes:
        for held in alike.devices:
            free = _free(alike.health, held)
            if free < waiting.get(held.supply, 0):
                found[held.supply] = found.get(held.supply, 0) + free * alike.count
    return found


def shelves(
    pools: Sequence[Pool], nodes: Sequence[NodeGroup], waiting: Mapping[Supply, int], behind: Behind
) -> tuple[CapacitySample, ...]:
    """Build the shelf of each supply that these pools have devices of, sorted by name."""
    of_no_use = fragmented(nodes, waiting)
    known = {pool.name: pool for pool in pools}
    sums: dict[Supply, list[int]] = {}
    for alike in nodes:
        for held in alike.devices:
            if held.supply.pool in known:
                row = sums.setdefault(held.supply, [0, 0, 0])
                for i, n in enumerate(_states(alike.health, held)):
                    row[i] += n * alike.count
    made = [
        CapacitySample(supply, total, drained, down, of_no_use.get(supply, 0))
        for supply, (total, drained, down) in sorted(
            sums.items(), key=lambda item: (item[0].pool, item[0].slice or "")
        )
    ]
    gpus = {name: _gpus(pool, nodes, behind) for name, pool in known.items()}
    # The pool's GPUs are counted once, with its first supply: they are not of one kind of slice.
    return tuple(replace(shelf, gpus=gpus.pop(shelf.supply.pool, 0)) for shelf in made)


def turn(
    known: Sequence[StoredCapacity], seen: Sequence[CapacitySample], at: int, hour: int
) -> CapacityUpdate | None:
    """Compute what to write at `at`, in the hour that began at `hour`.

    The last observation holds until a different one. Unchanged shelves are closed at full hours. Returns None
    if nothing changed and no hour ended.
    """
    now = {shelf.supply: shelf for shelf in seen}
    closed: list[CapacitySpan] = []
    kept: list[StoredCapacity] = []
    for old in known:
        shelf = now.pop(old.shelf.supply, None)
        end = max(old.metered_to, hour if shelf == old.shelf else at)
        if end > old.metered_to:
            closed.append(CapacitySpan(old.shelf, old.metered_to, end))
        if shelf is not None and (end > old.metered_to or shelf != old.shelf):
            kept.append(StoredCapacity(shelf, end))
    kept += [StoredCapacity(shelf, at) for shelf in now.values()]
    there = {shelf.supply for shelf in seen}
    gone = tuple(old.shelf.supply for old in known if old.shelf.supply not in there)
    if not closed and not kept and not gone:
        return None
    return CapacityUpdate(tuple(closed), tuple(kept), gone)


def _free(health: Health, held: NodeDevices) -> int:
    if health is not Health.READY:
        return 0
    return max(0, held.total - held.in_use - held.unhealthy)


def _states(health: Health, held: NodeDevices) -> tuple[int, int, int]:
    """Return the total devices, and of those not in use the drained ones and the ones that are down."""
    unheld = max(0, held.total - held.in_use)
    match health:
        case Health.DRAINED:
            return held.total, unheld, 0
        case Health.DOWN:
            return held.total, 0, unheld
        case _:
            return held.total, 0, min(unheld, held.unhealthy)


def _gpus(pool: Pool, nodes: Iterable[NodeGroup], behind: Behind) -> int:
    """Count the GPUs of a pool: from the file or, for slices, the fewest that they can be cut from."""
    if pool.slices and pool.gpus is not None:
        return pool.gpus
    total = 0
    for alike in nodes:
        mine = [held for held in alike.devices if held.supply.pool == pool.name]
        slices = {held.supply.slice: held.total for held in mine if held.supply.slice is not None}
        whole = sum(held.total for held in mine if held.supply.slice is None)
        total += (whole + (behind(pool, slices) if slices else 0)) * alike.count
    return total
