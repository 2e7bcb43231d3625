"""The Fleet page: capacity, its use, what waits, what it costs.

The page and its live part are served from a snapshot that all open pages share; see `data` for its cost.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api.auth import caller_of
from fairway.services.convert import fleet as convert
from fairway.services.rights import visible_teams
from fairway.views.conditions import condition_text
from fairway.web.cache.single_flight import FragmentCache
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model
from fairway.web.pages.fleet.data import DayCost, FleetPageCache, FleetPageData
from fairway.web.pages.fleet.plots import MAX_DAYS, Plots
from fairway.web.pages.fleet.supply_bars import MEANINGS
from fairway.web.render import HEADERS, is_part
from fairway.web.sessions import PAGE
from fairway.web.use_view import UseViews

Days = Annotated[int, Query(ge=1, le=MAX_DAYS)]


def add_fleet_pages(site: PageContext, cache: FleetPageCache, plots: Plots, uses: UseViews) -> None:
    """Add the Fleet page, and the data of its plot."""
    app, pages = site.app, site.pages
    fragments = FragmentCache("fleet-part")

    @app.get("/fleet", dependencies=PAGE, include_in_schema=False)
    async def show_fleet(request: Request) -> Response:
        """Show the Fleet page."""
        data, cost = await cache.data.get(), await cache.day_cost.get()
        caller = caller_of(request)
        visible = visible_teams(caller, data.policy)
        values = {}
        # Outside the part that changes every second: it is read once a minute.
        if data.fleet.pools and not is_part(request):
            values = {"use": await uses.view(caller), "heat": await uses.idlest_nodes()}
        return fragments.show(
            request,
            (data, cost),
            visible,
            lambda: pages.show(request, "fleet.html", _values(data, cost, visible) | values),
        )

    @app.get("/fleet/data", dependencies=PAGE, include_in_schema=False)
    async def fleet_data(days: Days = 1) -> Response:
        """Return total and used GPUs by hour."""
        return JSONResponse(await plots.series(days), headers=HEADERS)


def _values(data: FleetPageData, cost: DayCost, visible: frozenset[str] | None) -> dict[str, Any]:
    if not data.fleet.pools:
        return {"data": data}
    cards = view_model.cards(data)
    rows = view_model.queue_rows(data, visible)
    clusters = convert.clusters(data.state)
    return {
        "data": data,
        "cards": cards,
        "figures": view_model.fleet_totals(data, cards),
        "money": view_model.todays_cost(data, cost, visible),
        "budgets": view_model.budgets(data, visible),
        "queues": rows[: view_model.MAX_QUEUES],
        "queues_beyond": max(0, len(rows) - view_model.MAX_QUEUES),
        "clusters": clusters,
        "unreachable": [c for c in clusters if c.reachable is False],
        "troubled": [c for c in clusters if c.reachable is not False and c.conditions],
        "condition_text": condition_text,
        "meanings": MEANINGS,
    }
