"""The page of the fleet: what there is, what of it works for whom, what waits, what it costs.

The page and its live part answer from one look that all open pages share; see `fleet_look` for what it costs.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from fairway.api import known
from fairway.api.access import caller_of
from fairway.api.cost_rights import teams_seen
from fairway.web import fleet_known as shown
from fairway.web.fleet_look import FleetLook, FleetLooks, Spend
from fairway.web.fleet_plots import MOST_DAYS, Plots
from fairway.web.pages import HEADERS
from fairway.web.rules import PAGE
from fairway.web.shared_look import SharedParts
from fairway.web.site import Site
from fairway.web.supply_known import MEANINGS

Days = Annotated[int, Query(ge=1, le=MOST_DAYS)]


def add_fleet_pages(site: Site, looks: FleetLooks, plots: Plots) -> None:
    """The fleet, and the data of its plot."""
    app, pages = site.app, site.pages
    parts = SharedParts("fleet-part")

    @app.get("/", dependencies=PAGE, include_in_schema=False)
    async def show_fleet(request: Request) -> Response:
        """The fleet at a glance."""
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
        """GPUs there were and GPUs used, by hour."""
        return JSONResponse(await plots.fleet(days), headers=HEADERS)


def _shown(look: FleetLook, spend: Spend, seen: frozenset[str] | None) -> dict[str, Any]:
    if not look.fleet.pools:
        return {"look": look}
    cards = shown.cards(look)
    rows = shown.queue_rows(look)
    clusters = known.clusters(look.known)
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
