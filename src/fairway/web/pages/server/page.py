"""The page of the server itself, for operators: requests that run and wait, and every loop."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from fairway.api.load import RequestQueues
from fairway.ledger import FLEET
from fairway.web.context import PageContext
from fairway.web.pages.server.view_model import loop_rows
from fairway.web.sessions import PAGE_OPERATOR_UNLIMITED


def add_server_page(site: PageContext) -> None:
    """Add the page. It is answered however many requests wait: that is when somebody looks at it."""

    @site.app.get("/server", dependencies=PAGE_OPERATOR_UNLIMITED, include_in_schema=False)
    async def show_server(request: Request) -> Response:
        """Show the queues of this server, and the loops of all."""
        queues: RequestQueues = site.app.state.queues
        clusters = {FLEET, *(cluster.name for cluster in (await site.fleets.current()).clusters)}
        leases = [lease for lease in await site.ledger.leases.all() if lease.cluster in clusters]
        values = {
            "queues": queues.by_kind,
            "loops": loop_rows(leases, _samples(site.app.state.registry), datetime.now(UTC)),
        }
        return site.pages.show(request, "server.html", values)


def _samples(registry: CollectorRegistry) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for metric in registry.collect():
        if metric.name.startswith("fairway_loop_"):
            for sample in metric.samples:
                found.setdefault(sample.name, []).append(sample)
    return found
