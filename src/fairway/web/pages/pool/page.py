"""The Pool page: nodes and GPUs, who holds them, what fits, limits of teams.

All open pages of a pool share a snapshot: the fleet's (see `fleet.data`), and two queries on one more
connection. Their cost grows with the nodes and the running jobs of the pool, not with finished jobs. At most
one page of nodes is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.ledger import Ledger
from fairway.ledger.pools import DeviceRow, PoolSnapshot
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState, format_job_id
from fairway.model.names import NodeName, PoolName
from fairway.model.price import PricePoint
from fairway.services.charges import calendar_of
from fairway.services.convert import fleet as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.web.cache.single_flight import SharedParts, SingleFlightGroup
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model as fleet_view_model
from fairway.web.pages.fleet.data import APART_SECONDS, SPEND_SECONDS, STALE_SECONDS, FleetLook, FleetLooks
from fairway.web.pages.fleet.page import Days
from fairway.web.pages.fleet.plots import Plots
from fairway.web.pages.fleet.supply_bars import by_team
from fairway.web.pages.pool import node_map
from fairway.web.pages.pool import view_model as pool_view_model
from fairway.web.render import HEADERS
from fairway.web.sessions import PAGE

_MOST_LOOKS: Final = 256
PageNumber = Annotated[int, Query(alias="nodes", ge=1, le=100_000)]


def add_pool_pages(site: PageContext, looks: FleetLooks, plots: Plots) -> None:
    """Add the Pool page, and the data of its plot."""
    app, pages, ledger = site.app, site.pages, site.ledger
    of_pool, parts = _PoolLooks(ledger), SharedParts("pool-part")

    @app.get("/pools/{pool}", dependencies=PAGE, include_in_schema=False)
    async def show_pool(request: Request, pool: str, page: PageNumber = 1) -> Response:
        """Show one pool."""
        look = await looks.now.get()
        wanted = pool_of(look.fleet, pool)
        now, points = await of_pool.now(wanted, page), await of_pool.points(wanted)
        return parts.show(
            request,
            (look, now, points),
            page,
            lambda: pages.show(request, "pool.html", _shown(look, wanted, now, points, page)),
        )

    @app.get("/pools/{pool}/data", dependencies=PAGE, include_in_schema=False)
    async def pool_data(pool: str, days: Days = 1) -> Response:
        """Return total and used GPUs by hour."""
        wanted = pool_of(await site.fleets.current(), pool)
        return JSONResponse(await plots.pool(wanted.name, days), headers=HEADERS)


def pool_of(fleet: Fleet, name: str) -> Pool:
    """The pool, or a RequestError that says which there are."""
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


class _PoolLooks:
    """Snapshots of pools, shared by all open pages at the same page of nodes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looks = SingleFlightGroup[PoolSnapshot](_MOST_LOOKS, apart_seconds=APART_SECONDS)
        self._points = SingleFlightGroup[tuple[PricePoint, ...]](
            _MOST_LOOKS, keep_seconds=SPEND_SECONDS, stale_seconds=STALE_SECONDS
        )

    async def now(self, pool: Pool, page: int) -> PoolSnapshot:
        """Return the pool's nodes, and the jobs that hold those on the page."""
        return await self._looks.get((pool.name, page), partial(self._read, pool, page))

    async def points(self, pool: Pool) -> tuple[PricePoint, ...]:
        """Return the current spot price, if there is one."""
        return await self._points.get(pool.name, partial(self._read_points, pool.name))

    async def _read(self, pool: Pool, page: int) -> PoolSnapshot:
        def on_page(rows: Sequence[DeviceRow]) -> list[NodeName]:
            return [m.name for m in node_map.page_of(node_map.machines(rows), page)[0]]

        return await self._ledger.pools.pool(
            pool.cluster, pool.name, largest=pool_view_model.MOST_HOLDERS, look_at=on_page
        )

    async def _read_points(self, pool: PoolName) -> tuple[PricePoint, ...]:
        now = int(time.time())
        return (await self._ledger.prices.points([pool], Span(now, now + 1))).get(pool, ())


def _shown(
    look: FleetLook, pool: Pool, now: PoolSnapshot, points: Sequence[PricePoint], page: int
) -> dict[str, Any]:
    machines = node_map.machines(now.devices)
    shown, page, of_pages = node_map.page_of(machines, page)
    unready = pool_view_model.unready(machines)
    told = next(p for p in convert.pools(look.known) if p.name == pool.name)
    running = [c for c in look.now.counts if c.pool == pool.name and c.state is JobState.RUNNING]
    today = calendar_of(look.fleet).day_of(int(look.known.now.timestamp()))
    return {
        "look": look,
        "pool": pool,
        "card": fleet_view_model.pool_card(look, pool, told, by_team(running, JobState.RUNNING)),
        "cluster": next(c for c in convert.clusters(look.known) if c.name == pool.cluster),
        "nodes": len(machines),
        "racks": node_map.racks(pool, machines, shown, now.holders),
        "page": page,
        "of_pages": of_pages,
        "per_page": node_map.NODES_PER_PAGE,
        "squares": node_map.squares(machines) if of_pages > 1 else None,
        "holders": [(format_job_id(h.job), h) for h in now.holders if h.rank <= pool_view_model.MOST_HOLDERS],
        "running": sum(c.jobs for c in running),
        "rooms": pool_view_model.rooms(pool, now.devices, look.now.waiting),
        "teams": pool_view_model.teams(look, pool),
        "queues": fleet_view_model.queue_rows(look, pool.name),
        "unready": unready[: pool_view_model.MOST_UNREADY],
        "unready_beyond": max(0, len(unready) - pool_view_model.MOST_UNREADY),
        "price": pool_view_model.price(pool, look.fleet.currency, today, points),
    }
