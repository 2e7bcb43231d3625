"""The route of budgets: how each stands, whom it holds, what happened to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request

from fairway.api import budget_known as known
from fairway.api import budget_wire as wire
from fairway.api.access import caller_of
from fairway.api.cost_rights import teams_seen
from fairway.api.fleets import Fleets
from fairway.api.routes import PROBLEMS, VIEWER
from fairway.control.applied import has_budgets
from fairway.cost.budget_words import SpentBudget
from fairway.ledger import Ledger
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName

EVENTS_READ: Final = 500


def add_budget_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """How budgets stand."""

    @app.get("/v1/budgets", dependencies=VIEWER, responses=PROBLEMS, tags=["cost"])
    async def list_budgets(request: Request) -> wire.Budgets:
        """What is spent of each budget, how fast, and what is held for it. Members see their own teams'."""
        fleet = await fleets.in_force()
        seen = teams_seen(caller_of(request), fleet)
        standings = await ledger.budget_standings()
        events = await ledger.budget_events(team=None, before=None, limit=EVENTS_READ)
        return known.budgets(fleet, standings, events, int(time.time()), seen)


async def held_now(ledger: Ledger, fleets: Fleets) -> tuple[Fleet, Mapping[TeamName, SpentBudget]]:
    """The fleet, and the budget that holds each held team: what jobs that wait may wait for."""
    fleet = await fleets.applied()
    if fleet is None or not has_budgets(fleet):
        return fleet or await fleets.current(), {}
    return fleet, known.spent_budgets(fleet, await ledger.budget_standings(), int(time.time()))
