"""The Jobs page: search, filters and order, live; the same jobs as CSV."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from fairway.api.auth import caller_of
from fairway.ledger import Ledger, Token
from fairway.ledger.jobs.store import MAX_SORTED, SEARCHED
from fairway.ledger.records.jobs import JobRow
from fairway.model.access import JobPermission, Role
from fairway.model.condition import ConditionType
from fairway.model.fleet import EngineKind
from fairway.model.job import OPEN_JOBS, JobId, JobState, parse_job_id
from fairway.model.workload_kinds import WORKLOAD_KINDS
from fairway.services.jobs import explain_jobs
from fairway.services.rights import Person, person_of
from fairway.views.cost_records import csv_text
from fairway.web.context import PageContext
from fairway.web.pages.jobs import bulk_page, job_page, submit_page
from fairway.web.pages.jobs.query import AGES, SERVICES, STATE_WORDS, STATES, JobQuery
from fairway.web.pages.jobs.rows import COLUMNS, JobListRow, job_record, job_row
from fairway.web.render import HEADERS, is_part
from fairway.web.sessions import PAGE, REPORT_PAGE

PER_PAGE: Final = 50
MAX_EXPORTED: Final = 50_000
"""Jobs of a CSV file."""
_EXPORT_PAGE: Final = 1000
TABS: Final = (
    ("", "All"),
    ("open", "Not ended"),
    ("running", "Running"),
    ("pending", "Waiting"),
    ("held", "On hold"),
    ("ended", "Ended"),
    ("wrong", "Failed"),
)
KINDS: Final = (
    (SERVICES, "any service"),
    *((kind.kind, kind.kind) for kind in WORKLOAD_KINDS if kind.group != "batch"),
)
"""The kinds to choose from; batch Jobs have none."""


class _Page(NamedTuple):
    rows: Sequence[JobRow]
    newer: str
    """The URL of the page before; empty if there is none."""
    older: str
    """The URL of the next page; empty if there is none."""
    search_older: str = ""
    """The URL that searches the names of older jobs; empty if all were searched."""


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
        page = await _page(ledger, query, now, person.teams)
        lines = await _job_rows(site, person, query, page.rows, now)
        counts = await ledger.jobs.count_open(query.filter(now, person.teams), query.q)
        return pages.show(
            request,
            "jobs.html",
            {
                "asked": query,
                "lines": lines,
                "page": page,
                "counts": _tab_counts(counts),
                "tabs": TABS,
                "columns": COLUMNS,
                "may_change": any(line.selectable for line in lines),
                "chips": query.chips,
                "helps": [] if lines else await _removable_filters(ledger, query, now, person.teams),
                "fleet": fleet,
                "states": [(name, STATE_WORDS[name]) for name in STATES],
                "ages": AGES,
                "kinds": KINDS if any(c.engine is EngineKind.KUBERNETES for c in fleet.clusters) else (),
                "mine": str(person.user),
                "my_teams": sorted(person.teams),
                "may_submit": caller.role.may(Role.MEMBER),
                "max_sorted": MAX_SORTED,
                "max_searched": SEARCHED,
                "max_exported": MAX_EXPORTED,
                "in_part": is_part(request),
                "unfollowed": [
                    c
                    for c in await ledger.conditions.all()
                    if c.condition.type is ConditionType.JOBS_NOT_FOLLOWED
                ],
            },
        )

    @app.get("/jobs/export.csv", dependencies=REPORT_PAGE, include_in_schema=False)
    async def export_jobs(request: Request) -> Response:
        """Export the jobs that match, newest first, as CSV: at most MAX_EXPORTED, streamed."""
        caller, now = caller_of(request), datetime.now(UTC)
        query = JobQuery.of(request.query_params)
        pieces = _csv(site, caller, query, now)
        first = await anext(pieces)  # raises before the download begins
        return StreamingResponse(
            _rest(first, pieces),
            media_type="text/csv; charset=utf-8",
            headers=HEADERS | {"Content-Disposition": f'attachment; filename="jobs-{now:%Y-%m-%d}.csv"'},
        )

    bulk_page.add_bulk_page(site)
    submit_page.add_submit_page(site)
    job_page.add_job_page(site)


async def _page(ledger: Ledger, query: JobQuery, now: datetime, teams: frozenset[str]) -> _Page:
    """Return the jobs of a page, and the URLs of the pages beside it."""
    filters = query.filter(now, teams)
    if query.sort:
        rows = await ledger.jobs.sorted_page(
            filters, query.order, search=query.q, offset=query.offset, limit=PER_PAGE + 1
        )
        before, after = max(0, query.offset - PER_PAGE), query.offset + PER_PAGE
        newer = query.address(**({"offset": str(before)} if before else {})) if query.offset else ""
        more = len(rows) > PER_PAGE and after < MAX_SORTED
        return _Page(rows[:PER_PAGE], newer, query.address(offset=str(after)) if more else "")
    rows = await ledger.jobs.page(
        filters, search=query.q, before=query.before, after=query.after, limit=PER_PAGE + 1
    )
    more = len(rows) > PER_PAGE
    if query.after is not None:
        rows = rows[-PER_PAGE:]
        has_newer, has_older = more, bool(rows)
    else:
        rows = rows[:PER_PAGE]
        has_newer, has_older = query.before is not None, more
    first = query.newer_than(rows[0].id) if rows else query.address()
    older = query.older_than(rows[-1].id) if has_older else ""
    unsearched = ""
    if query.q and not has_older:
        newest = query.before or (await ledger.jobs.newest_id() or 0) + 1
        unsearched = query.older_than(JobId(newest - SEARCHED)) if newest > SEARCHED else ""
    return _Page(rows, first if has_newer else "", older, unsearched)


def _tab_counts(counts: Mapping[JobState, int]) -> dict[str, int]:
    """Sum the counts of open jobs for each tab; tabs with ended jobs have none."""
    return {
        name: sum(counts.get(state, 0) for state in STATES[name])
        for name, _ in TABS
        if name and set(STATES[name]) <= set(OPEN_JOBS)
    }


async def _job_rows(
    site: PageContext,
    person: Person,
    query: JobQuery,
    rows: Sequence[JobRow],
    now: datetime,
) -> list[JobListRow]:
    searched = parse_job_id(query.q)
    # A task represents its array, unless it is searched for by its own id.
    arrays = {
        r.id: r.array
        for r in rows
        if r.array is not None and not query.array and (r.id == r.array or r.id != searched)
    }
    counts = await site.ledger.jobs.array_counts(sorted(set(arrays.values())))
    jobs = await explain_jobs(site.ledger, site.fleets, person, rows)
    changes_jobs = person.role.may(Role.MEMBER)
    return [
        job_row(
            row,
            job,
            counts.get(arrays[row.id]) if row.id in arrays else None,
            now,
            may_change=changes_jobs and person.may(JobPermission.CHANGE, row),
        )
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


async def _csv(site: PageContext, caller: Token, query: JobQuery, now: datetime) -> AsyncIterator[str]:
    """Yield the CSV file, a page of jobs at a time; every task of an array has its own row."""
    fleet = await site.fleets.current()
    person = person_of(caller, fleet)
    filters, before, written = query.export_filter(now, person.teams), query.before, 0
    while written < MAX_EXPORTED:
        rows = await site.ledger.jobs.page(filters, search=query.q, before=before, limit=_EXPORT_PAGE)
        jobs = await explain_jobs(site.ledger, site.fleets, person, rows)
        text = csv_text([job_record(job) for job in jobs])
        yield text if not written else text.partition("\n")[2]
        written += len(rows)
        if len(rows) < _EXPORT_PAGE:
            return
        before = rows[-1].id


async def _rest(first: str, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in pieces:
        yield piece
