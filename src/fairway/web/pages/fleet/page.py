"""The Fleet page: capacity, its use, what waits, what it costs.

The page and its live part are served from a snapshot that all open pages share; see `data` for its cost.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import JSONResponse

from fairway.api.auth import caller_of
from fairway.services.convert import fleet as convert
from fairway.services.rights import visible_teams
from fairway.views.conditions import condition_text
from fairway.web.cache.single_flight import FragmentCache, within
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model
from fairway.web.pages.fleet.data import DayCost, FleetPageCache, FleetPageData
from fairway.web.pages.fleet.plots import PlotBy, Plots
from fairway.web.pages.fleet.supply_bars import MEANINGS
from fairway.web.ranges import keep_window, range_choices, time_range
from fairway.web.render import HEADERS, is_part
from fairway.web.sessions import PAGE
from fairway.web.use_view import UseViews

DEFAULT_WINDOW: Final = "7d"
USE_PART: Final = "fleet-use"
"""The part of the page that is loaded after it: it takes longer to read, and changes once a minute."""
QUICK_SECONDS: Final = 0.15
"""How long the page waits for today's cost; a live update brings it if it takes longer."""


def add_fleet_pages(site: PageContext, cache: FleetPageCache, plots: Plots, uses: UseViews) -> None:
    """Add the Fleet page, and the data of its plot."""
    app, pages = site.app, site.pages
    fragments = FragmentCache("fleet-part")

    @app.get("/fleet", dependencies=PAGE, include_in_schema=False)
    async def show_fleet(request: Request) -> Response:
        """Show the Fleet page."""
        data, caller = await cache.data.get(), caller_of(request)
        visible = visible_teams(caller, data.policy)
        range_ = time_range(data.fleet, request, DEFAULT_WINDOW)
        if is_part(request, USE_PART):
            use = {"use": await uses.view(caller, range_=range_), "heat": await uses.idlest_nodes()}
            return pages.show(request, "fleet.html", use)
        cost = await within(QUICK_SECONDS, cache.day_cost.get())
        values = {"range": range_, "ranges": range_choices(request.url.path, range_.text)}
        response = fragments.show(
            request,
            (data, cost),
            visible,
            lambda: pages.show(request, "fleet.html", _values(data, cost, visible) | values),
        )
        return keep_window(request, response, request.query_params.get("window", ""))

    @app.get("/fleet/data", dependencies=PAGE, include_in_schema=False)
    async def fleet_data(request: Request, by: PlotBy = PlotBy.TEAM) -> Response:
        """Return GPUs over time by team or pool, with capacity, loans and queue."""
        fleet = await site.fleets.in_force()
        range_ = time_range(fleet, request, DEFAULT_WINDOW)
        visible = visible_teams(caller_of(request), fleet)
        return JSONResponse(await plots.series(range_, by, visible=visible), headers=HEADERS)


def _values(data: FleetPageData, cost: DayCost | None, visible: frozenset[str] | None) -> dict[str, Any]:
    if not data.fleet.pools:
        return {"data": data}
    cards = view_model.cards(data)
    rows = view_model.queue_rows(data, visible)
    clusters = convert.clusters(data.state)
    return {
        "data": data,
        "cards": cards,
        "figures": view_model.fleet_totals(data, cards),
        "money": None if cost is None else view_model.todays_cost(data, cost, visible),
        "sees_all": visible is None,
        "budgets": view_model.budgets(data, visible),
        "queues": rows[: view_model.MAX_QUEUES],
        "queues_beyond": max(0, len(rows) - view_model.MAX_QUEUES),
        "clusters": clusters,
        "unreachable": [c for c in clusters if c.reachable is False],
        "troubled": [c for c in clusters if c.reachable is not False and c.conditions],
        "condition_text": condition_text,
        "meanings": MEANINGS,
    }
