"""The pages of pool."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_pool_pages(site: Site) -> None:
    """Pool."""
    app, pages = site.app, site.pages

    @app.get("/pools/{pool}", dependencies=PAGE, include_in_schema=False)
    async def show_pool(request: Request, pool: str) -> Response:
        """Pool."""
        return pages.show(request, "pool.html", {})
