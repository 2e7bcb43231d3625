"""Define a snapshot of a cluster as its engine reports it: nodes, their health, their GPUs and slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fairway.model.names import ClusterName, NodeName, PoolName, SliceName


class Health(StrEnum):
    """Whether a node can run jobs."""

    READY = "ready"
    DRAINED = "drained"
    """Closed to new jobs (drain, cordon); running jobs may continue."""
    DOWN = "down"
    """The engine lost it or marked it as unusable."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs, or the slices of one profile, of one node that belong to one pool."""

    pool: PoolName | None
    """None if no pool of the fleet claims them."""
    kind: str
    """The engine's name for the device: `gpu:a100`, `nvidia.com/mig-1g.10gb`."""
    slice: SliceName | None
    """None for whole GPUs."""
    total: int
    in_use: int
    unhealthy: int = 0
    """Devices that the engine withholds on an otherwise healthy node."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as its engine reports it."""

    name: NodeName
    health: Health
    reason: str
    """The engine's text for why it is not ready; empty if it is."""
    devices: tuple[Devices, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot of one cluster."""

    cluster: ClusterName
    engine_version: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """The devices of a pool, summed over its nodes. Always `total == in_use + free + unhealthy`.

    `unhealthy` counts devices that are neither in use nor available: those that the engine withholds, and
    the unused devices of nodes that are drained or down.
    """

    pool: PoolName | None
    slice: SliceName | None
    total: int
    in_use: int
    free: int
    unhealthy: int
    nodes: int
    nodes_drained: int
    nodes_down: int


def free_devices(health: Health, devices: Devices) -> int:
    """Count the devices of a node of that health that a job could get now."""
    if health is not Health.READY:
        return 0
    return max(0, devices.total - devices.in_use - devices.unhealthy)


def pool_totals(nodes: Iterable[Node]) -> tuple[PoolTotals, ...]:
    """Sum the devices of nodes by pool and slice, in one pass; unclaimed devices are under pool None."""
    sums: dict[tuple[PoolName | None, SliceName | None], list[int]] = {}
    for node in nodes:
        drained, down = node.health is Health.DRAINED, node.health is Health.DOWN
        for d in node.devices:
            row = sums.setdefault((d.pool, d.slice), [0] * 6)
            for i, n in enumerate((d.total, d.in_use, free_devices(node.health, d), 1, drained, down)):
                row[i] += n
    return tuple(
        PoolTotals(pool, slice_, total, in_use, free, total - in_use - free, count, drained, down)
        for (pool, slice_), (total, in_use, free, count, drained, down) in sorted(
            sums.items(), key=lambda item: (item[0][0] or "", item[0][1] or "")
        )
    )
