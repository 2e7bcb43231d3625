"""The Teams pages: usage against guarantees, and budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.cost.budget_text import SpentBudget
from fairway.ledger import Ledger, StoredBudgetStatus, Token
from fairway.ledger.records.jobs import JobFilter
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.job import NOT_STARTED_JOBS, JobState
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.budget_raises import BudgetRaises
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import jobs as convert_jobs
from fairway.services.convert.jobs import with_budget_reason
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import spent_budgets, with_raised_budgets
from fairway.services.rights import usage_filter, visible_teams
from fairway.services.slos import SloQueries
from fairway.services.waits import sum_waits
from fairway.views.colours import colour_class
from fairway.views.jobs import reason_text
from fairway.views.rounded import rounded_report
from fairway.web.cache.cost_queries import CachedCostQueries
from fairway.web.cache.last_known import LastKnown
from fairway.web.context import PageContext
from fairway.web.pages.cost.query import CostQuery
from fairway.web.pages.cost.tables import cost_table
from fairway.web.pages.fleet.plots import Plots
from fairway.web.pages.teams.objectives import PLOT_POINTS, ObjectiveCard, objective_card
from fairway.web.pages.teams.raises import add_raise_forms, raise_values
from fairway.web.pages.teams.view_model import Sort, TeamListRow, sorted_rows, team_rows
from fairway.web.ranges import keep_window, range_choices, report_window, time_range
from fairway.web.render import is_part
from fairway.web.sessions import PAGE
from fairway.web.use_view import UseViews
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as cost_wire
from fairway.wire import jobs as job_wire

PER_PAGE: Final = 100
MAX_SUPPLIES: Final = 6
"""The most supplies of a team in the list; its own page has all."""
MAX_JOBS: Final = 20
MAX_EVENTS: Final = 20
MAX_SLOS: Final = 12
"""The most objectives on a page; `fairway get slos` has all."""
RECENT_WINDOW: Final = "7d"
SPENDING_WINDOW: Final = "30d"
USE_PART: Final = "team-use"
"""The part of a team's page that is loaded after it."""
MAX_SECONDS: Final = 5.0
"""How long a page waits for sums of usage before it is shown without them."""
Spending = list[cost_wire.CostReport]
"""Reports by user and by pool."""
RecentUse = LastKnown[Mapping[str, Decimal]]


@dataclass(frozen=True, slots=True)
class _BudgetState:
    """The state of the budgets, and the spent ones that hold teams."""

    fleet: Fleet
    """With the amounts in force."""
    statuses: Sequence[StoredBudgetStatus]
    spent: Mapping[TeamName, SpentBudget]
    now: int

    @classmethod
    async def of(cls, ledger: Ledger, fleet: Fleet, caller: Token) -> _BudgetState:
        now = int(time.time())
        fleet = await with_raised_budgets(fleet, ledger, now)
        statuses = await ledger.budgets.statuses()
        return cls(fleet, statuses, spent_budgets(fleet, statuses, now, visible_teams(caller, fleet)), now)

    def by_team(self, visible: frozenset[str] | None) -> dict[str, Any]:
        """Return the budgets that the caller may see, by team."""
        found = convert_budgets.budgets(self.fleet, self.statuses, (), self.now, visible)
        return {budget.name: budget for budget in found.budgets}


def add_team_pages(site: PageContext, uses: UseViews, plots: Plots) -> None:
    """Add the Teams page, and the page of each team."""
    costs = CachedCostQueries(site.ledger, site.fleets)
    recent = RecentUse()
    add_teams_page(site, costs, recent, plots)
    raises = BudgetRaises(site.ledger, site.fleets)
    add_team_page(site, costs, recent, uses, raises)
    add_raise_forms(site, raises)


def add_teams_page(site: PageContext, costs: CostQueries, recent: RecentUse, plots: Plots) -> None:
    """Add the Teams page: everyone may see usage, but not spending."""
    app, pages = site.app, site.pages

    @app.get("/teams", dependencies=PAGE, include_in_schema=False)
    async def show_teams(request: Request) -> Response:
        """Show the teams as a tree, or as a sorted list."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        sort, page = _sort(request.query_params.get("sort")), _page(request.query_params.get("page"))
        if not fleet.teams:
            return pages.show(request, "teams.html", {"fleet": fleet, "found": [], "sort": sort})
        budgets = await _BudgetState.of(site.ledger, fleet, caller)
        rows = sorted_rows(await _team_rows(site, fleet, caller, costs, recent, budgets), sort)
        last = max(1, -(-len(rows) // PER_PAGE))
        page = min(page, last)
        values = {
            "fleet": fleet,
            "found": rows[(page - 1) * PER_PAGE : page * PER_PAGE],
            "all": rows,
            "sort": sort,
            "Sort": Sort,
            "page": page,
            "last": last,
            "max_supplies": MAX_SUPPLIES,
            "colours": {team: colour_class(n) for team, n in (await plots.colours(fleet)).items()},
            "slos": await _objectives(site, caller, None),
        }
        return pages.show(request, "teams.html", values)


def add_team_page(
    site: PageContext, costs: CostQueries, recent: RecentUse, uses: UseViews, raises: BudgetRaises
) -> None:
    """Add the page of one team, for its members and those of parent teams, and for roles that see all."""
    app, pages, ledger = site.app, site.pages, site.ledger
    known = LastKnown[Spending]()

    @app.get("/teams/{team}", dependencies=PAGE, include_in_schema=False)
    async def show_team(request: Request, team: str) -> Response:
        """Show the supplies, members, jobs and money of a team."""
        caller, fleet = caller_of(request), await site.fleets.in_force()
        usage_filter(caller, fleet, team, None, None)  # raises if the team is unknown or not visible
        range_ = time_range(fleet, request, SPENDING_WINDOW)
        tree, name = TeamTree(fleet.teams), TeamName(team)
        if is_part(request, USE_PART):
            inside = frozenset(t.name for t in tree.subtree(tree[name]))
            use = await uses.view(caller, team=team, teams=inside, range_=range_)
            return pages.show(request, "team.html", {"use": use})
        events = await ledger.budgets.events(team=team, limit=MAX_EVENTS)
        budgets = await _BudgetState.of(ledger, fleet, caller)
        rows = {row.team.name: row for row in await _team_rows(site, fleet, caller, costs, recent, budgets)}
        subtree = tuple(t.name for t in tree.subtree(tree[name]))
        running = await _jobs(ledger, fleet, budgets.spent, subtree, (JobState.RUNNING,))
        waiting = await _jobs(ledger, fleet, budgets.spent, subtree, NOT_STARTED_JOBS)
        blocked = sum_waits(await ledger.waiting.sums(teams=subtree)).reasons
        budget = rows[name].budget
        values = {
            "fleet": fleet,
            "line": rows[name],
            "inside": [rows[child.name] for child in tree.children(tree[name])],
            "events": events,
            "slos": await _objectives(site, caller, frozenset(subtree)),
            "forecast": await _forecast(costs, caller, team),
            **await raise_values(raises, caller, fleet, name, None if budget is None else budget.period),
            "running": running,
            "waiting": waiting,
            "blocked": blocked,
            "top": MAX_JOBS,
            "now": datetime.now(UTC),
            "reason_text": reason_text,
            "range": range_,
            "ranges": range_choices(request.url.path, range_.text),
            **await _spending(
                costs, known, caller, fleet, team, report_window(range_.text), hurry=not is_part(request)
            ),
        }
        return keep_window(request, pages.show(request, "team.html", values), range_.text)


async def _objectives(
    site: PageContext, caller: Token, teams: frozenset[TeamName] | None
) -> list[ObjectiveCard]:
    """Return the first objectives of these teams that the caller may see, with their budgets over time."""
    queries = SloQueries(site.ledger, site.fleets)
    found = [slo for slo in (await queries.slos(caller)).slos if teams is None or slo.team in teams]
    return [
        objective_card(await queries.history(caller, slo.name, slo.window_seconds, PLOT_POINTS))
        for slo in found[:MAX_SLOS]
    ]


async def _forecast(costs: CostQueries, caller: Token, team: str) -> budget_wire.Forecast | None:
    found = await costs.forecasts(caller, Label.TEAM)
    return next((forecast for forecast in found.forecasts if forecast.name == team), None)


async def _team_rows(
    site: PageContext,
    fleet: Fleet,
    caller: Token,
    costs: CostQueries,
    recent: RecentUse,
    budgets: _BudgetState,
) -> list[TeamListRow]:
    visible = visible_teams(caller, fleet)
    return team_rows(
        fleet,
        await site.ledger.jobs.counts(),
        await site.ledger.clusters.pools(),
        budgets.by_team(visible),
        budgets.spent,
        visible,
        await _used_lately(costs, recent, caller, visible) if fleet.name else None,
    )


async def _used_lately(
    costs: CostQueries, recent: RecentUse, caller: Token, visible: frozenset[str] | None
) -> Mapping[str, Decimal] | None:
    """Return recent GPU-hours by team without subteams, as last known. None: never known."""

    async def read() -> Mapping[str, Decimal]:
        request = CostRequest(RECENT_WINDOW, (Label.TEAM,), max_rows=cost_wire.MAX_ROWS)
        usage = rounded_report(await costs.usage(caller, request))
        return {row.labels[0]: row.gpu_hours for row in usage.rows}

    found = await recent.get(visible, read, MAX_SECONDS, hurry=True)
    return None if found is None else found.result


async def _jobs(
    ledger: Ledger,
    fleet: Fleet,
    spent: Mapping[TeamName, SpentBudget],
    teams: tuple[TeamName, ...],
    states: tuple[JobState, ...],
) -> list[job_wire.Job]:
    """Return the newest jobs of the teams; the reason of a job that waits for a budget is that budget."""
    rows = await ledger.jobs.page(JobFilter(teams=teams, states=states), limit=MAX_JOBS)
    return [with_budget_reason(convert_jobs.job(row), fleet, spent) for row in rows]


async def _spending(
    costs: CostQueries,
    known: LastKnown[Spending],
    caller: Token,
    fleet: Fleet,
    team: str,
    window: str,
    *,
    hurry: bool,
) -> dict[str, Any]:
    """Return cost by user and by pool as last known. The values are None if it was never known."""
    queries = [CostQuery(window=window, by=(by,), team=team, max_rows=10) for by in (Label.USER, Label.POOL)]

    async def read() -> Spending:
        return [rounded_report(await costs.cost(caller, query.request())) for query in queries]

    found = await known.get((visible_teams(caller, fleet), team, window), read, MAX_SECONDS, hurry=hurry)
    if found is None:
        return {"spending": None, "spent": None, "known_at": None, "cost_address": queries[0].address()}
    tables = [(r, cost_table(r, query), query) for r, query in zip(found.result, queries, strict=True)]
    return {
        "spending": tables,
        "spent": found.result[0].total,
        "known_at": found.at if found.late else None,
        "cost_address": queries[0].address(),
    }


def _sort(word: str | None) -> Sort:
    try:
        return Sort(word) if word else Sort.TREE
    except ValueError:
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"sort: teams cannot be sorted by {word!r}",
            f"sort is one of {', '.join(Sort)}",
        ) from None


def _page(word: str | None) -> int:
    return max(1, int(word)) if word and word.isascii() and word.isdecimal() and len(word) < 7 else 1
