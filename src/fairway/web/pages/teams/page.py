"""The Teams pages: usage against guarantees, and budgets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.cost.budget_text import SpentBudget
from fairway.ledger import BudgetEvent, Ledger, StoredBudgetStatus, Token
from fairway.ledger.records.jobs import JobFilter
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.budget_holds import spent_budgets
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import jobs as convert_jobs
from fairway.services.convert.budgets import explained
from fairway.services.cost_queries import CostQueries, CostQuestion
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.rights import teams_seen, usage_filter
from fairway.views.jobs import reason_text
from fairway.web.cache.cost_queries import CachedCostQueries
from fairway.web.context import PageContext
from fairway.web.pages.cost.query import CostQuery
from fairway.web.pages.cost.tables import cost_table
from fairway.web.pages.teams.view_model import Sort, TeamListRow, lines, ordered
from fairway.web.sessions import PAGE
from fairway.wire import costs as cost_wire
from fairway.wire import jobs as job_wire

PER_PAGE: Final = 100
SHOWN_SUPPLIES: Final = 6
"""The most supplies of a team in the list; its own page has all."""
TOP_JOBS: Final = 20
EVENTS: Final = 20
LATELY: Final = "7d"
SPENDING: Final = "30d"
LONGEST_SECONDS: Final = 5.0
"""How long a page waits for sums of usage before it is shown without them."""
_NOT_STARTED: Final = (JobState.QUEUED, JobState.WAITING, JobState.HELD)


@dataclass(frozen=True, slots=True)
class _Money:
    """The state of the budgets, and the teams they hold."""

    standings: Sequence[StoredBudgetStatus]
    held: Mapping[TeamName, SpentBudget]
    now: int

    @classmethod
    async def of(cls, ledger: Ledger, fleet: Fleet) -> _Money:
        now = int(time.time())
        standings = await ledger.budgets.standings()
        return cls(standings, spent_budgets(fleet, standings, now), now)

    def budgets(
        self, fleet: Fleet, seen: frozenset[str] | None, events: Sequence[BudgetEvent] = ()
    ) -> dict[str, Any]:
        """Return the budgets that the caller may see, by team."""
        found = convert_budgets.budgets(fleet, self.standings, events, self.now, seen)
        return {budget.team: budget for budget in found.budgets}


def add_team_pages(site: PageContext) -> None:
    """Add the Teams page, and the page of each team."""
    costs = CachedCostQueries(site.ledger, site.fleets)
    add_teams_page(site, costs)
    add_team_page(site, costs)


def add_teams_page(site: PageContext, costs: CostQueries) -> None:
    """Add the Teams page: everyone may see usage, but not spending."""
    app, pages = site.app, site.pages

    @app.get("/teams", dependencies=PAGE, include_in_schema=False)
    async def show_teams(request: Request) -> Response:
        """Show the teams as a tree, or as a sorted list."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        sort, page = _sort(request.query_params.get("sort")), _page(request.query_params.get("page"))
        if not fleet.teams:
            return pages.show(request, "teams.html", {"fleet": fleet, "found": [], "sort": sort})
        money = await _Money.of(site.ledger, fleet)
        found = ordered(await _lines(site, fleet, caller, costs, money), sort)
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


def add_team_page(site: PageContext, costs: CostQueries) -> None:
    """Add the page of one team, for its members and those of parent teams, and for roles that see all."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/teams/{team}", dependencies=PAGE, include_in_schema=False)
    async def show_team(request: Request, team: str) -> Response:
        """Show the supplies, members, jobs and money of a team."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        usage_filter(caller, fleet, team, None, None)  # refuses a team that is not there, or not theirs
        tree, name = TeamTree(fleet.teams), TeamName(team)
        events = await ledger.budgets.events(team=team, limit=EVENTS)
        money = await _Money.of(ledger, fleet)
        found = {line.team.name: line for line in await _lines(site, fleet, caller, costs, money)}
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
            "reason_text": reason_text,
            **await _spending(costs, caller, team),
        }
        return pages.show(request, "team.html", known)


async def _lines(
    site: PageContext, fleet: Fleet, caller: Token, costs: CostQueries, money: _Money
) -> list[TeamListRow]:
    seen = teams_seen(caller, fleet)
    return lines(
        fleet,
        await site.ledger.jobs.counts(),
        await site.ledger.clusters.pools(),
        money.budgets(fleet, seen),
        money.held,
        seen,
        await _used_lately(costs, caller) if fleet.name else None,
    )


async def _used_lately(costs: CostQueries, caller: Token) -> Mapping[str, Decimal] | None:
    """Return recent GPU-hours by team without subteams. Returns None if it takes too long."""
    asked = CostQuestion(LATELY, (Label.TEAM,), most=cost_wire.MOST_ROWS)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            report = await costs.usage(caller, asked)
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
    """The newest few of the team and those inside it, with the budget they wait for as their reason."""
    rows = await ledger.jobs.page(JobFilter(teams=teams, states=states), limit=TOP_JOBS)
    return [explained(convert_jobs.job(row), fleet, held) for row in rows]


async def _spending(costs: CostQueries, caller: Token, team: str) -> dict[str, Any]:
    """Return spending by user and by pool. The values are None if it takes too long."""
    by_user = CostQuery(window=SPENDING, by=(Label.USER,), team=team, most=10)
    by_pool = CostQuery(window=SPENDING, by=(Label.POOL,), team=team, most=10)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            users = await costs.cost(caller, by_user.question())
            pools = await costs.cost(caller, by_pool.question())
    except TimeoutError:
        return {"spending": None, "spent": None, "cost_address": by_user.address()}
    tables = [(users, cost_table(users, by_user), by_user), (pools, cost_table(pools, by_pool), by_pool)]
    return {"spending": tables, "spent": users.total, "cost_address": by_user.address()}


def _sort(word: str | None) -> Sort:
    try:
        return Sort(word) if word else Sort.TREE
    except ValueError:
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"sort: teams are not ordered by {word!r}",
            f"sort is any of {', '.join(Sort)}",
        ) from None


def _page(word: str | None) -> int:
    return max(1, int(word)) if word and word.isascii() and word.isdecimal() and len(word) < 7 else 1
