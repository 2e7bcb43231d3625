"""The fleet that was last applied to a cluster, parsed once for each revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairway.ledger import Ledger, Revision
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName


@dataclass(frozen=True, slots=True)
class AppliedFleet:
    """A fleet, and the apply that made a cluster so."""

    apply: int
    fleet: Fleet


class LastApplied:
    """Asks the ledger which revision holds, one small query each time, and reads it when it is a new one."""

    def __init__(self, cluster: ClusterName, ledger: Ledger, parse: Callable[[Revision], Fleet]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._parse = parse
        self._known: tuple[int, Fleet] | None = None
        self._newest: tuple[int, Fleet] | None = None

    async def get(self) -> AppliedFleet | None:
        """None: nothing was ever applied to the cluster."""
        holds = await self._ledger.applied_cluster(self._cluster)
        if holds is None:
            return None
        if self._known is None or self._known[0] != holds.revision:
            revision = await self._ledger.revision(holds.revision)
            if revision is None:
                return None
            self._known = (revision.id, self._parse(revision))
        return AppliedFleet(holds.apply, self._known[1])

    async def fleet(self) -> Fleet | None:
        """What engines enforce on the cluster; before the first apply, what the newest revision says."""
        holds = await self.get()
        if holds is not None:
            return holds.fleet
        newest = await self._ledger.fleet_revision()
        if newest is None:
            return None
        if self._newest is None or self._newest[0] != newest:
            revision = await self._ledger.revision(newest)
            if revision is None:
                return None
            self._newest = (newest, self._parse(revision))
        return self._newest[1]
