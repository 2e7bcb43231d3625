"""The page of a pool: its nodes and GPUs, who holds what, what fits, who may have how much.

One look that all open pages of a pool share: the fleet's (see `fleet_look`), and two queries of its own. They
grow with the nodes of the pool and with what runs on it, not with what is over. At most a page of nodes is
drawn, whatever the pool has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api import known
from fairway.api.problems import ApiError
from fairway.control.costs import calendar_of
from fairway.ledger import Ledger
from fairway.ledger.pool_answers import DeviceRow
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState, job_word
from fairway.web import fleet_known, pool_known, pool_map
from fairway.web.fleet_look import FleetLook, FleetLooks
from fairway.web.fleet_pages import Days
from fairway.web.fleet_plots import Plots
from fairway.web.pages import HEADERS
from fairway.web.rules import PAGE
from fairway.web.shared_look import SharedLook
from fairway.web.site import Site
from fairway.web.supply_known import MEANINGS, by_team

PageNumber = Annotated[int, Query(alias="nodes", ge=1, le=100_000)]


def add_pool_pages(site: Site) -> None:
    """A pool, and the data of its plot."""
    app, pages, ledger = site.app, site.pages, site.ledger
    looks, plots = FleetLooks.of(app, ledger, site.fleets), Plots(ledger, site.fleets)
    devices = _Devices(ledger)

    @app.get("/pools/{pool}", dependencies=PAGE, include_in_schema=False)
    async def show_pool(request: Request, pool: str, page: PageNumber = 1) -> Response:
        """One pool."""
        look = await looks.now.get()
        wanted = pool_of(look.fleet, pool)
        rows = await devices.of(wanted)
        return pages.show(request, "pool.html", await _shown(ledger, look, wanted, rows, page))

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
        f"its pools: {some}; a pool is a few lines in the fleet file:  fairway apply -f fleet.yaml",
    )


class _Devices:
    """The devices of each pool, read once for all who have its page open."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looks: dict[tuple[str, str], SharedLook[tuple[DeviceRow, ...]]] = {}

    async def of(self, pool: Pool) -> tuple[DeviceRow, ...]:
        """`pool` is of the fleet: there are never more looks than there were pools."""
        key = (pool.cluster, pool.name)
        if key not in self._looks:
            self._looks[key] = SharedLook(self._look(*key))
        return await self._looks[key].get()

    def _look(self, cluster: str, pool: str) -> Callable[[], Awaitable[tuple[DeviceRow, ...]]]:
        return lambda: self._ledger.pool_devices(cluster, pool)


async def _shown(
    ledger: Ledger, look: FleetLook, pool: Pool, rows: tuple[DeviceRow, ...], page: int
) -> dict[str, Any]:
    machines = pool_map.machines(rows)
    shown, page, of_pages = pool_map.page_of(machines, page)
    holders = await ledger.pool_holders(
        pool.cluster, pool.name, largest=pool_known.MOST_HOLDERS, nodes=[m.name for m in shown]
    )
    unready = pool_known.unready(machines)
    told = next(p for p in known.pools(look.known) if p.name == pool.name)
    held = by_team(look.counts, JobState.RUNNING)
    card = fleet_known.pool_card(look, pool, told, held)
    cluster = next(c for c in known.clusters(look.known) if c.name == pool.cluster)
    running = sum(c.jobs for c in look.counts if c.pool == pool.name and c.state is JobState.RUNNING)
    return {
        "look": look,
        "pool": pool,
        "card": card,
        "cluster": cluster,
        "nodes": len(machines),
        "racks": pool_map.racks(pool, machines, shown, holders),
        "page": page,
        "of_pages": of_pages,
        "per_page": pool_map.NODES_PER_PAGE,
        "squares": pool_map.squares(machines) if of_pages > 1 else None,
        "holders": [(job_word(h.job), h) for h in holders if h.rank <= pool_known.MOST_HOLDERS],
        "running": running,
        "rooms": pool_known.rooms(pool, rows, look.waiting),
        "teams": pool_known.teams(look, pool),
        "queues": fleet_known.queue_rows(look, pool.name),
        "unready": unready[: pool_known.MOST_UNREADY],
        "unready_beyond": max(0, len(unready) - pool_known.MOST_UNREADY),
        "price": await _price(ledger, look, pool),
        "meanings": MEANINGS,
    }


async def _price(ledger: Ledger, look: FleetLook, pool: Pool) -> pool_known.PriceNow:
    now = int(datetime.now(UTC).timestamp())
    points = await ledger.price_points([pool.name], Span(now, now + 1))
    today = calendar_of(look.fleet).day_of(now)
    return pool_known.price(pool, look.fleet.currency, today, points.get(pool.name, ()))
