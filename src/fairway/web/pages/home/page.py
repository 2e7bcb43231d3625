"""The Home page of each person: what needs attention, their jobs, their teams, and what changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.model.access import Role
from fairway.model.job import JobState
from fairway.services.budget_raises import BudgetRaises
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import fleet as convert
from fairway.services.rights import Person, person_of, sees_all, visible_teams
from fairway.services.slos import SloQueries
from fairway.views.jobs import gpus_text, name_text, note, pool_text, state_text
from fairway.web.context import PageContext
from fairway.web.pages.fleet import view_model as fleet_view
from fairway.web.pages.fleet.data import FleetPageCache, FleetPageData
from fairway.web.pages.home import view_model
from fairway.web.pages.home.data import MAX_JOBS, HomeCache, MyJobs, is_operator, my_jobs
from fairway.web.pages.jobs.rows import badge, time_text
from fairway.web.sessions import PAGE
from fairway.wire import budgets as budget_wire
from fairway.wire import jobs as job_wire


def add_home_page(site: PageContext, fleet_cache: FleetPageCache) -> None:
    """Add the Home page."""
    cache = HomeCache(site.ledger, site.fleets)
    raises = BudgetRaises(site.ledger, site.fleets)
    slos = SloQueries(site.ledger, site.fleets)

    @site.app.get("/", dependencies=PAGE, include_in_schema=False)
    async def show_home(request: Request) -> Response:
        """Show the Home page of the caller."""
        caller, now = caller_of(request), datetime.now(UTC)
        data, events = await fleet_cache.data.get(), await cache.events.get()
        person = person_of(caller, data.policy)
        jobs = await my_jobs(site.ledger, site.fleets, person, now)
        details = await cache.apply_details(caller, events.applies)
        visible = visible_teams(caller, data.policy)
        budgets = _budgets(data, visible)
        operates = is_operator(person)
        clusters = convert.clusters(data.state)
        down = {(p.cluster, p.pool): p.nodes_down for p in data.snapshot.pools}
        own = frozenset(t.name for t in data.policy.teams if person.user in t.members)
        requests = (await raises.requests(caller)).raises if caller.role.may(Role.LEAD) else []
        attention = [
            *view_model.job_attention(jobs, person.user),
            *view_model.budget_attention(budgets),
            *view_model.slo_attention((await slos.slos(caller)).slos),
            *view_model.raise_attention(requests),
            *(view_model.fleet_attention(clusters, events, sum(down.values()), now) if operates else ()),
        ]
        values: dict[str, Any] = {
            "attention": attention,
            "jobs": _job_values(jobs, person, now),
            "teams": view_model.team_cards(cache.teams(data), own, budgets) if own else [],
            "changes": view_model.changes(
                events, details, jobs, None if sees_all(caller) else person.teams, person.user
            ),
            "totals": None,
            "no_fleet": not data.fleet.pools,
            "max_jobs": MAX_JOBS,
            "user": str(person.user),
        }
        if sees_all(caller) and data.fleet.pools:
            values["totals"] = fleet_view.fleet_totals(data, fleet_view.cards(data))
        return site.pages.show(request, "home.html", values)


def _budgets(data: FleetPageData, visible: frozenset[str] | None) -> list[budget_wire.Budget]:
    now = int(data.state.now.timestamp())
    return convert_budgets.budgets(data.raised, data.snapshot.budgets, (), now, visible).budgets


def _job_values(jobs: MyJobs, person: Person, now: datetime) -> list[dict[str, Any]]:
    """Return the lists of the person's jobs with their titles; empty lists are left out."""
    running, held = jobs.counts.get(JobState.RUNNING, 0), jobs.counts.get(JobState.HELD, 0)
    waiting = jobs.counts.get(JobState.QUEUED, 0) + jobs.counts.get(JobState.WAITING, 0)
    lists = (
        ("Running", running, "running", jobs.running),
        ("Waiting", waiting, "pending", jobs.waiting),
        ("On hold", held, "held", jobs.held),
        ("Ended since yesterday", sum(jobs.endings.values()), "ended", jobs.ended),
    )
    return [
        {
            "title": title,
            "count": count,
            "state": state,
            "rows": [_row(job, jobs, now) for job in found],
        }
        for title, count, state, found in lists
        if found
    ]


def _row(job: job_wire.Job, jobs: MyJobs, now: datetime) -> dict[str, Any]:
    row = jobs.rows[job.id]
    return {
        "job": job,
        "name": name_text(job),
        "state": badge(row.state, state_text(job)),
        "gpus": gpus_text(job).replace("x", " × "),
        "pool": pool_text(job),
        "time": time_text(row, now),
        "note": note(job),
    }
