"""Read revisions of the fleet file: the applied one, an older one, and the list of them."""

from __future__ import annotations

from collections.abc import Iterable

from fairway.ledger import Ledger, Revision
from fairway.ledger.records.policy import AppliedCluster
from fairway.services.errors import ErrorKind, RequestError
from fairway.wire import policy as wire


async def find_revision(ledger: Ledger, number: int | None) -> Revision | None:
    """Return the requested revision, else the newest applied one, else the newest.

    Returns None if there is no revision at all. Raises RequestError if there is none of this number.
    """
    if number is not None:
        found = await ledger.revisions.one(number)
        if found is None:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoSuchRevision",
                f"the fleet file has no revision {number}",
                "list revisions with:  fairway get revisions",
            )
        return found
    newest = max((a.revision for a in await ledger.applies.applied()), default=None)
    return await ledger.revisions.newest() if newest is None else await ledger.revisions.one(newest)


async def fleet_file(ledger: Ledger, number: int | None) -> wire.FleetFile:
    """Read one revision with its text; without a number, the one that was applied last."""
    found = await find_revision(ledger, number)
    if found is None:
        raise RequestError(
            ErrorKind.NOT_FOUND,
            "NoFleetFile",
            "the server has no fleet file yet",
            "write one and apply it:  fairway apply -f fleet.yaml",
        )
    applied = await ledger.applies.applied()
    return wire.FleetFile(**_summary(found, applied).model_dump(), text=found.text)


async def list_revisions(
    ledger: Ledger, *, before: int | None = None, limit: int
) -> list[wire.FleetRevision]:
    """List revisions, the newest first, without their text."""
    applied = await ledger.applies.applied()
    return [_summary(r, applied) for r in await ledger.revisions.page(before=before, limit=limit)]


def _summary(revision: Revision, applied: Iterable[AppliedCluster]) -> wire.FleetRevision:
    return wire.FleetRevision(
        revision=revision.id,
        created_at=revision.created_at,
        created_by=revision.created_by,
        digest=revision.digest,
        applied_to=[a.cluster for a in applied if a.revision == revision.id],
    )
