"""Read and build what the pages of the fleet, a pool and a team show of GPU use; shared by all open pages.

Sums are read at most once a minute for each combination of pool, team and rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, Token
from fairway.ledger.records.gpu_use import NodeHour, NodeHours
from fairway.model.charge import Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.price import cent
from fairway.services.cost_queries import CostQueries, CostRequest, IdleHolders
from fairway.services.fleets import Fleets
from fairway.services.use_history import UseHistory, use_between
from fairway.web.cache.cost_queries import CachedCostQueries
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.web.ranges import TimeRange, report_window
from fairway.web.use_chart import UseChart, UsePoint, draw_use

MAX_WASTERS: Final = 10
MAX_NODES: Final = 24
"""Nodes of the heat map of the fleet: those that were held and did least."""
HEAT_HOURS: Final = 24
MAX_AGE: Final = 60
STALE_SECONDS: Final = 300
MAX_SECONDS: Final = 5.0
"""How long a page waits for who held idle GPUs before it is shown without it."""
_MAX_COMBINATIONS: Final = 512
_HOUR: Final = 3600
_SHADES: Final = 10
_MOSTLY: Final = 0.02
"""Less of an hour than this is as good as nothing."""


@dataclass(frozen=True, slots=True)
class Waster:
    """Who held GPUs of a pool that did nothing."""

    team: str
    user: str
    pool: str
    hours: float
    measured: float
    amount: Decimal


@dataclass(frozen=True, slots=True)
class UseView:
    """Held time over the last days, and who held idle GPUs."""

    chart: UseChart | None
    read_to: datetime | None
    """None: no metrics are read."""
    wasters: tuple[Waster, ...] | None
    """None: reading them took too long."""
    of_teams: Sequence[str] | None
    """The caller sees only these; None: all."""
    currency: str
    range_name: str
    """`7 days`."""
    report_window: str
    """The window of the CLI's report with the same figures."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A node in an hour."""

    text: str
    shade: str
    """A class: `h0` (held, nothing done) to `h10` (busy), `free` or `unknown`."""
    title: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A node over the hours."""

    node: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Nodes by hours."""

    hours: tuple[datetime, ...]
    rows: tuple[HeatRow, ...]
    description: str


class _Cache:
    """What was read for one revision of the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet: Final = fleet
        self.histories: Final = SingleFlightGroup[UseHistory | None](
            _MAX_COMBINATIONS, max_age=MAX_AGE, stale_age=STALE_SECONDS
        )
        self.nodes: Final = SingleFlightGroup[tuple[Span, list[NodeHours]] | None](
            _MAX_COMBINATIONS, max_age=MAX_AGE, stale_age=STALE_SECONDS
        )


class UseViews:
    """GPU use as pages show it, cached."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._costs: CostQueries = CachedCostQueries(ledger, fleets)
        self._cache: _Cache | None = None

    async def view(
        self,
        caller: Token,
        *,
        pool: PoolName | None = None,
        team: str | None = None,
        teams: frozenset[str] | None = None,
        range_: TimeRange,
    ) -> UseView:
        """Return the use of the fleet, of a pool, or of a team with `teams` inside it, over a range.

        Wasters are of those teams alone whose costs the caller may see.
        """
        cache = await self._current()
        fleet = cache.fleet
        read = partial(self._read_history, fleet, range_, pool, teams)
        history = await cache.histories.get((range_.text, pool, teams), read)
        window = report_window(range_.text)
        if history is None:
            return UseView(None, None, (), None, fleet.currency, range_.name, window)
        holders = await self._idle_holders(caller, window, pool, team)
        return UseView(
            draw_use(points(history)),
            datetime.fromtimestamp(history.read_to, UTC),
            None if holders is None else wasters(holders, fleet.currency),
            None if holders is None else holders.of_teams,
            fleet.currency,
            range_.name,
            window,
        )

    async def _read_history(
        self, fleet: Fleet, range_: TimeRange, pool: PoolName | None, teams: frozenset[str] | None
    ) -> UseHistory | None:
        clusters = {p.cluster for p in fleet.pools if pool in (None, p.name)}
        read_to = await self._ledger.use_views.read_to(clusters)
        if read_to is None:
            return None
        return await use_between(
            self._ledger, fleet, range_.span, read_to, by_day=range_.by_day, pool=pool, teams=teams
        )

    async def heat_map(self, cluster: str, nodes: Collection[str]) -> HeatMap | None:
        """Return the heat map of these nodes of a cluster. Returns None if no metrics of it are read."""
        cache = await self._current()
        key = (cluster, tuple(sorted(nodes)))
        found = await cache.nodes.get(key, partial(self._read_nodes, cluster, nodes))
        return None if found is None else draw_heat(*found)

    async def idlest_nodes(self) -> HeatMap | None:
        """Return the heat map of the nodes of the fleet that were held and did least."""
        cache = await self._current()
        found = await cache.nodes.get(None, partial(self._read_idlest, cache.fleet))
        return None if found is None else draw_heat(*found)

    async def _current(self) -> _Cache:
        """Return the cache of the newest fleet: another revision is another object."""
        fleet = await self._fleets.current()
        if self._cache is None or self._cache.fleet is not fleet:
            self._cache = _Cache(fleet)
        return self._cache

    async def _idle_holders(
        self, caller: Token, window: str, pool: PoolName | None, team: str | None
    ) -> IdleHolders | None:
        by = (Label.TEAM, Label.USER, Label.POOL)
        request = CostRequest(window, by, team=team, pool=pool, max_rows=MAX_WASTERS)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                return await self._costs.idle_holders(caller, request)
        except TimeoutError:
            return None

    async def _span(self, clusters: Collection[str]) -> Span | None:
        read_to = await self._ledger.use_views.read_to(clusters)
        if read_to is None:
            return None
        end = calendar_of(await self._fleets.current()).next_hour(read_to - 1)
        return Span(end - HEAT_HOURS * _HOUR, end)

    async def _read_nodes(self, cluster: str, nodes: Collection[str]) -> tuple[Span, list[NodeHours]] | None:
        span = await self._span([cluster])
        return None if span is None else (span, await self._ledger.use_views.nodes(cluster, nodes, span))

    async def _read_idlest(self, fleet: Fleet) -> tuple[Span, list[NodeHours]] | None:
        clusters = [c.name for c in fleet.clusters]
        span = await self._span(clusters)
        if span is None:
            return None
        worst = await self._ledger.use_views.idlest_nodes(clusters, span, MAX_NODES)
        found = {
            (row.cluster, row.node): row
            for cluster in {c for c, _ in worst}
            for row in await self._ledger.use_views.nodes(
                cluster, [node for c, node in worst if c == cluster], span
            )
        }
        return span, [found[key] for key in worst if key in found]


def points(history: UseHistory) -> list[UsePoint]:
    """Convert a history to what is drawn. Pure."""
    return [
        UsePoint(datetime.fromtimestamp(held.span.start, UTC), held.span.end - held.span.start, held.seconds)
        for held in history.spans
    ]


def wasters(holders: IdleHolders, currency: str) -> tuple[Waster, ...]:
    """Convert who held most idle GPU time. Pure."""
    found = []
    for row in holders.rows:
        team, user, pool = row.labels
        amount = Decimal(row.amount).quantize(cent(currency))
        found.append(Waster(team, user, pool, row.idle_hours, row.measured_hours, amount))
    return tuple(found)


def draw_heat(span: Span, nodes: Sequence[NodeHours]) -> HeatMap:
    """Build the heat map of nodes by hours. Pure."""
    hours = list(range(span.start, span.end, _HOUR))
    rows = tuple(
        HeatRow(node.node, tuple(_cell(node.node, h, node.hours.get(h)) for h in hours))
        for node in nodes
        if node.hours
    )
    held = sum(hour.held_measured for node in nodes for hour in node.hours.values())
    busy = sum(hour.held_busy for node in nodes for hour in node.hours.values())
    says = f"{len(rows)} nodes over {len(hours)} hours"
    if held:
        says += f"; held GPUs were busy {100 * busy / held:.0f} % of the measured time"
    return HeatMap(tuple(datetime.fromtimestamp(h, UTC) for h in hours), rows, says)


def _cell(node: str, start: int, hour: NodeHour | None) -> HeatCell:
    when = f"{node}, {datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M}"
    if hour is None or hour.measured < _MOSTLY * _HOUR:
        return HeatCell("?", "unknown", f"{when}: not measured")
    if hour.held_measured < _MOSTLY * hour.measured:
        return HeatCell("·", "free", f"{when}: not held by any job")
    ratio = min(1.0, hour.held_busy / hour.held_measured)
    # Anything that is not zero gets a shade of its own.
    shade = 0 if ratio < 0.01 else max(1, round(ratio * _SHADES))
    held = hour.held_measured / hour.measured
    return HeatCell(
        f"{100 * ratio:.0f}", f"h{shade}", f"{when}: {100 * ratio:.0f} % busy, {100 * held:.0f} % of it held"
    )
