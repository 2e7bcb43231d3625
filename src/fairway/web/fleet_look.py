"""What the pages of the fleet and its pools read, at one moment, for all who have them open.

A look is eight small queries on two connections: none grows with jobs that are over. It grows with jobs that
are open, clusters, pools and teams. Money is read anew at most twice a minute, plots once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from fairway.api.fleets import Fleets
from fairway.api.known import Known
from fairway.control.costs import Costs, calendar_of
from fairway.control.fleet_history import FleetHistory
from fairway.ledger import Ledger
from fairway.ledger.pool_answers import FleetNow
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.web.shared_look import SharedLook
from fairway.web.supply_known import Grants

SPEND_SECONDS: Final = 30
STALE_SECONDS: Final = 300
"""So old a sum of money, or a plot, may be shown once more while it is read anew."""
APART_SECONDS: Final = 0.25
"""Between the looks of a crowd of open pages."""


@dataclass(frozen=True, slots=True)
class FleetLook:
    """The fleet as it is now."""

    known: Known
    now: FleetNow
    policy: Fleet
    """As it was last applied, or else as it was given: whose guarantees and budgets count."""
    grants: Grants
    """Of `policy`."""

    @property
    def fleet(self) -> Fleet:
        """As it was last given: the pools and clusters there are."""
        return self.known.fleet


@dataclass(frozen=True, slots=True)
class Spend:
    """What today cost so far."""

    by_team: dict[TeamName, Fraction]
    """Of each team itself, without those inside it; empty name: work under no team."""
    nobodys: Fraction
    """Idle and overhead that nobody carries."""


class FleetLooks:
    """Looks for all open pages of this server: those of the fleet and those of its pools have the same."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._costs = Costs(ledger, FleetHistory(ledger, fleets))
        self._grants = Grants(Fleet(name="", currency="", clusters=(), pools=()))
        self.now: Final = SharedLook(self._now, apart_seconds=APART_SECONDS)
        self.spend: Final = SharedLook(self._spend, keep_seconds=SPEND_SECONDS, stale_seconds=STALE_SECONDS)

    async def _now(self) -> FleetLook:
        fleet = await self._fleets.current()
        now = await self._ledger.fleet_now()
        applied = max((cluster.revision for cluster in now.applied), default=None)
        policy = fleet if applied is None else await self._fleets.at(applied) or fleet
        if self._grants.fleet is not policy:
            self._grants = Grants(policy)
        clusters = {str(state.cluster): state for state in now.clusters}
        known = Known(fleet, clusters, now.pools, datetime.now(UTC))
        return FleetLook(known, now, policy, self._grants)

    async def _spend(self) -> Spend:
        """Reads today's sums alone: usage by hour, and what runs."""
        fleet = await self._fleets.current()
        by_team: dict[TeamName, Fraction] = {}
        nobodys = Fraction(0)
        if fleet.pools:
            now = int(time.time())
            calendar = calendar_of(fleet)
            today = calendar.day_span(calendar.day_of(now))
            for charge in await self._costs.charges(fleet, today, (Label.TEAM,), now=now):
                if charge.labels is None:
                    nobodys += charge.amount
                else:
                    team = TeamName(charge.labels[0])
                    by_team[team] = by_team.get(team, Fraction(0)) + charge.amount
        return Spend(by_team, nobodys)
