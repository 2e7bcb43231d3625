"""Read which fleets were in force over time, for charges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.cost.fleet_history import FleetSpan, all_teams, fleet_spans, money_differs
from fairway.ledger import Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, TeamName
from fairway.services.fleets import Fleets


class FleetHistory:
    """Finds the fleets that a period is charged by: those applied; before the first apply, those stored."""

    def __init__(self, ledger: Ledger, fleets: Fleets, planned: tuple[int, Fleet] | None = None) -> None:
        """`planned` is a fleet that is not applied yet, and when it would be."""
        self._ledger = ledger
        self._fleets = fleets
        self._planned: Final = planned

    async def spans(self, fleet: Fleet, period: Span) -> tuple[FleetSpan, ...]:
        """Split a period in the calendar of `fleet`; nothing before the first fleet is included."""
        return fleet_spans(await self.timeline(fleet), calendar_of(fleet), period)

    async def timeline(self, fleet: Fleet) -> list[tuple[int, Fleet]]:
        """Return when each fleet that charges something else came into force, in order.

        The first apply counts from the start of its hour, in place of what was stored in that hour. A
        revision that this release can no longer read counts as the next one that it can, at last `fleet`.
        """
        times = await self._ledger.applies.successful()
        if times:
            (first, applied), *later_applies = times
            hour = calendar_of(fleet).hour_start(int(first.timestamp()))
            first = datetime.fromtimestamp(hour, UTC)
            times = [*await self._ledger.revisions.stored(first), (first, applied), *later_applies]
        else:
            times = await self._ledger.revisions.stored(None)
        later, found = fleet, list[tuple[int, Fleet]]()
        for at, revision in reversed(times):
            later = await self._read(revision, later) or later
            found.append((int(at.timestamp()), later))
        found.reverse()
        found += [] if self._planned is None else [self._planned]
        return [one for n, one in enumerate(found) if not n or one[1] is not found[n - 1][1]]

    async def teams(self, fleet: Fleet) -> Mapping[str, TeamName]:
        """Return the current name of every team that ever was in the fleet, by each of its names."""
        return all_teams(await self.timeline(fleet))

    async def pools(self, fleet: Fleet) -> frozenset[PoolName]:
        """Return the names of all pools that ever were in the fleet."""
        return frozenset(pool.name for _, then in await self.timeline(fleet) for pool in then.pools)

    async def _read(self, revision: int, later: Fleet) -> Fleet | None:
        charged = self._fleets.charged
        if revision not in charged:
            then = await self._fleets.at(revision)
            if then is None:
                return None
            charged[revision] = then if money_differs(later, then) else later
        return charged[revision]
