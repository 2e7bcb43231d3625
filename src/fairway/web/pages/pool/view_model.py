"""Build the view model of the Pool page beside its map: fragmentation, teams, prices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.explain.reasons import WANT_OF_ROOM
from fairway.ledger.pools import DeviceRow, WaitingGroup
from fairway.model.fleet import Pool
from fairway.model.job import JobState
from fairway.model.names import SliceName
from fairway.model.observation import Devices, free_devices
from fairway.model.price import PricePoint
from fairway.model.team import Supply
from fairway.policy.capacity import NodeDevices, NodeGroup, fragmented
from fairway.web.pages.fleet.data import FleetLook
from fairway.web.pages.fleet.supply_bars import WAITS, TeamRow, by_team, part
from fairway.web.pages.pool.node_map import PoolNode

SIZES: Final = (1, 2, 4, 8)
MOST_TEAMS: Final = 40
MOST_HOLDERS: Final = 12
MOST_UNREADY: Final = 20


@dataclass(frozen=True, slots=True)
class Fits:
    """The number of jobs that would fit now, with so many devices on one node each."""

    size: int
    jobs: int


@dataclass(frozen=True, slots=True)
class FreeDeviceSpread:
    """Free devices of one supply, and their distribution over nodes."""

    supply: Supply
    free: int
    spread: tuple[tuple[int, int], ...]
    """Pairs of free devices and the number of nodes that have so many, most first."""
    fits: tuple[Fits, ...]
    least: int
    """The fewest devices on one node that a job waiting for room requests; 0 if none waits."""
    of_no_use: int
    """Free devices on nodes where no job that waits for room fits."""


@dataclass(frozen=True, slots=True)
class PoolTeamRow:
    """A team's row with its bar."""

    row: TeamRow
    own: str
    """Held within the guarantee, held beyond it, and the guarantee: in percent of the bar."""
    borrowed: str
    guarantee: str


@dataclass(frozen=True, slots=True)
class SupplyTeams:
    """The teams on one supply."""

    supply: Supply
    lines: tuple[PoolTeamRow, ...]
    beyond: int
    no_team: int
    """Devices held by jobs of no team of the fleet."""


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


def rooms(pool: Pool, rows: Sequence[DeviceRow], waiting: Iterable[WaitingGroup]) -> list[FreeDeviceSpread]:
    """Compute the room on each supply of the pool."""
    least: dict[Supply, int] = {}
    for group in waiting:
        supply = group.supply
        if supply and supply.pool == pool.name and group.least > 0 and group.reason_code in WANT_OF_ROOM:
            least[supply] = min(group.least, least.get(supply, group.least))
    alike = [
        NodeGroup(r.health, (NodeDevices(Supply(pool.name, r.slice), r.total, r.in_use, r.unhealthy),))
        for r in rows
    ]
    useless = fragmented(alike, least)
    kinds = sorted({r.slice for r in rows}, key=lambda kind: kind or "")
    return [_room(pool, kind, rows, least, useless) for kind in kinds]


def _room(
    pool: Pool,
    kind: SliceName | None,
    rows: Iterable[DeviceRow],
    least: Mapping[Supply, int],
    useless: Mapping[Supply, int],
) -> FreeDeviceSpread:
    supply = Supply(pool.name, kind)
    free: dict[int, int] = {}
    for row in rows:
        if row.slice == kind:
            there = free_devices(
                row.health, Devices(pool.name, "", kind, row.total, row.in_use, row.unhealthy)
            )
            free[there] = free.get(there, 0) + 1
    most = max((r.total for r in rows if r.slice == kind), default=0)
    return FreeDeviceSpread(
        supply,
        sum(there * nodes for there, nodes in free.items()),
        tuple(sorted(((n, nodes) for n, nodes in free.items() if n), reverse=True)),
        tuple(
            Fits(size, sum(there // size * nodes for there, nodes in free.items()))
            for size in SIZES
            if size <= max(1, most)
        ),
        least.get(supply, 0),
        useless.get(supply, 0),
    )


def teams(look: FleetLook, pool: Pool) -> list[SupplyTeams]:
    """Return guarantees and usage of the teams on each supply of the pool."""
    held, waiting = by_team(look.now.counts, JobState.RUNNING), by_team(look.now.counts, *WAITS)
    found = []
    for supply in pool.supplies:
        mine = held.get(supply, {})
        rows = look.grants.rows(supply, mine, waiting.get(supply, {}))
        scale = max((max(r.held, r.guarantee) for r in rows), default=0)
        found.append(
            SupplyTeams(
                supply,
                tuple(_line(row, scale) for row in rows[:MOST_TEAMS]),
                max(0, len(rows) - MOST_TEAMS),
                mine.get(None, 0),
            )
        )
    return found


def _line(row: TeamRow, scale: int) -> PoolTeamRow:
    own = row.held - row.borrowed
    return PoolTeamRow(row, part(own, scale), part(row.borrowed, scale), part(row.guarantee, scale))


def unready(machines: Iterable[PoolNode]) -> list[DeviceRow]:
    """Return one row for each node that is drained or down, newest first."""
    found = [m.devices[0] for m in machines if m.health != "ready"]
    return sorted(found, key=lambda row: row.since, reverse=True)


def price(pool: Pool, currency: str, today: date, points: Sequence[PricePoint]) -> PriceNow:
    """Return the list price with its steps, discounts, commitments and spot price."""
    pricing = pool.pricing
    steps: list[tuple[date | None, Decimal]] = [
        (None, pool.price),
        *((step.since, step.per_gpu_hour) for step in pricing.steps),
    ]
    holds = max(i for i, (since, _) in enumerate(steps) if since is None or since <= today)
    return PriceNow(
        pool.list_price(today),
        currency,
        tuple((since, amount, i == holds) for i, (since, amount) in enumerate(steps)),
        100 * pricing.discount,
        tuple((c.gpus, c.per_gpu_hour, c.since, c.until) for c in pricing.commitments if c.until > today),
        pricing.slices,
        points[-1] if points else None,
    )
