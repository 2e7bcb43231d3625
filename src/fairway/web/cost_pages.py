"""The pages of cost."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_cost_pages(site: Site) -> None:
    """Cost."""
    app, pages = site.app, site.pages

    @app.get("/cost", dependencies=PAGE, include_in_schema=False)
    async def show_cost(request: Request) -> Response:
        """Cost."""
        return pages.show(request, "cost.html", {})
