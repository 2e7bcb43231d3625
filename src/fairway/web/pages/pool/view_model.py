"""Build the view model of the Pool page beside its map: fragmentation, teams, prices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.explain.reasons import WAITS_FOR_CAPACITY
from fairway.ledger.pools import DeviceRow, WaitingGroup
from fairway.ledger.records.jobs import by_team
from fairway.model.fleet import Pool
from fairway.model.job import PENDING_JOBS, JobState
from fairway.model.names import SliceName
from fairway.model.observation import Devices, free_devices
from fairway.model.price import PricePoint
from fairway.model.team import Supply, TeamTree
from fairway.policy.capacity import NodeDevices, NodeGroup, fragmented
from fairway.web.pages.fleet.data import FleetPageData
from fairway.web.pages.fleet.supply_bars import TeamRow, part
from fairway.web.pages.pool.node_map import PoolNode

SIZES: Final = (1, 2, 4, 8)
MAX_TEAMS: Final = 40
MAX_HOLDERS: Final = 12
MAX_UNREADY: Final = 20


@dataclass(frozen=True, slots=True)
class FittingJobs:
    """The number of jobs that would fit now, with so many devices on one node each."""

    size: int
    jobs: int


@dataclass(frozen=True, slots=True)
class FreeDeviceSpread:
    """Free devices of one supply, and their distribution over nodes."""

    supply: Supply
    free: int
    nodes_by_free: tuple[tuple[int, int], ...]
    """Pairs of free devices and the number of nodes that have so many, most first."""
    fits: tuple[FittingJobs, ...]
    smallest_request: int
    """The fewest devices on one node that a job waiting for room requests; 0 if none waits."""
    unusable: int
    """Free devices on nodes where no job that waits for room fits."""


@dataclass(frozen=True, slots=True)
class SupplyTeams:
    """The teams on one supply."""

    supply: Supply
    rows: tuple[TeamRow, ...]
    scale: int
    """The number of devices at the full length of the bars."""
    beyond: int
    no_team: int
    """Devices held by jobs of no team of the fleet."""

    def part(self, devices: int) -> str:
        """Format a number of devices as a percentage of the bar."""
        return part(devices, self.scale)


@dataclass(frozen=True, slots=True)
class PriceNow:
    """The price of a pool, and its changes over time."""

    today: Decimal
    currency: str
    steps: tuple[tuple[date | None, Decimal, bool], ...]
    """Start (None is the beginning), price, and whether it applies today."""
    discount: Decimal
    """In percent."""
    commitments: tuple[tuple[int, Decimal, date, date], ...]
    slices: Mapping[SliceName, Decimal]
    spot: PricePoint | None

    @property
    def now(self) -> Decimal:
        """Return the current price of a GPU-hour, before discounts and commitments."""
        return self.today if self.spot is None else self.spot.per_gpu_hour


def free_spreads(
    pool: Pool, rows: Sequence[DeviceRow], waiting: Iterable[WaitingGroup]
) -> list[FreeDeviceSpread]:
    """Compute the free devices of each supply of the pool, and what fits there."""
    least: dict[Supply, int] = {}
    for group in waiting:
        supply = group.supply
        if (
            supply
            and supply.pool == pool.name
            and group.least > 0
            and group.reason_code in WAITS_FOR_CAPACITY
        ):
            least[supply] = min(group.least, least.get(supply, group.least))
    nodes = [
        NodeGroup(r.health, (NodeDevices(Supply(pool.name, r.slice), r.total, r.in_use, r.unhealthy),))
        for r in rows
    ]
    unusable = fragmented(nodes, least)
    kinds = sorted({r.slice for r in rows}, key=lambda kind: kind or "")
    return [_free_spread(pool, kind, rows, least, unusable) for kind in kinds]


def _free_spread(
    pool: Pool,
    kind: SliceName | None,
    rows: Iterable[DeviceRow],
    least: Mapping[Supply, int],
    unusable: Mapping[Supply, int],
) -> FreeDeviceSpread:
    supply = Supply(pool.name, kind)
    free: dict[int, int] = {}
    for row in rows:
        if row.slice == kind:
            devices = Devices(pool.name, "", kind, row.total, row.in_use, row.unhealthy)
            on_node = free_devices(row.health, devices)
            free[on_node] = free.get(on_node, 0) + 1
    largest = max((r.total for r in rows if r.slice == kind), default=0)
    return FreeDeviceSpread(
        supply,
        sum(on_node * nodes for on_node, nodes in free.items()),
        tuple(sorted(((n, nodes) for n, nodes in free.items() if n), reverse=True)),
        tuple(
            FittingJobs(size, sum(on_node // size * nodes for on_node, nodes in free.items()))
            for size in SIZES
            if size <= max(1, largest)
        ),
        least.get(supply, 0),
        unusable.get(supply, 0),
    )


def teams(data: FleetPageData, pool: Pool) -> list[SupplyTeams]:
    """Return guarantees and usage of the teams on each supply of the pool."""
    held, waiting = (
        by_team(data.snapshot.counts, JobState.RUNNING),
        by_team(data.snapshot.counts, *PENDING_JOBS),
    )
    found = []
    for supply in pool.supplies:
        by_name = held.get(supply, {})
        rows = data.grants.rows(supply, by_name, waiting.get(supply, {}))
        scale = max((max(r.held, r.guarantee) for r in rows), default=0)
        beyond = max(0, len(rows) - MAX_TEAMS)
        found.append(SupplyTeams(supply, tuple(rows[:MAX_TEAMS]), scale, beyond, by_name.get(None, 0)))
    return found


def borrowing_teams(data: FleetPageData, pool: Pool) -> frozenset[str]:
    """Return the teams that hold more of the pool than they are guaranteed, with the teams inside them.

    Which of its GPUs are beyond the guarantee is not defined: all jobs of such a team are marked.
    """
    tree = TeamTree(data.policy.teams)
    found: set[str] = set()
    for of in teams(data, pool):
        for row in of.rows:
            if row.borrowed and row.depth == 0:
                found.update(t.name for t in tree.subtree(tree[row.team]))
    return frozenset(found)


def unready(nodes: Iterable[PoolNode]) -> list[DeviceRow]:
    """Return one row for each node that is drained or down, newest first."""
    found = [node.devices[0] for node in nodes if node.health != "ready"]
    return sorted(found, key=lambda row: row.since, reverse=True)


def price(pool: Pool, currency: str, today: date, points: Sequence[PricePoint]) -> PriceNow:
    """Return the list price with its steps, discounts, commitments and spot price."""
    pricing = pool.pricing
    steps: list[tuple[date | None, Decimal]] = [
        (None, pool.price),
        *((step.since, step.per_gpu_hour) for step in pricing.steps),
    ]
    current = max(i for i, (since, _) in enumerate(steps) if since is None or since <= today)
    return PriceNow(
        pool.list_price(today),
        currency,
        tuple((since, amount, i == current) for i, (since, amount) in enumerate(steps)),
        100 * pricing.discount,
        tuple((c.gpus, c.per_gpu_hour, c.since, c.until) for c in pricing.commitments if c.until > today),
        pricing.slices,
        points[-1] if points else None,
    )
