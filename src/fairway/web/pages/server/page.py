"""The page of the server itself, for operators: requests that run and wait, and every loop."""

from __future__ import annotations

from fastapi import Request, Response

from fairway.api.load import RequestQueues
from fairway.services.loops import list_loops
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE_OPERATOR_UNLIMITED


def add_server_page(site: PageContext) -> None:
    """Add the page. It is answered however many requests wait: that is when somebody looks at it."""

    @site.app.get("/server", dependencies=PAGE_OPERATOR_UNLIMITED, include_in_schema=False)
    async def show_server(request: Request) -> Response:
        """Show the queues of this server, and the loops of all."""
        queues: RequestQueues = site.app.state.queues
        loops = await list_loops(site.ledger, site.fleets, site.app.state.registry)
        return site.pages.show(request, "server.html", {"queues": queues.by_kind, "loops": loops})
