"""Add the pages to the app. `server` does so after adding the API's routes."""

from __future__ import annotations

from fastapi import FastAPI

from fairway.api.auth import GuardedRoute, keep_engine_routes, require_rules
from fairway.ledger import Ledger
from fairway.services.fleets import Fleets
from fairway.services.jobs import JobServices
from fairway.services.policy import PolicyServices
from fairway.settings import Settings
from fairway.web import live
from fairway.web.auth import login_pages, oidc_pages, sign_in
from fairway.web.context import PageContext
from fairway.web.pages.cost import page as cost_page
from fairway.web.pages.fleet import page as fleet_page
from fairway.web.pages.fleet.data import FleetPageCache
from fairway.web.pages.fleet.plots import Plots
from fairway.web.pages.home import page as home_page
from fairway.web.pages.jobs import list_page
from fairway.web.pages.policy import page as policy_page
from fairway.web.pages.pool import page as pool_page
from fairway.web.pages.search import page as search_page
from fairway.web.pages.server import page as server_page
from fairway.web.pages.teams import page as team_page
from fairway.web.render import PageRenderer
from fairway.web.sessions import PageRoute, error_page_with_navigation
from fairway.web.static import StaticFiles
from fairway.web.use_view import UseViews


def add_pages(
    app: FastAPI,
    ledger: Ledger,
    fleets: Fleets,
    policy: PolicyServices,
    jobs: JobServices,
    settings: Settings,
    *,
    only_engine_routes: bool = False,
) -> None:
    """Add every page, the static files, and sign-in.

    With `only_engine_routes`, add the pages that ask engines, and drop every route that asks none: other
    servers answer those.
    """
    static = StaticFiles()
    pages = PageRenderer(static)
    app.state.pages = pages
    app.state.public_url = settings.public_url
    app.state.error_page = error_page_with_navigation
    app.router.route_class = PageRoute
    site = PageContext(app, ledger, fleets, pages, policy, jobs, settings)
    list_page.add_job_pages(site)
    policy_page.add_policy_pages(site)
    if not only_engine_routes:
        static.add_route(app)
        sign_in.add_sign_in(site)
        oidc_pages.add_oidc(site)
        login_pages.add_login_pages(site)
        live.add_live(app, ledger)
        fleet_cache, plots = FleetPageCache(ledger, fleets), Plots(ledger, fleets)
        uses = UseViews(ledger, fleets)
        home_page.add_home_page(site, fleet_cache)
        fleet_page.add_fleet_pages(site, fleet_cache, plots, uses)
        pool_page.add_pool_pages(site, fleet_cache, plots, uses)
        team_page.add_team_pages(site, uses, plots)
        cost_page.add_cost_pages(site, plots)
        server_page.add_server_page(site)
        search_page.add_search_page(site)
    app.router.route_class = GuardedRoute
    require_rules(app)
    if only_engine_routes:
        keep_engine_routes(app)


def stop_pages(app: FastAPI) -> None:
    """End the event streams of open pages. Does nothing for an app without pages."""
    poller: live.ChangePoller | None = getattr(app.state, "change_poller", None)
    if poller is not None:
        poller.stop()
