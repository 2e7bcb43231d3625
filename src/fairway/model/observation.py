"""What an engine shows of a cluster at one moment: nodes, their health, their GPUs and slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fairway.model.names import ClusterName, NodeName, PoolName, SliceName


class Health(StrEnum):
    """Whether a node can take work."""

    READY = "ready"
    DRAINED = "drained"
    """Somebody closed it to new work (drain, cordon); what runs may go on."""
    DOWN = "down"
    """The engine lost it or declared it unfit."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs, or the slices of one profile, that one node gives to one pool."""

    pool: PoolName | None
    """None: no pool of the fleet claims them."""
    kind: str
    """The engine's own word: `gpu:a100`, `nvidia.com/mig-1g.10gb`."""
    slice: SliceName | None
    """None: whole GPUs."""
    total: int
    in_use: int
    unhealthy: int = 0
    """Devices the engine itself holds back on a node that is otherwise well."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine, as its engine sees it."""

    name: NodeName
    health: Health
    reason: str
    """The engine's words for why it is not ready; empty when it is."""
    devices: tuple[Devices, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one cluster."""

    cluster: ClusterName
    engine_version: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """What a pool has, summed over its nodes. Always `total == in_use + free + unhealthy`.

    `unhealthy` is whatever nobody holds and nobody can get: devices the engine holds back, and
    the unheld devices of nodes that are drained or down.
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
    """Devices of a node of that health that a job could get now."""
    if health is not Health.READY:
        return 0
    return max(0, devices.total - devices.in_use - devices.unhealthy)


def pool_totals(nodes: Iterable[Node]) -> tuple[PoolTotals, ...]:
    """Sum the nodes by pool and slice kind, in one pass; unclaimed devices come under pool None."""
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
