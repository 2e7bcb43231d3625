"""The search over jobs, teams, users, nodes and pools: a page, and the list of the dialog that `/` opens."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.services.rights import person_of
from fairway.services.search import MAX_LENGTH, FoundKind, search
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE

TITLES: Final = {
    FoundKind.JOB: "Jobs",
    FoundKind.TEAM: "Teams",
    FoundKind.POOL: "Pools",
    FoundKind.NODE: "Nodes",
    FoundKind.USER: "Users",
}


def add_search_page(site: PageContext) -> None:
    """Add the search."""

    @site.app.get("/search", dependencies=PAGE, include_in_schema=False)
    async def show_results(request: Request) -> Response:
        """Show what matches the query."""
        fleet = await site.fleets.in_force()
        text = request.query_params.get("q", "")[:MAX_LENGTH]
        found = await search(site.ledger, fleet, person_of(caller_of(request), fleet), text)
        groups = [(TITLES[kind], list(group)) for kind, group in groupby(found, key=lambda one: one.kind)]
        return site.pages.show(request, "search.html", {"q": text.strip(), "groups": groups})
