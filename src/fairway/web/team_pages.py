"""The pages of teams."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_team_pages(site: Site) -> None:
    """Teams."""
    app, pages = site.app, site.pages

    @app.get("/teams", dependencies=PAGE, include_in_schema=False)
    async def show_teams(request: Request) -> Response:
        """Teams."""
        return pages.show(request, "teams.html", {})
