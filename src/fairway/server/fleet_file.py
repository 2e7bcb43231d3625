"""Store the fleet file that a server is started with."""

from __future__ import annotations

import shlex

import structlog

from fairway.files import fleet_digest
from fairway.ledger import Ledger
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.services.fleets import Fleets
from fairway.services.removals import KNOWN_AT_ONCE, find_removals
from fairway.views.removals import removal_text

log = structlog.get_logger("fairway.server")


async def keep_fleet_file(ledger: Ledger, fleets: Fleets, fleet: Fleet, text: str, source: str) -> None:
    """Store the text of `fleet`, read from `source`, as the newest revision. Raises PermanentError.

    A file that removes something is refused, because nobody confirms it here: a cluster is no longer tracked
    from the next revision on. A file that was the newest before, and that an apply has replaced since, is
    the usual case of a server that is started again: the newest revision stays.
    """
    digest, newest = fleet_digest(text), await ledger.revisions.newest()
    if newest is not None and newest.digest == digest:
        return
    removals = await find_removals(ledger, fleets, fleet)
    lost = [r for r in removals if r.kind in KNOWN_AT_ONCE and r.needs_force]
    if newest is None or not lost:
        revision = await ledger.revisions.add(text, digest, "fairway server")
        log.info("fleet kept", revision=revision.id)
        return
    known = next((r.id for r in await ledger.revisions.page() if r.digest == digest), None)
    if known is not None:
        log.warning("the fleet file is an earlier revision", file=source, revision=known, serving=newest.id)
        return
    raise PermanentError(
        "RemovalsNotConfirmed",
        f"not started: nobody confirmed what {source} removes: {'; '.join(removal_text(r) for r in lost)}",
        f"start the server without -f, then  fairway apply -f {shlex.quote(source)}  lists what goes and "
        "asks for its names; or put it back into the file",
    )
