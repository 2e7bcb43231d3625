"""The pages of policy."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_policy_pages(site: Site) -> None:
    """Policy."""
    app, pages = site.app, site.pages

    @app.get("/policy", dependencies=PAGE, include_in_schema=False)
    async def show_policy(request: Request) -> Response:
        """Policy."""
        return pages.show(request, "policy.html", {})
