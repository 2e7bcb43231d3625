"""What the pages of the fleet and its pools read, at one moment, for all who have them open.

A look is eight small queries: none grows with jobs that are over. It grows with jobs that are open, clusters,
pools and teams. Money is read anew at most twice a minute, plots once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from fastapi import FastAPI

from fairway.api.fleets import Fleets
from fairway.api.known import Known
from fairway.control.costs import Costs, calendar_of
from fairway.control.fleet_history import FleetHistory
from fairway.ledger import BudgetStanding, Ledger
from fairway.ledger.job_records import JobCount
from fairway.ledger.pool_answers import WaitingGroup
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.team import Supply
from fairway.web.shared_look import SharedLook
from fairway.web.supply_known import Grants

SPEND_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class FleetLook:
    """The fleet as it is now."""

    known: Known
    policy: Fleet
    """As it was last applied, or else as it was given: whose guarantees and budgets count."""
    grants: Grants
    """Of `policy`."""
    counts: tuple[JobCount, ...]
    waiting: tuple[WaitingGroup, ...]
    drained: dict[Supply, int]
    standings: tuple[BudgetStanding, ...]

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
    """Looks for all open pages of this server."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._costs = Costs(ledger, FleetHistory(ledger, fleets))
        self._grants = Grants(Fleet(name="", currency="", clusters=(), pools=()))
        self.now: Final = SharedLook(self._now)
        self.spend: Final = SharedLook(self._spend, keep_seconds=SPEND_SECONDS)

    @classmethod
    def of(cls, app: FastAPI, ledger: Ledger, fleets: Fleets) -> FleetLooks:
        """Those of this server: the pages of the fleet and of its pools have the same."""
        if not hasattr(app.state, "fleet_looks"):
            app.state.fleet_looks = cls(ledger, fleets)
        looks: FleetLooks = app.state.fleet_looks
        return looks

    async def _now(self) -> FleetLook:
        ledger = self._ledger
        fleet = await self._fleets.current()
        policy = await self._fleets.applied() or fleet
        if self._grants.fleet is not policy:
            self._grants = Grants(policy)
        return FleetLook(
            known=Known(
                fleet=fleet,
                clusters={s.cluster: s for s in await ledger.clusters()},
                pools=await ledger.pools(),
                now=datetime.now(UTC),
            ),
            policy=policy,
            grants=self._grants,
            counts=await ledger.job_counts(),
            waiting=await ledger.waiting_groups(),
            drained=await ledger.drained_devices(),
            standings=await ledger.budget_standings(),
        )

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
