"""Start applies and adoptions: check them, queue them; the apply loop carries them out."""

from __future__ import annotations

from fairway.files import fleet_digest
from fairway.ledger import Ledger, Token
from fairway.policy.objects import ObjectKey
from fairway.services.fleets import Fleets
from fairway.services.policy_queries import (
    PolicyParts,
    apply_progress,
    checked,
    cluster_of,
    fleet_of,
    require_known_connections,
)
from fairway.wire import policy as wire


async def start_apply(
    parts: PolicyParts, ledger: Ledger, fleets: Fleets, caller: Token, asked: wire.ApplyRequest
) -> wire.Apply:
    """Queue the apply of a planned fleet.

    A cluster whose fingerprint is another one by the time it is applied is refused and stays as it is.
    """
    fleet = fleet_of(await checked(parts, asked))
    await require_known_connections(caller, fleet, fleets)
    fingerprints = {cluster_of(fleet, name): mark for name, mark in asked.fingerprints.items()}
    number = await ledger.applies.queue(
        asked.fleet, fleet_digest(asked.fleet), fingerprints, force=asked.force, by=caller.name
    )
    return await apply_progress(ledger, number)


async def start_adoption(
    ledger: Ledger, fleets: Fleets, caller: Token, asked: wire.AdoptionRequest
) -> wire.Apply:
    """Queue the adoption of objects that carry no mark of Fairway's."""
    cluster = cluster_of(await fleets.current(), asked.cluster)
    keys = [ObjectKey(o.kind, o.name) for o in asked.objects]
    number = await ledger.applies.queue_adoption(cluster, keys, by=caller.name)
    return await apply_progress(ledger, number)
