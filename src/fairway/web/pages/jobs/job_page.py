"""The Job page: state and reason, attempts, usage, cost, and actions."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import caller_of
from fairway.ledger import Token
from fairway.ledger.records.jobs import DesiredState, JobDetail, JobRow
from fairway.model.access import JobPermission, Role
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import clean
from fairway.services import idle as idle_services
from fairway.services import jobs as job_services
from fairway.services.advice import Advice, advise_job
from fairway.services.convert import jobs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.job_references import find_job
from fairway.services.rights import forbidden_jobs, person_of, require_permission
from fairway.views import jobs as views
from fairway.views.gpu_use import use_text
from fairway.views.queue import help_lines, wait_lines
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.web.context import PageContext
from fairway.web.pages.jobs import log_page
from fairway.web.pages.jobs.gpu_use import MAX_GPUS, JobUseView, job_use_view
from fairway.web.pages.jobs.rows import badge, task_badges, time_text
from fairway.web.pages.jobs.timeline import draw_timeline, waiting_times
from fairway.web.sessions import ENGINE_PAGE, PAGE, PAGE_MEMBER
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as wire

DESIRED_STATES: Final = {
    "cancel": DesiredState.CANCEL,
    "hold": DesiredState.HOLD,
    "release": DesiredState.RUN,
}
_ACTIONS: Final = {desired: action for action, desired in DESIRED_STATES.items()}
CONFIRMATIONS: Final = {
    "cancel": ("Cancel", "The job is stopped and does not run again. Its GPUs become free for other jobs."),
    "hold": ("Hold", "The job keeps its place in the queue and does not start until somebody releases it."),
    "release": ("Release", "The job starts as soon as GPUs are free for it."),
    "keep": (
        "Keep",
        "Idle rules do not apply to the job for four hours, or for the longest time the fleet file allows.",
    ),
}


_MAX_USES: Final = 512
"""Jobs whose GPU use is cached: a page that changes each second must not read thousands of GPUs each time."""


class _JobCaches:
    """What is read of a job's GPUs once for each window; of the advice, what each person may see."""

    def __init__(self) -> None:
        self.uses = SingleFlightGroup[gpu_wire.JobUse](_MAX_USES, max_age=WINDOW_SECONDS)
        self.advice = SingleFlightGroup[Advice](_MAX_USES, max_age=WINDOW_SECONDS)


def add_job_page(site: PageContext) -> None:
    """Add the page of one job, and its actions."""
    app, pages, ledger = site.app, site.pages, site.ledger
    caches = _JobCaches()

    @app.get("/jobs/{id}", dependencies=ENGINE_PAGE, include_in_schema=False)
    async def show_job(request: Request, id: str) -> Response:  # noqa: A002
        """Show one job."""
        found = await find_job(ledger, id)
        return pages.show(request, "job.html", await _job_values(site, caches, caller_of(request), found))

    log_page.add_log_pages(site)

    @app.get("/jobs/{id}/{action}", dependencies=PAGE, include_in_schema=False)
    async def ask_change(request: Request, id: str, action: str) -> Response:  # noqa: A002
        """Ask for confirmation; with JavaScript, a dialog does so instead."""
        found = await find_job(ledger, id)
        _require_action(action)
        require_permission(
            person_of(caller_of(request), await site.fleets.current()), JobPermission.CHANGE, [found.row]
        )
        return pages.show(
            request, "job-change.html", {"job": convert.job(found.row), **_action_values(action, found.row)}
        )

    @app.post("/jobs/{id}/{action}", dependencies=PAGE_MEMBER, include_in_schema=False)
    async def change_job(request: Request, id: str, action: str) -> Response:  # noqa: A002
        """Cancel, hold, release or keep a job; except to keep it, the first task stands for its array."""
        _require_action(action)
        caller = caller_of(request)
        person = person_of(caller, await site.fleets.current())
        if action == "keep":
            longest = (await site.fleets.in_force()).idle.longest_keep_seconds
            asked = wire.KeepRequest(jobs=[id], seconds=min(views.KEEP_SECONDS, longest))
            now = datetime.now(UTC)
            await idle_services.keep_jobs(ledger, site.fleets, person, asked, by=caller.name, now=now)
        else:
            await job_services.change_jobs(ledger, person, [id], DESIRED_STATES[action], by=caller.name)
        return RedirectResponse(f"/jobs/{id}", HTTPStatus.SEE_OTHER)


def _require_action(action: str) -> None:
    if action not in CONFIRMATIONS:
        raise RequestError(ErrorKind.NOT_FOUND, "NoSuchPath", "there is no such page", "go back to  /jobs")


def _action_values(action: str, row: JobRow) -> dict[str, object]:
    verb, what = CONFIRMATIONS[action]
    all_tasks = row.array == row.id and action != "keep"
    return {"deed": action, "verb": verb, "what": what, "all_tasks": all_tasks}


async def _job_values(
    site: PageContext, caches: _JobCaches, caller: Token, found: JobDetail
) -> dict[str, object]:
    """Return the template values, as far as the caller may see them."""
    now, row = datetime.now(UTC), found.row
    fleet = await site.fleets.current()
    person = person_of(caller, fleet)
    readable = person.may(JobPermission.READ, row)
    job = await job_services.describe_job(site.ledger, site.fleets, found, person)
    changes = job_services.possible_changes(person, row)
    refusal = job_services.release_refusal(person, found) if DesiredState.RUN in changes else ""
    waits = row.state in OPEN_JOBS and row.state is not JobState.RUNNING
    tracked = job.last_seen_at is None
    window = (row.id, None if job.use is None else job.use.read_to, row.state)
    advise = partial(advise_job, site.ledger, fleet, found, person, now)
    advice = await caches.advice.get((window, person), advise) if tracked else Advice()
    why = await site.jobs.explainer.why(job, found, person) if waits else None
    tasks = None
    if row.array is not None:
        counts = (await site.ledger.jobs.array_counts([row.array])).get(row.array, {})
        tasks = wire.TaskCounts(tasks=sum(counts.values()), counts=dict(counts))
    return {
        "job": job,
        "name": views.name_text(job),
        "state": badge(job.state, views.state_text(job)),
        "standing": views.state_with_reason(job, now),
        "reasons": why.reasons if why else [],
        "waits": wait_lines(why) if why else [],
        "helps": help_lines(why) if why else [],
        "diagnosis": advice.diagnosis,
        "right_size": advice.right_size,
        "next": _next_step(job),
        "time": time_text(row, now),
        "gpus": views.gpus_text(job),
        "pool": clean(views.pool_text(job)),
        "facts": [
            (label, clean_lines(text)) for label, text in views.facts(job, tasks) if label != views.GPU_USE
        ],
        "tasks": tasks,
        "task_states": task_badges(tasks.counts, JobState) if tasks else [],
        "drawing": draw_timeline(job, now),
        "attempts": list(zip(job.attempts, waiting_times(job), strict=True)),
        "replicas": views.listed_replicas(job),
        "happened": views.timeline(job),
        "use": await _use(site, caches, window, job, row),
        "use_text": use_text,
        "cost": job.cost,
        "after": await job_services.dependencies_of(site.ledger, job),
        "readable": readable,
        "may_clone": readable and found.spec is not None and person.role.may(Role.MEMBER),
        "refusal": "" if readable else forbidden_jobs(person, JobPermission.READ, [row]).hint,
        "release_refusal": clean(refusal),
        "deeds": [
            _action_values(_ACTIONS[desired], row)
            for desired in changes
            if not (desired is DesiredState.RUN and refusal)
        ]
        + ([_action_values("keep", row)] if changes and views.idle_step(job) is not None else []),
        "clean": clean,
        "ending_text": views.ending_text,
        "state_words": views.STATE_WORDS,
    }


def clean_lines(text: str) -> str:
    """Clean untrusted text, keeping its lines."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _next_step(job: wire.JobDetail) -> str:
    """Return what to do next, as far as the page has no button for it."""
    text = f"{job.hint[:1].upper()}{job.hint[1:]}" if job.hint else views.idle_step(job) or ""
    return clean(text)


async def _use(
    site: PageContext, caches: _JobCaches, window: Hashable, job: wire.JobDetail, row: JobRow
) -> JobUseView | None:
    """Read what the job's GPUs did, once for each window. Returns None if nothing was measured."""
    if job.use is None or not job.use.measured_gpu_seconds:
        return None
    read = partial(job_services.job_use, site.ledger, row, MAX_GPUS)
    return job_use_view(await caches.uses.get(window, read), job.attempts)
