"""The pages of fleet."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_fleet_pages(site: Site) -> None:
    """Fleet."""
    app, pages = site.app, site.pages

    @app.get("/", dependencies=PAGE, include_in_schema=False)
    async def show_fleet(request: Request) -> Response:
        """Fleet."""
        return pages.show(request, "fleet.html", {})
