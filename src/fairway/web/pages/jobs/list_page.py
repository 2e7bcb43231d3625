"""The Jobs page: search and filters, live, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.ledger import Ledger, Token
from fairway.ledger.records.jobs import JobRow
from fairway.model.condition import ConditionType
from fairway.model.fleet import Fleet
from fairway.model.job import parse_job_id
from fairway.services.jobs import explain_jobs
from fairway.services.rights import person_of
from fairway.web.context import PageContext
from fairway.web.pages.jobs import job_page
from fairway.web.pages.jobs.query import AGES, STATES, JobQuery
from fairway.web.pages.jobs.rows import JobListRow, job_row
from fairway.web.sessions import PAGE

PER_PAGE: Final = 50


def add_job_pages(site: PageContext) -> None:
    """Add the Jobs page, and the page of each job."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/jobs", dependencies=PAGE, include_in_schema=False)
    async def show_jobs(request: Request) -> Response:
        """Show the Jobs page."""
        caller, now = caller_of(request), datetime.now(UTC)
        query = JobQuery.of(request.query_params)
        fleet = await site.fleets.current()
        person = person_of(caller, fleet)
        rows, newer, older = await _page(ledger, query, now, person.teams)
        lines = await _job_rows(site, caller, fleet, query, rows, now)
        return pages.show(
            request,
            "jobs.html",
            {
                "asked": query,
                "lines": lines,
                "newer": newer,
                "older": older,
                "chips": query.chips,
                "helps": [] if lines else await _removable_filters(ledger, query, now, person.teams),
                "fleet": fleet,
                "states": STATES,
                "ages": AGES,
                "mine": str(person.user),
                "my_teams": sorted(person.teams),
                "unfollowed": [
                    c
                    for c in await ledger.conditions.all()
                    if c.condition.type is ConditionType.JOBS_NOT_FOLLOWED
                ],
            },
        )

    job_page.add_job_page(site)


async def _page(
    ledger: Ledger, query: JobQuery, now: datetime, teams: frozenset[str]
) -> tuple[Sequence[JobRow], str, str]:
    """Return the jobs of a page, and the cursors of newer and older ones; empty if there are none."""
    filters = query.filter(now, teams)
    rows = await ledger.jobs.page(
        filters, search=query.q, before=query.before, after=query.after, limit=PER_PAGE + 1
    )
    more = len(rows) > PER_PAGE
    if query.after is not None:
        rows = rows[-PER_PAGE:]
        newer, older = more, bool(rows)
    else:
        rows = rows[:PER_PAGE]
        newer, older = query.before is not None, more
    first = query.newer_than(rows[0].id) if rows else query.address()
    return rows, first if newer else "", query.older_than(rows[-1].id) if older else ""


async def _job_rows(
    site: PageContext, caller: Token, fleet: Fleet, query: JobQuery, rows: Sequence[JobRow], now: datetime
) -> list[JobListRow]:
    searched = parse_job_id(query.q)
    # A task represents its array, unless it is searched for by its own id.
    arrays = {
        r.id: r.array
        for r in rows
        if r.array is not None and not query.array and (r.id == r.array or r.id != searched)
    }
    counts = await site.ledger.jobs.array_counts(sorted(set(arrays.values())))
    jobs = await explain_jobs(site.ledger, site.fleets, person_of(caller, fleet), rows)
    return [
        job_row(row, job, counts.get(arrays[row.id]) if row.id in arrays else None, now)
        for row, job in zip(rows, jobs, strict=True)
    ]


async def _removable_filters(
    ledger: Ledger, query: JobQuery, now: datetime, teams: frozenset[str]
) -> list[tuple[str, str]]:
    """Return the filters whose removal would show jobs, each with the URL without it."""
    found = []
    for chip in query.chips:
        fewer = query.without(chip.field)
        if await ledger.jobs.page(fewer.filter(now, teams), search=fewer.q, limit=1):
            found.append((chip.text, fewer.address()))
    return found
