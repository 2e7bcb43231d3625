"""Read the data of the Fleet and Pool pages, shared by all open pages.

A read is ten small queries on two connections. Their cost grows with open jobs, clusters, pools and teams,
not with finished jobs. Money is refreshed at most twice a minute, plots once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger
from fairway.ledger.pools import FleetSnapshot
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, TeamName
from fairway.services.charges import Costs
from fairway.services.convert.fleet import FleetState
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets, with_raised_budgets
from fairway.web.cache.single_flight import SingleFlight
from fairway.web.pages.fleet.supply_bars import Grants

SPEND_SECONDS: Final = 30
STALE_SECONDS: Final = 300
"""The age up to which a cached sum of money, or a plot, is served while it is refreshed."""
MIN_INTERVAL: Final = 0.25
"""The shortest time between reads for many open pages."""


@dataclass(frozen=True, slots=True)
class FleetPageData:
    """The fleet at one moment: file, clusters, pools, jobs and policy."""

    state: FleetState
    snapshot: FleetSnapshot
    policy: Fleet
    """The fleet as last applied, else the newest revision: its guarantees apply."""
    raised: Fleet
    """`policy` with the amounts of budgets that are in force."""
    grants: Grants
    """The grants of `policy`."""
    gpus: Mapping[PoolName, int]
    """The GPUs of each pool as last metered, those that are cut into slices included."""

    @property
    def fleet(self) -> Fleet:
        """Return the newest revision of the fleet: the existing pools and clusters."""
        return self.state.fleet


@dataclass(frozen=True, slots=True)
class DayCost:
    """Today's cost so far."""

    by_team: dict[TeamName, Fraction]
    """By team without its subteams; the empty name is work under no team."""
    unallocated: Fraction
    """Idle and overhead cost that is not allocated to a team."""


class FleetPageCache:
    """Data shared by all open Fleet and Pool pages of this server."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._costs = Costs(ledger, FleetHistory(ledger, fleets))
        self._grants = Grants(Fleet(name="", currency="", clusters=(), pools=()))
        self.data: Final = SingleFlight(self._read, min_interval=MIN_INTERVAL)
        self.day_cost: Final = SingleFlight(self._read_spend, max_age=SPEND_SECONDS, stale_age=STALE_SECONDS)

    async def _read(self) -> FleetPageData:
        fleet = await self._fleets.current()
        snapshot = await self._ledger.pools.fleet()
        applied = max((cluster.revision for cluster in snapshot.applied), default=None)
        policy = fleet if applied is None else await self._fleets.at(applied) or fleet
        if self._grants.fleet is not policy:
            self._grants = Grants(policy)
        clusters = {str(cluster.cluster): cluster for cluster in snapshot.clusters}
        raised = await with_raised_budgets(policy, self._ledger, int(time.time()))
        conditions = await self._ledger.conditions.all()
        state = FleetState(fleet, clusters, snapshot.pools, datetime.now(UTC), conditions)
        gpus = await self._ledger.capacity.gpus()
        return FleetPageData(state, snapshot, policy, raised, self._grants, gpus)

    async def _read_spend(self) -> DayCost:
        """Read today's sums only: usage by hour, and running jobs."""
        fleet = await self._fleets.current()
        by_team: dict[TeamName, Fraction] = {}
        unallocated = Fraction(0)
        if fleet.pools:
            now = int(time.time())
            calendar = calendar_of(fleet)
            today = calendar.day_span(calendar.day_of(now))
            for charge in await self._costs.charges(fleet, today, (Label.TEAM,), now=now):
                if charge.labels is None:
                    unallocated += charge.amount
                else:
                    team = TeamName(charge.labels[0])
                    by_team[team] = by_team.get(team, Fraction(0)) + charge.amount
        return DayCost(by_team, unallocated)
