"""The page of a pool: its nodes and GPUs, who holds what, what fits, who may have how much.

Open pages of a pool share a look: the fleet's (see `fleet_look`), and two queries on one more connection.
They grow with the nodes of the pool and with what runs on it, not with what is over. At most a page of nodes
is drawn, whatever the pool has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api import known
from fairway.api.problems import ApiError
from fairway.control.costs import calendar_of
from fairway.ledger import Ledger
from fairway.ledger.pool_answers import DeviceRow, PoolNow
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState, job_word
from fairway.model.names import NodeName, PoolName
from fairway.model.price import PricePoint
from fairway.web import fleet_known, pool_known, pool_map
from fairway.web.fleet_look import APART_SECONDS, SPEND_SECONDS, STALE_SECONDS, FleetLook, FleetLooks
from fairway.web.fleet_pages import Days
from fairway.web.fleet_plots import Plots
from fairway.web.pages import HEADERS
from fairway.web.rules import PAGE
from fairway.web.shared_look import SharedLooks, SharedParts
from fairway.web.site import Site
from fairway.web.supply_known import by_team

_MOST_LOOKS: Final = 256
PageNumber = Annotated[int, Query(alias="nodes", ge=1, le=100_000)]


def add_pool_pages(site: Site, looks: FleetLooks, plots: Plots) -> None:
    """A pool, and the data of its plot."""
    app, pages, ledger = site.app, site.pages, site.ledger
    of_pool, parts = _PoolLooks(ledger), SharedParts("pool-part")

    @app.get("/pools/{pool}", dependencies=PAGE, include_in_schema=False)
    async def show_pool(request: Request, pool: str, page: PageNumber = 1) -> Response:
        """One pool."""
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
        """GPUs there were and GPUs used, by hour."""
        wanted = pool_of(await site.fleets.current(), pool)
        return JSONResponse(await plots.pool(wanted.name, days), headers=HEADERS)


def pool_of(fleet: Fleet, name: str) -> Pool:
    """The pool, or an ApiError that says which there are."""
    for pool in fleet.pools:
        if pool.name == name:
            return pool
    some = ", ".join(sorted(p.name for p in fleet.pools)[:12]) or "none yet"
    raise ApiError(
        HTTPStatus.NOT_FOUND,
        "NoSuchPool",
        f"the fleet has no pool {name!r}",
        f"its pools: {some};  fairway get pools  lists them all",
    )


class _PoolLooks:
    """What is read of each pool, once for all who have it open at the same page of nodes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looks = SharedLooks[PoolNow](_MOST_LOOKS, apart_seconds=APART_SECONDS)
        self._points = SharedLooks[tuple[PricePoint, ...]](
            _MOST_LOOKS, keep_seconds=SPEND_SECONDS, stale_seconds=STALE_SECONDS
        )

    async def now(self, pool: Pool, page: int) -> PoolNow:
        """Its nodes, and who holds what of those on the page."""
        return await self._looks.get((pool.name, page), partial(self._read, pool, page))

    async def points(self, pool: Pool) -> tuple[PricePoint, ...]:
        """The spot price that holds, if there is one."""
        return await self._points.get(pool.name, partial(self._read_points, pool.name))

    async def _read(self, pool: Pool, page: int) -> PoolNow:
        def on_page(rows: Sequence[DeviceRow]) -> list[NodeName]:
            return [m.name for m in pool_map.page_of(pool_map.machines(rows), page)[0]]

        return await self._ledger.pool_now(
            pool.cluster, pool.name, largest=pool_known.MOST_HOLDERS, look_at=on_page
        )

    async def _read_points(self, pool: PoolName) -> tuple[PricePoint, ...]:
        now = int(time.time())
        return (await self._ledger.price_points([pool], Span(now, now + 1))).get(pool, ())


def _shown(
    look: FleetLook, pool: Pool, now: PoolNow, points: Sequence[PricePoint], page: int
) -> dict[str, Any]:
    machines = pool_map.machines(now.devices)
    shown, page, of_pages = pool_map.page_of(machines, page)
    unready = pool_known.unready(machines)
    told = next(p for p in known.pools(look.known) if p.name == pool.name)
    running = [c for c in look.now.counts if c.pool == pool.name and c.state is JobState.RUNNING]
    today = calendar_of(look.fleet).day_of(int(look.known.now.timestamp()))
    return {
        "look": look,
        "pool": pool,
        "card": fleet_known.pool_card(look, pool, told, by_team(running, JobState.RUNNING)),
        "cluster": next(c for c in known.clusters(look.known) if c.name == pool.cluster),
        "nodes": len(machines),
        "racks": pool_map.racks(pool, machines, shown, now.holders),
        "page": page,
        "of_pages": of_pages,
        "per_page": pool_map.NODES_PER_PAGE,
        "squares": pool_map.squares(machines) if of_pages > 1 else None,
        "holders": [(job_word(h.job), h) for h in now.holders if h.rank <= pool_known.MOST_HOLDERS],
        "running": sum(c.jobs for c in running),
        "rooms": pool_known.rooms(pool, now.devices, look.now.waiting),
        "teams": pool_known.teams(look, pool),
        "queues": fleet_known.queue_rows(look, pool.name),
        "unready": unready[: pool_known.MOST_UNREADY],
        "unready_beyond": max(0, len(unready) - pool_known.MOST_UNREADY),
        "price": pool_known.price(pool, look.fleet.currency, today, points),
    }
