"""The Jobs page: search and filters, live, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.ledger import Ledger, Token
from fairway.ledger.records.jobs import JobRow
from fairway.model.fleet import Fleet
from fairway.model.job import JobId, parse_job_id
from fairway.services.job_queries import explain_jobs
from fairway.services.rights import person_of, teams_seen
from fairway.web.context import PageContext
from fairway.web.pages.jobs import job_page
from fairway.web.pages.jobs.cost import about
from fairway.web.pages.jobs.query import AGES, STATES, JobQuery
from fairway.web.pages.jobs.rows import JobListRow, line
from fairway.web.sessions import PAGE

PER_PAGE: Final = 50


def add_job_pages(site: PageContext) -> None:
    """Add the Jobs page, and the page of each job."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/jobs", dependencies=PAGE, include_in_schema=False)
    async def show_jobs(request: Request) -> Response:
        """Show the Jobs page."""
        caller, now = caller_of(request), datetime.now(UTC)
        asked = JobQuery.of(request.query_params)
        fleet = await site.fleets.current()
        person = person_of(caller, fleet)
        rows, newer, older = await _page(ledger, asked, now, person.teams)
        lines = await _lines(site, caller, fleet, asked, rows, now)
        return pages.show(
            request,
            "jobs.html",
            {
                "asked": asked,
                "lines": lines,
                "newer": newer,
                "older": older,
                "chips": asked.chips,
                "helps": [] if lines else await _what_helps(ledger, asked, now, person.teams),
                "fleet": fleet,
                "states": STATES,
                "ages": AGES,
                "mine": str(person.user),
                "my_teams": sorted(person.teams),
            },
        )

    job_page.add_job_page(site)


async def _page(
    ledger: Ledger, asked: JobQuery, now: datetime, teams: frozenset[str]
) -> tuple[Sequence[JobRow], str, str]:
    """Return the jobs of a page, and the cursors of newer and older ones; empty if there are none."""
    which = asked.filter(now, teams)
    rows = await ledger.jobs.lines(
        which, search=asked.q, before=asked.before, after=asked.after, limit=PER_PAGE + 1
    )
    more = len(rows) > PER_PAGE
    if asked.after is not None:
        rows = rows[-PER_PAGE:]
        newer, older = more, bool(rows)
    else:
        rows = rows[:PER_PAGE]
        newer, older = asked.before is not None, more
    first = asked.newer_than(rows[0].id) if rows else asked.address()
    return rows, first if newer else "", asked.older_than(rows[-1].id) if older else ""


async def _lines(
    site: PageContext, caller: Token, fleet: Fleet, asked: JobQuery, rows: Sequence[JobRow], now: datetime
) -> list[JobListRow]:
    named = parse_job_id(asked.q)
    whole = {} if asked.array else {r.id: r.array for r in rows if r.array is not None and _for_all(r, named)}
    counts = await site.ledger.jobs.array_counts(sorted(set(whole.values())))
    costs = await _costs(site.ledger, caller, fleet, [r for r in rows if r.id not in whole], now)
    jobs = await explain_jobs(site.ledger, site.fleets, rows)
    return [
        line(
            row,
            job,
            counts.get(whole[row.id]) if row.id in whole else None,
            costs.get(row.id),
            now,
        )
        for row, job in zip(rows, jobs, strict=True)
    ]


def _for_all(task: JobRow, named: JobId | None) -> bool:
    """Return whether a task represents its array, rather than being searched for by its own id."""
    return task.id == task.array or task.id != named


async def _costs(
    ledger: Ledger, caller: Token, fleet: Fleet, rows: Sequence[JobRow], now: datetime
) -> dict[JobId, Decimal]:
    """Estimate the cost of the jobs whose cost the caller may see."""
    seen = teams_seen(caller, fleet)
    pools = {pool.name: pool for pool in fleet.pools}
    shown = [r for r in rows if r.attempts and r.pool in pools and (seen is None or r.team in seen)]
    held = await ledger.jobs.held_seconds([row.id for row in shown])
    return {
        row.id: about(fleet, pools[row.pool], row.slice, held[row.id], now)
        for row in shown
        if row.pool is not None and row.id in held
    }


async def _what_helps(
    ledger: Ledger, asked: JobQuery, now: datetime, teams: frozenset[str]
) -> list[tuple[str, str]]:
    """Return the filters whose removal would show jobs, each with the URL without it."""
    found = []
    for chip in asked.chips:
        fewer = asked.without(chip.field)
        if await ledger.jobs.lines(fewer.filter(now, teams), search=fewer.q, limit=1):
            found.append((chip.text, fewer.address()))
    return found
