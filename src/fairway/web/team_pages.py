"""The pages of teams: who holds what of what they are guaranteed, and how their budgets stand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response

from fairway.api import budget_known, cost_wire, job_known, job_wire
from fairway.api.access import caller_of
from fairway.api.budget_known import explained
from fairway.api.cost_desk import Asked, CostDesk
from fairway.api.cost_rights import teams_seen, usage_filter
from fairway.api.problems import ApiError
from fairway.cost.budget_words import SpentBudget
from fairway.ledger import BudgetEvent, BudgetStanding, Ledger, Token
from fairway.ledger.job_records import JobFilter
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.web.cost_query import CostQuery
from fairway.web.cost_rows import cost_table
from fairway.web.rules import PAGE
from fairway.web.shared_desk import SharedDesk
from fairway.web.site import Site
from fairway.web.team_standing import Sort, TeamLine, lines, ordered

PER_PAGE: Final = 100
SHOWN_SUPPLIES: Final = 6
"""Of a team in the list; its own page has all."""
TOP_JOBS: Final = 20
EVENTS: Final = 20
LATELY: Final = "7d"
SPENDING: Final = "30d"
LONGEST_SECONDS: Final = 5.0
"""How long a page waits for sums of usage before it does without them."""
_NOT_STARTED: Final = (JobState.QUEUED, JobState.WAITING, JobState.HELD)


@dataclass(frozen=True, slots=True)
class _Money:
    """How budgets stand now, and whom they hold."""

    standings: Sequence[BudgetStanding]
    held: Mapping[TeamName, SpentBudget]
    now: int

    @classmethod
    async def of(cls, ledger: Ledger, fleet: Fleet) -> _Money:
        now = int(time.time())
        standings = await ledger.budget_standings()
        return cls(standings, budget_known.spent_budgets(fleet, standings, now), now)

    def budgets(
        self, fleet: Fleet, seen: frozenset[str] | None, events: Sequence[BudgetEvent] = ()
    ) -> dict[str, Any]:
        """By team, those the caller may see."""
        found = budget_known.budgets(fleet, self.standings, events, self.now, seen)
        return {budget.team: budget for budget in found.budgets}


def add_team_pages(site: Site) -> None:
    """Teams, and each team."""
    desk = SharedDesk(site.ledger, site.fleets)
    add_teams_page(site, desk)
    add_team_page(site, desk)


def add_teams_page(site: Site, desk: CostDesk) -> None:
    """All teams: what they hold is everybody's to see, what they spend is not."""
    app, pages = site.app, site.pages

    @app.get("/teams", dependencies=PAGE, include_in_schema=False)
    async def show_teams(request: Request) -> Response:
        """The tree, or a list by what was asked for."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        sort, page = _sort(request.query_params.get("sort")), _page(request.query_params.get("page"))
        if not fleet.teams:
            return pages.show(request, "teams.html", {"fleet": fleet, "found": [], "sort": sort})
        money = await _Money.of(site.ledger, fleet)
        found = ordered(await _lines(site, fleet, caller, desk, money), sort)
        last = max(1, -(-len(found) // PER_PAGE))
        page = min(page, last)
        known = {
            "fleet": fleet,
            "found": found[(page - 1) * PER_PAGE : page * PER_PAGE],
            "all": found,
            "sort": sort,
            "Sort": Sort,
            "page": page,
            "last": last,
            "most_supplies": SHOWN_SUPPLIES,
        }
        return pages.show(request, "teams.html", known)


def add_team_page(site: Site, desk: CostDesk) -> None:
    """One team, for those who are in it or above it, and for those who see all."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/teams/{team}", dependencies=PAGE, include_in_schema=False)
    async def show_team(request: Request, team: str) -> Response:
        """Its supplies, people, jobs and money."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        usage_filter(caller, fleet, team, None, None)  # refuses a team that is not there, or not theirs
        tree, name = TeamTree(fleet.teams), TeamName(team)
        events = await ledger.budget_events(team=team, limit=EVENTS)
        money = await _Money.of(ledger, fleet)
        found = {line.team.name: line for line in await _lines(site, fleet, caller, desk, money)}
        family = tuple(t.name for t in tree.subtree(tree[name]))
        running = await _jobs(ledger, fleet, money.held, family, (JobState.RUNNING,))
        waiting = await _jobs(ledger, fleet, money.held, family, _NOT_STARTED)
        known = {
            "fleet": fleet,
            "line": found[name],
            "inside": [found[child.name] for child in tree.children(tree[name])],
            "events": events,
            "running": running,
            "waiting": waiting,
            "top": TOP_JOBS,
            "now": datetime.now(UTC),
            **await _spending(desk, caller, team),
        }
        return pages.show(request, "team.html", known)


async def _lines(site: Site, fleet: Fleet, caller: Token, desk: CostDesk, money: _Money) -> list[TeamLine]:
    seen = teams_seen(caller, fleet)
    return lines(
        fleet,
        await site.ledger.job_counts(),
        await site.ledger.pools(),
        money.budgets(fleet, seen),
        money.held,
        seen,
        await _used_lately(desk, caller) if fleet.name else None,
    )


async def _used_lately(desk: CostDesk, caller: Token) -> Mapping[str, Decimal] | None:
    """GPU-hours by team, each without those inside it; None: it takes too long now."""
    asked = Asked(LATELY, (Label.TEAM,), most=cost_wire.MOST_ROWS)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            report = await desk.usage(caller, asked)
    except TimeoutError:
        return None
    return {row.labels[0]: row.gpu_hours for row in report.rows}


async def _jobs(
    ledger: Ledger,
    fleet: Fleet,
    held: Mapping[TeamName, SpentBudget],
    teams: tuple[TeamName, ...],
    states: tuple[JobState, ...],
) -> list[job_wire.Job]:
    """The newest few of the team and those inside it, with the budget they wait for in their reason."""
    rows = await ledger.jobs(JobFilter(teams=teams, states=states), limit=TOP_JOBS)
    return [explained(job_known.job(row), fleet, held) for row in rows]


async def _spending(desk: CostDesk, caller: Token, team: str) -> dict[str, Any]:
    """By user and by pool; without it where it takes too long."""
    by_user = CostQuery(window=SPENDING, by=(Label.USER,), team=team, most=10)
    by_pool = CostQuery(window=SPENDING, by=(Label.POOL,), team=team, most=10)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            users = await desk.cost(caller, by_user.asked())
            pools = await desk.cost(caller, by_pool.asked())
    except TimeoutError:
        return {"spending": None, "spent": None, "cost_address": by_user.address()}
    tables = [(users, cost_table(users, by_user), by_user), (pools, cost_table(pools, by_pool), by_pool)]
    return {"spending": tables, "spent": users.total, "cost_address": by_user.address()}


def _sort(word: str | None) -> Sort:
    try:
        return Sort(word) if word else Sort.TREE
    except ValueError:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "InvalidRequest",
            f"sort: teams are not ordered by {word!r}",
            f"sort is any of {', '.join(Sort)}",
        ) from None


def _page(word: str | None) -> int:
    return max(1, int(word)) if word and word.isascii() and word.isdecimal() and len(word) < 7 else 1
