"""The Fleet page: capacity, its use, what waits, what it costs.

The page and its live part are served from a snapshot that all open pages share; see `data` for its cost.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api.auth import caller_of
from fairway.services.convert import fleet as convert
from fairway.services.rights import teams_seen
from fairway.web.cache.single_flight import SharedParts
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model as shown
from fairway.web.pages.fleet.data import FleetLook, FleetLooks, Spend
from fairway.web.pages.fleet.plots import MOST_DAYS, Plots
from fairway.web.pages.fleet.supply_bars import MEANINGS
from fairway.web.render import HEADERS
from fairway.web.sessions import PAGE

Days = Annotated[int, Query(ge=1, le=MOST_DAYS)]


def add_fleet_pages(site: PageContext, looks: FleetLooks, plots: Plots) -> None:
    """Add the Fleet page, and the data of its plot."""
    app, pages = site.app, site.pages
    parts = SharedParts("fleet-part")

    @app.get("/", dependencies=PAGE, include_in_schema=False)
    async def show_fleet(request: Request) -> Response:
        """Show the Fleet page."""
        look, spend = await looks.now.get(), await looks.spend.get()
        seen = teams_seen(caller_of(request), look.policy)
        return parts.show(
            request,
            (look, spend),
            seen,
            lambda: pages.show(request, "fleet.html", _shown(look, spend, seen)),
        )

    @app.get("/fleet/data", dependencies=PAGE, include_in_schema=False)
    async def fleet_data(days: Days = 1) -> Response:
        """Return total and used GPUs by hour."""
        return JSONResponse(await plots.fleet(days), headers=HEADERS)


def _shown(look: FleetLook, spend: Spend, seen: frozenset[str] | None) -> dict[str, Any]:
    if not look.fleet.pools:
        return {"look": look}
    cards = shown.cards(look)
    rows = shown.queue_rows(look)
    clusters = convert.clusters(look.known)
    return {
        "look": look,
        "cards": cards,
        "figures": shown.figures(look, cards),
        "money": shown.money(look, spend, seen),
        "budgets": shown.budgets(look, seen),
        "queues": rows[: shown.MOST_QUEUES],
        "queues_beyond": max(0, len(rows) - shown.MOST_QUEUES),
        "clusters": clusters,
        "unreachable": [c for c in clusters if c.reachable is False],
        "meanings": MEANINGS,
    }
