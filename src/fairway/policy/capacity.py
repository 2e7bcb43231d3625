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
    """A capacity sample as stored in the ledger, and the time up to which it is metered."""

    sample: CapacitySample
    metered_to: int


@dataclass(frozen=True, slots=True)
class CapacitySpan:
    """A capacity sample that was unchanged from `start` to `end`."""

    sample: CapacitySample
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CapacityUpdate:
    """The writes of one meter run: closed intervals, current samples, and supplies that no longer exist."""

    closed: tuple[CapacitySpan, ...]
    now: tuple[StoredCapacity, ...]
    gone: tuple[Supply, ...]


GpuCounter = Callable[[Pool, Mapping[SliceName, int]], int]
"""Returns the number of GPUs that the slices of one node are cut from; implemented by `cost.rates`."""


def fragmented(nodes: Iterable[NodeGroup], waiting: Mapping[Supply, int]) -> dict[Supply, int]:
    """Count, by supply, the free devices on nodes where no waiting job fits.

    `waiting` is the smallest request per node of the jobs that wait for free devices of the supply. A supply
    without waiting jobs has no fragmented devices: its free devices are idle.
    """
    found: dict[Supply, int] = {}
    for group in nodes:
        for devices in group.devices:
            ready = group.health is Health.READY
            free = max(0, devices.total - devices.in_use - devices.unhealthy) if ready else 0
            if free < waiting.get(devices.supply, 0):
                found[devices.supply] = found.get(devices.supply, 0) + free * group.count
    return found


def capacity_samples(
    pools: Sequence[Pool], nodes: Sequence[NodeGroup], waiting: Mapping[Supply, int], gpus_behind: GpuCounter
) -> tuple[CapacitySample, ...]:
    """Build the sample of each supply that these pools have devices of, sorted by name."""
    unusable = fragmented(nodes, waiting)
    by_name = {pool.name: pool for pool in pools}
    sums: dict[Supply, list[int]] = {}
    for group in nodes:
        for devices in group.devices:
            if devices.supply.pool in by_name:
                row = sums.setdefault(devices.supply, [0, 0, 0])
                for i, n in enumerate(_states(group.health, devices)):
                    row[i] += n * group.count
    samples = [
        CapacitySample(supply, total, drained, down, unusable.get(supply, 0))
        for supply, (total, drained, down) in sorted(
            sums.items(), key=lambda item: (item[0].pool, item[0].slice or "")
        )
    ]
    gpus = {name: _gpus(pool, nodes, gpus_behind) for name, pool in by_name.items()}
    # The pool's GPUs are counted once, with its first supply: they are not of one kind of slice.
    return tuple(replace(sample, gpus=gpus.pop(sample.supply.pool, 0)) for sample in samples)


def capacity_update(
    stored: Sequence[StoredCapacity], samples: Sequence[CapacitySample], at: int, hour: int
) -> CapacityUpdate | None:
    """Compute what to write at `at`, in the hour that began at `hour`.

    The last observation holds until a different one. Unchanged samples are closed at full hours. Returns None
    if nothing changed and no hour ended.
    """
    new = {sample.supply: sample for sample in samples}
    closed: list[CapacitySpan] = []
    current: list[StoredCapacity] = []
    gone: list[Supply] = []
    for old in stored:
        sample = new.pop(old.sample.supply, None)
        end = max(old.metered_to, hour if sample == old.sample else at)
        if end > old.metered_to:
            closed.append(CapacitySpan(old.sample, old.metered_to, end))
        if sample is None:
            gone.append(old.sample.supply)
        elif end > old.metered_to or sample != old.sample:
            current.append(StoredCapacity(sample, end))
    current += [StoredCapacity(sample, at) for sample in new.values()]
    if not closed and not current and not gone:
        return None
    return CapacityUpdate(tuple(closed), tuple(current), tuple(gone))


def _states(health: Health, devices: NodeDevices) -> tuple[int, int, int]:
    """Return the total devices, and of those not in use the drained ones and the ones that are down."""
    idle = max(0, devices.total - devices.in_use)
    match health:
        case Health.DRAINED:
            return devices.total, idle, 0
        case Health.DOWN:
            return devices.total, 0, idle
        case _:
            return devices.total, 0, min(idle, devices.unhealthy)


def _gpus(pool: Pool, nodes: Iterable[NodeGroup], gpus_behind: GpuCounter) -> int:
    """Count the GPUs of a pool: from the file or, for slices, the fewest that they can be cut from."""
    if pool.slices and pool.gpus is not None:
        return pool.gpus
    total = 0
    for group in nodes:
        mine = [devices for devices in group.devices if devices.supply.pool == pool.name]
        slices = {devices.supply.slice: devices.total for devices in mine if devices.supply.slice is not None}
        whole = sum(devices.total for devices in mine if devices.supply.slice is None)
        total += (whole + (gpus_behind(pool, slices) if slices else 0)) * group.count
    return total
