"""The Job page: state and reason, attempts, usage, cost, and actions."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import caller_of
from fairway.ledger import Token
from fairway.ledger.records.jobs import DesiredState, JobDetail, JobRow
from fairway.model.access import Deed
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import clean
from fairway.services.charges import calendar_of
from fairway.services.convert import jobs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.job_actions import change_jobs, possible_changes
from fairway.services.job_queries import dependencies_of, find_job, job_explained, why_job
from fairway.services.rights import not_yours, person_of, require_all, teams_seen
from fairway.views.jobs import facts, gpus_text, name_text, next_step, pool_text, stands, state_text, timeline
from fairway.web.context import PageContext
from fairway.web.pages.jobs import log_page
from fairway.web.pages.jobs.cost import JobCost, held_spans, job_cost, whole_days
from fairway.web.pages.jobs.rows import SIGNS, State, time_text, tone
from fairway.web.pages.jobs.timeline import drawing, waited
from fairway.web.sessions import PAGE, PAGE_MEMBER
from fairway.wire import jobs as wire

WISHES: Final = {"cancel": DesiredState.CANCEL, "hold": DesiredState.HOLD, "release": DesiredState.RUN}
_DEEDS: Final = {wish: deed for deed, wish in WISHES.items()}
SAID: Final = {
    "cancel": ("Cancel", "It ends, and does not come back. What it holds is free again."),
    "hold": ("Hold", "It stays in the queue and does not start until somebody releases it."),
    "release": ("Release", "It may start as soon as there is room for it."),
}


def add_job_page(site: PageContext) -> None:
    """Add the page of one job, and its actions."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/jobs/{id}", dependencies=PAGE, include_in_schema=False)
    async def show_job(request: Request, id: str) -> Response:  # noqa: A002
        """Show one job."""
        found = await find_job(ledger, id)
        return pages.show(request, "job.html", await _known(site, caller_of(request), found))

    log_page.add_log_pages(site)

    @app.get("/jobs/{id}/{deed}", dependencies=PAGE, include_in_schema=False)
    async def ask_change(request: Request, id: str, deed: str) -> Response:  # noqa: A002
        """Ask for confirmation; with JavaScript, a dialog does so instead."""
        found = await find_job(ledger, id)
        _check_deed(deed)
        require_all(person_of(caller_of(request), await site.fleets.current()), Deed.CHANGE, [found.row])
        return pages.show(
            request, "job-change.html", {"job": convert.job(found.row), **_asked(deed, found.row)}
        )

    @app.post("/jobs/{id}/{deed}", dependencies=PAGE_MEMBER, include_in_schema=False)
    async def change_job(request: Request, id: str, deed: str) -> Response:  # noqa: A002
        """Cancel, hold or release a job; the first task of an array stands for the whole array."""
        wish = _check_deed(deed)
        caller = caller_of(request)
        person = person_of(caller, await site.fleets.current())
        await change_jobs(ledger, person, [id], wish, by=caller.name)
        return RedirectResponse(f"/jobs/{id}", HTTPStatus.SEE_OTHER)


def _check_deed(deed: str) -> DesiredState:
    if deed not in WISHES:
        raise RequestError(ErrorKind.NOT_FOUND, "NoSuchPath", "there is no such page", "go back to  /jobs")
    return WISHES[deed]


def _asked(deed: str, row: JobRow) -> dict[str, object]:
    verb, what = SAID[deed]
    return {"deed": deed, "verb": verb, "what": what, "all_tasks": row.array == row.id}


async def _known(site: PageContext, caller: Token, found: JobDetail) -> dict[str, object]:
    """Return the template values, as far as the caller may see them."""
    now, row = datetime.now(UTC), found.row
    fleet = await site.fleets.current()
    person = person_of(caller, fleet)
    readable = person.may(Deed.READ, row)
    job = await job_explained(site.ledger, site.fleets, found, person)
    waits = row.state in OPEN_JOBS and row.state is not JobState.RUNNING
    tasks = None
    if row.array is not None:
        counts = (await site.ledger.jobs.array_counts([row.array])).get(row.array, {})
        tasks = wire.TaskCounts(tasks=sum(counts.values()), counts=dict(counts))
    return {
        "job": job,
        "name": name_text(job),
        "state": State(SIGNS[job.state], state_text(job), tone(job.state)),
        "standing": stands(job, now),
        "reasons": (await why_job(site.ledger, fleet, job, found)).reasons if waits else [],
        "next": next_step(job),
        "time": time_text(row, now),
        "gpus": gpus_text(job),
        "pool": clean(pool_text(job)),
        "facts": [(label, clean_lines(text)) for label, text in facts(job, tasks)],
        "tasks": tasks,
        "task_states": _task_states(tasks),
        "drawing": drawing(job, now),
        "attempts": list(zip(job.attempts, waited(job), strict=True)),
        "happened": timeline(job),
        "cost": await _cost(site, caller, fleet, found, now),
        "after": await dependencies_of(site.ledger, job),
        "readable": readable,
        "refusal": "" if readable else not_yours(person, Deed.READ, [row]).hint,
        "deeds": [_asked(_DEEDS[wish], row) for wish in possible_changes(person, row)],
        "clean": clean,
    }


def clean_lines(text: str) -> str:
    """Clean untrusted text, keeping its lines."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _task_states(tasks: wire.TaskCounts | None) -> list[State]:
    if tasks is None:
        return []
    return [
        State(SIGNS[s], f"{tasks.counts[s]:,} {s.value}", tone(s)) for s in JobState if tasks.counts.get(s)
    ]


async def _cost(
    site: PageContext, caller: Token, fleet: Fleet, found: JobDetail, now: datetime
) -> JobCost | None:
    """Compute the job's cost. Returns None if the caller may not see it, or the pool is unknown."""
    row = found.row
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    seen = teams_seen(caller, fleet)
    if pool is None or (seen is not None and row.team not in seen):
        return None
    attempts = [a.attempt for a in found.attempts]
    calendar = calendar_of(fleet)
    spans = [span for _, span in held_spans(attempts, now)]
    points = await site.ledger.prices.points([pool.name], whole_days(calendar, spans)) if spans else {}
    return job_cost(fleet, calendar, pool, row.slice, attempts, points, now)
