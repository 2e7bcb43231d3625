"""The page of one job: how it stands and why, its attempts, what it held and cost, what one may do."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api import job_known as known
from fairway.api import job_wire as wire
from fairway.api.access import caller_of
from fairway.api.cost_rights import teams_seen
from fairway.api.job_answers import change_jobs, find_job, job_explained, why_job
from fairway.api.job_rights import Person, not_yours, person_of, require_all
from fairway.api.job_words import (
    facts,
    gpus_text,
    name_text,
    next_step,
    pool_text,
    stands,
    state_text,
    timeline,
)
from fairway.api.problems import ApiError
from fairway.control.costs import calendar_of
from fairway.ledger import Token
from fairway.ledger.job_records import JobDetail, JobRow, Wish
from fairway.model.access import Deed, Role
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, JobState, job_number
from fairway.model.wording import clean
from fairway.web import job_log_pages
from fairway.web.job_cost import JobCost, held_spans, job_cost, whole_days
from fairway.web.job_drawing import drawing, waited
from fairway.web.job_lines import SIGNS, State, time_text, tone
from fairway.web.rules import PAGE, PAGE_MEMBER
from fairway.web.site import Site

WISHES: Final = {"cancel": Wish.CANCEL, "hold": Wish.HOLD, "release": Wish.RUN}
SAID: Final = {
    "cancel": ("Cancel", "It ends, and does not come back. What it holds is free again."),
    "hold": ("Hold", "It stays in the queue and does not start until somebody releases it."),
    "release": ("Release", "It may start as soon as there is room for it."),
}


def add_job_page(site: Site) -> None:
    """One job, and what may be done with it."""
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/jobs/{id}", dependencies=PAGE, include_in_schema=False)
    async def show_job(request: Request, id: str) -> Response:  # noqa: A002
        """One job."""
        found = await find_job(ledger, id)
        return pages.show(request, "job.html", await _known(site, caller_of(request), found))

    job_log_pages.add_log_pages(site)

    @app.get("/jobs/{id}/{deed}", dependencies=PAGE, include_in_schema=False)
    async def ask_change(request: Request, id: str, deed: str) -> Response:  # noqa: A002
        """Ask whether it is meant; pages with scripts ask in a dialog instead."""
        found = await find_job(ledger, id)
        _check_deed(deed)
        require_all(person_of(caller_of(request), await site.fleets.current()), Deed.CHANGE, [found.row])
        return pages.show(
            request, "job-change.html", {"job": known.job(found.row), **_asked(deed, found.row)}
        )

    @app.post("/jobs/{id}/{deed}", dependencies=PAGE_MEMBER, include_in_schema=False)
    async def change_job(request: Request, id: str, deed: str) -> Response:  # noqa: A002
        """Cancel, hold or release it; the first task of an array stands for all of it."""
        wish = _check_deed(deed)
        caller = caller_of(request)
        person = person_of(caller, await site.fleets.current())
        await change_jobs(ledger, person, [id], wish, by=caller.name)
        return RedirectResponse(f"/jobs/{id}", HTTPStatus.SEE_OTHER)


def _check_deed(deed: str) -> Wish:
    if deed not in WISHES:
        raise ApiError(HTTPStatus.NOT_FOUND, "NoSuchPath", "there is no such page", "go back to  /jobs")
    return WISHES[deed]


def _asked(deed: str, row: JobRow) -> dict[str, object]:
    verb, what = SAID[deed]
    return {"deed": deed, "verb": verb, "what": what, "all_tasks": row.array == row.id}


async def _known(site: Site, caller: Token, found: JobDetail) -> dict[str, object]:
    """All that the page shows, as far as the caller may see it."""
    now, row = datetime.now(UTC), found.row
    fleet = await site.fleets.current()
    person = person_of(caller, fleet)
    readable = person.may(Deed.READ, row)
    job = await job_explained(site.ledger, site.fleets, found, person)
    waits = row.state in OPEN_JOBS and row.state is not JobState.RUNNING
    tasks = None
    if row.array is not None:
        counts = (await site.ledger.array_counts([row.array])).get(row.array, {})
        tasks = wire.TaskCounts(tasks=sum(counts.values()), counts=dict(counts))
    return {
        "job": job,
        "name": name_text(job),
        "state": State(SIGNS[job.state], state_text(job), tone(job.state)),
        "standing": stands(job, now),
        "reasons": (await why_job(site.ledger, job, found)).reasons if waits else [],
        "next": next_step(job),
        "time": time_text(row, now),
        "gpus": gpus_text(job),
        "pool": clean(pool_text(job)),
        "facts": [(label, clean_lines(text)) for label, text in facts(job, tasks)],
        "tasks": tasks,
        "task_states": _task_states(tasks),
        "drawing": drawing(job, now),
        "attempts": list(zip(job.each_attempt, waited(job), strict=True)),
        "happened": timeline(job),
        "cost": await _cost(site, caller, fleet, found, now),
        "after": await _comes_after(site, job),
        "readable": readable,
        "refusal": "" if readable else not_yours(person, Deed.READ, [row]).hint,
        "deeds": [_asked(deed, row) for deed in deeds(person, row)],
        "clean": clean,
    }


def deeds(person: Person, row: JobRow) -> list[str]:
    """What of cancel, hold and release would change something, and is theirs to do."""
    if row.state not in OPEN_JOBS or row.wish is Wish.CANCEL:
        return []
    if not (person.role.may(Role.MEMBER) and person.may(Deed.CHANGE, row)):
        return []
    if row.state is JobState.HELD or row.wish is Wish.HOLD:
        return ["release", "cancel"]
    return ["cancel"] if row.state is JobState.RUNNING else ["hold", "cancel"]


def clean_lines(text: str) -> str:
    """Other people's text, its lines kept."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _task_states(tasks: wire.TaskCounts | None) -> list[State]:
    if tasks is None:
        return []
    return [
        State(SIGNS[s], f"{tasks.counts[s]:,} {s.value}", tone(s)) for s in JobState if tasks.counts.get(s)
    ]


async def _comes_after(site: Site, job: wire.JobDetail) -> list[tuple[wire.After, wire.Job | None]]:
    """What it was asked to come after, with how that stands."""
    if job.spec is None or not job.spec.after:
        return []
    numbers = [n for a in job.spec.after if (n := job_number(a.job)) is not None]
    there = {j.id: j for j in map(known.job, await site.ledger.job_rows(numbers))}
    return [(a, there.get(a.job.lower())) for a in job.spec.after]


async def _cost(site: Site, caller: Token, fleet: Fleet, found: JobDetail, now: datetime) -> JobCost | None:
    """None: it is not theirs to see, or it was in no pool that has a price."""
    row = found.row
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    seen = teams_seen(caller, fleet)
    if pool is None or (seen is not None and row.team not in seen):
        return None
    attempts = [a.attempt for a in found.attempts]
    calendar = calendar_of(fleet)
    spans = [span for _, span in held_spans(attempts, now)]
    points = await site.ledger.price_points([pool.name], whole_days(calendar, spans)) if spans else {}
    return job_cost(fleet, calendar, pool, row.slice, attempts, points, now)
