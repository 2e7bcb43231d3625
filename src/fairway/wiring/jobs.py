"""What the API's routes of jobs are made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fairway.api.fleets import Fleets
from fairway.api.job_routes import JobParts
from fairway.control.bell import Bell
from fairway.control.held import HeldEngines
from fairway.control.logs import LogReader
from fairway.control.submitting import Submitter
from fairway.ledger import Ledger, Revision
from fairway.model.fleet import Fleet
from fairway.wiring.engines import Engines


@asynccontextmanager
async def job_parts(
    ledger: Ledger, engines: Engines, parse: Callable[[Revision], Fleet], bell: Bell | None = None
) -> AsyncIterator[JobParts]:
    """Takes jobs in and reads what they print; the engines it needs for that are let go at the end."""
    fleets, held = Fleets(ledger, parse), HeldEngines(engines.to_plan)
    try:
        yield JobParts(Submitter(ledger, fleets, held, bell=bell), LogReader(ledger, fleets, held))
    finally:
        await held.close()
