"""The pages of jobs."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.web.rules import PAGE
from fairway.web.site import Site


def add_job_pages(site: Site) -> None:
    """Jobs."""
    app, pages = site.app, site.pages

    @app.get("/jobs", dependencies=PAGE, include_in_schema=False)
    async def show_jobs(request: Request) -> Response:
        """Jobs."""
        return pages.show(request, "jobs.html", {})
