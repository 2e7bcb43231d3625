"""Adds the pages to the app. `wiring` does so after the API's routes are there."""

from __future__ import annotations

from fastapi import FastAPI

from fairway.api.access import GuardedRoute, require_rules
from fairway.api.fleets import Fleets
from fairway.api.job_routes import JobParts
from fairway.api.policy_routes import PolicyParts
from fairway.ledger import Ledger
from fairway.settings import Settings
from fairway.web import (
    cost_pages,
    fleet_pages,
    job_pages,
    live,
    oidc_pages,
    policy_pages,
    pool_pages,
    sign_in,
    team_pages,
)
from fairway.web.fleet_look import FleetLooks
from fairway.web.fleet_plots import Plots
from fairway.web.pages import Pages
from fairway.web.rules import PageRoute, error_page_with_navigation
from fairway.web.site import Site
from fairway.web.static import StaticFiles


def add_pages(
    app: FastAPI, ledger: Ledger, fleets: Fleets, policy: PolicyParts, jobs: JobParts, settings: Settings
) -> None:
    """Every page, its files, and signing in."""
    static = StaticFiles()
    pages = Pages(static)
    app.state.pages = pages
    app.state.public_url = settings.public_url
    app.state.error_page = error_page_with_navigation
    app.router.route_class = PageRoute
    site = Site(app, ledger, fleets, pages, policy, jobs, settings)
    static.add_route(app)
    sign_in.add_sign_in(site)
    oidc_pages.add_oidc(site)
    live.add_live(app, ledger)
    looks, plots = FleetLooks(ledger, fleets), Plots(ledger, fleets)
    fleet_pages.add_fleet_pages(site, looks, plots)
    pool_pages.add_pool_pages(site, looks, plots)
    team_pages.add_team_pages(site)
    job_pages.add_job_pages(site)
    cost_pages.add_cost_pages(site)
    policy_pages.add_policy_pages(site)
    app.router.route_class = GuardedRoute
    require_rules(app)


def stop_pages(app: FastAPI) -> None:
    """End what open pages listen to; an app without pages has nothing of it."""
    pulse: live.Pulse | None = getattr(app.state, "pulse", None)
    if pulse is not None:
        pulse.stop()
