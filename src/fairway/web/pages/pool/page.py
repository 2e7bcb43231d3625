"""The Pool page: nodes and GPUs, who holds them, what fits, limits of teams.

All open pages of a pool share a snapshot: the fleet's (see `fleet.data`), and two queries on one more
connection. Their cost grows with the nodes and the running jobs of the pool, not with finished jobs. At most
one page of nodes is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api.auth import caller_of
from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger
from fairway.ledger.pools import DeviceRow, PoolSnapshot
from fairway.ledger.records.jobs import by_team
from fairway.ledger.telemetry.gpu_events import GpuEvent
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.job import JobState, format_job_id
from fairway.model.names import NodeName, PoolName
from fairway.model.price import PricePoint
from fairway.services.convert import fleet as convert
from fairway.services.convert import gpu_health as convert_health
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.rights import visible_teams
from fairway.services.waits import sum_waits
from fairway.web.cache.single_flight import FragmentCache, SingleFlightGroup
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model as fleet_view_model
from fairway.web.pages.fleet.data import (
    MIN_INTERVAL,
    SPEND_SECONDS,
    STALE_SECONDS,
    FleetPageCache,
    FleetPageData,
)
from fairway.web.pages.fleet.page import DEFAULT_WINDOW
from fairway.web.pages.fleet.plots import PlotBy, Plots
from fairway.web.pages.pool import node_map
from fairway.web.pages.pool import view_model as pool_view_model
from fairway.web.pages.pool.node_map import Colouring
from fairway.web.ranges import keep_window, range_choices, time_range
from fairway.web.render import HEADERS, is_part
from fairway.web.sessions import PAGE
from fairway.web.use_view import UseViews
from fairway.wire import jobs as job_wire

_MAX_COMBINATIONS: Final = 256
_EVENT_SECONDS: Final = 15.0
_EVENTS_SINCE: Final = timedelta(days=30)
_MAX_EVENTS: Final = 12
USE_PART: Final = "pool-use"
"""The part of the page that is loaded after it."""
PageNumber = Annotated[int, Query(alias="nodes", ge=1, le=100_000)]
MapColouring = Annotated[Colouring, Query(alias="colour")]


def add_pool_pages(site: PageContext, cache: FleetPageCache, plots: Plots, uses: UseViews) -> None:
    """Add the Pool page, and the data of its plot."""
    app, pages = site.app, site.pages
    pool_cache, fragments = _PoolPageCache(site.ledger), FragmentCache("pool-part")

    @app.get("/pools/{pool}", dependencies=PAGE, include_in_schema=False)
    async def show_pool(
        request: Request, pool: str, page: PageNumber = 1, colouring: MapColouring = Colouring.TEAM
    ) -> Response:
        """Show one pool."""
        data = await cache.data.get()
        found = find_pool(data.fleet, pool)
        caller = caller_of(request)
        visible = visible_teams(caller, data.policy)
        snapshot = await pool_cache.snapshot(found, page)
        range_ = time_range(data.fleet, request, DEFAULT_WINDOW)
        if is_part(request, USE_PART):
            nodes = node_map.page_of(node_map.pool_nodes(snapshot.devices), page)[0]
            use = {
                "use": await uses.view(caller, pool=found.name, range_=range_),
                "heat": await uses.heat_map(found.cluster, [node.name for node in nodes]),
            }
            return pages.show(request, "pool.html", use)
        points, events = await pool_cache.points(found), await pool_cache.gpu_events(found)
        blocked = await pool_cache.blocked(found)
        kept = (("nodes", str(page)),) if page > 1 else ()
        more: dict[str, Any] = {
            "blocked": blocked,
            "gpu_events": [convert_health.gpu_event(event) for event in events],
            "range": range_,
            "ranges": range_choices(request.url.path, range_.text, kept),
            "kept": kept,
        }
        colours = await plots.colours(data.policy)
        response = fragments.show(
            request,
            (data, snapshot, points, events, blocked),
            (page, visible, colouring),
            lambda: pages.show(
                request,
                "pool.html",
                _values(data, visible, found, snapshot, points, page, colouring, colours) | more,
            ),
        )
        return keep_window(request, response, request.query_params.get("window", ""))

    @app.get("/pools/{pool}/data", dependencies=PAGE, include_in_schema=False)
    async def pool_data(request: Request, pool: str) -> Response:
        """Return GPUs over time by team, with capacity, loans and queue."""
        fleet = await site.fleets.current()
        found = find_pool(fleet, pool)
        range_ = time_range(fleet, request, DEFAULT_WINDOW)
        visible = visible_teams(caller_of(request), await site.fleets.in_force())
        return JSONResponse(await plots.series(range_, PlotBy.TEAM, found.name, visible), headers=HEADERS)


def find_pool(fleet: Fleet, name: str) -> Pool:
    """Return the pool. Raises RequestError, with the names of the existing pools."""
    for pool in fleet.pools:
        if pool.name == name:
            return pool
    some = ", ".join(sorted(p.name for p in fleet.pools)[:12]) or "none yet"
    raise RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchPool",
        f"the fleet has no pool {name!r}",
        f"its pools: {some};  fairway get pools  lists them all",
    )


class _PoolPageCache:
    """Snapshots of pools, shared by all open pages at the same page of nodes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._snapshots = SingleFlightGroup[PoolSnapshot](_MAX_COMBINATIONS, min_interval=MIN_INTERVAL)
        self._points = SingleFlightGroup[tuple[PricePoint, ...]](
            _MAX_COMBINATIONS, max_age=SPEND_SECONDS, stale_age=STALE_SECONDS
        )

        self._blocked = SingleFlightGroup[Sequence[job_wire.WaitSum]](
            _MAX_COMBINATIONS, max_age=_EVENT_SECONDS, stale_age=STALE_SECONDS
        )
        self._events = SingleFlightGroup[tuple[GpuEvent, ...]](
            _MAX_COMBINATIONS, max_age=_EVENT_SECONDS, stale_age=STALE_SECONDS
        )

    async def blocked(self, pool: Pool) -> Sequence[job_wire.WaitSum]:
        """Return what keeps jobs of the pool from starting, the most GPU-hours first."""
        return await self._blocked.get(pool.name, partial(self._read_blocked, pool))

    async def gpu_events(self, pool: Pool) -> tuple[GpuEvent, ...]:
        """Return what went wrong with the pool's GPUs within a month."""
        return await self._events.get(pool.name, partial(self._read_events, pool))

    async def snapshot(self, pool: Pool, page: int) -> PoolSnapshot:
        """Return the pool's nodes, and the jobs that hold those on the page."""
        return await self._snapshots.get((pool.name, page), partial(self._read, pool, page))

    async def points(self, pool: Pool) -> tuple[PricePoint, ...]:
        """Return the current spot price, if there is one."""
        if pool.capacity is not Capacity.SPOT:
            return ()
        return await self._points.get(pool.name, partial(self._read_points, pool.name))

    async def _read(self, pool: Pool, page: int) -> PoolSnapshot:
        def on_page(rows: Sequence[DeviceRow]) -> list[NodeName]:
            return [node.name for node in node_map.page_of(node_map.pool_nodes(rows), page)[0]]

        return await self._ledger.pools.pool(
            pool.cluster, pool.name, largest=pool_view_model.MAX_HOLDERS, select_nodes=on_page
        )

    async def _read_events(self, pool: Pool) -> tuple[GpuEvent, ...]:
        since = datetime.now(UTC) - _EVENTS_SINCE
        return await self._ledger.gpu_events.of_pool(pool.cluster, pool.name, since, _MAX_EVENTS)

    async def _read_blocked(self, pool: Pool) -> Sequence[job_wire.WaitSum]:
        return sum_waits(await self._ledger.waiting.sums(cluster=pool.cluster, pool=pool.name)).reasons

    async def _read_points(self, pool: PoolName) -> tuple[PricePoint, ...]:
        now = int(time.time())
        return (await self._ledger.prices.points([pool], Span(now, now + 1))).get(pool, ())


def _values(
    data: FleetPageData,
    visible: frozenset[str] | None,
    pool: Pool,
    snapshot: PoolSnapshot,
    points: Sequence[PricePoint],
    page: int,
    colouring: Colouring,
    colours: Mapping[str, int],
) -> dict[str, Any]:
    nodes = node_map.pool_nodes(snapshot.devices)
    shown, page, of_pages = node_map.page_of(nodes, page)
    unready = pool_view_model.unready(nodes)
    borrowing = pool_view_model.borrowing_teams(data, pool)
    racks = node_map.racks(
        pool, nodes, shown, snapshot.holders, node_map.MapColours(colouring, colours, borrowing)
    )
    wire_pool = next(p for p in convert.pools(data.state) if p.name == pool.name)
    running = [c for c in data.snapshot.counts if c.pool == pool.name and c.state is JobState.RUNNING]
    today = calendar_of(data.fleet).day_of(int(data.state.now.timestamp()))
    return {
        "data": data,
        "pool": pool,
        "card": fleet_view_model.pool_card(data, pool, wire_pool, by_team(running, JobState.RUNNING)),
        "cluster": next(c for c in convert.clusters(data.state) if c.name == pool.cluster),
        "nodes": len(nodes),
        "racks": racks,
        "legend": node_map.legend(racks),
        "colouring": colouring,
        "Colouring": Colouring,
        "page": page,
        "of_pages": of_pages,
        "per_page": node_map.NODES_PER_PAGE,
        "squares": node_map.squares(nodes) if of_pages > 1 else None,
        "holders": [
            (format_job_id(h.job), h) for h in snapshot.holders if h.rank <= pool_view_model.MAX_HOLDERS
        ],
        "running": sum(c.jobs for c in running),
        "free_spreads": pool_view_model.free_spreads(pool, snapshot.devices, data.snapshot.waiting),
        "teams": pool_view_model.teams(data, pool),
        "queues": fleet_view_model.queue_rows(data, visible, pool.name),
        "unready": unready[: pool_view_model.MAX_UNREADY],
        "unready_beyond": max(0, len(unready) - pool_view_model.MAX_UNREADY),
        "price": pool_view_model.price(pool, data.fleet.currency, today, points),
    }
