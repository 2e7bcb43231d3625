"""Hold, release or cancel several jobs at once: a page that asks for confirmation, then each job's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import Request, Response

from fairway.api.auth import caller_of
from fairway.ledger.records.jobs import DesiredState
from fairway.model.access import JobPermission
from fairway.model.job import JobId, JobState, parse_job_id
from fairway.model.text import count
from fairway.services import jobs as job_services
from fairway.services.convert import jobs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.rights import person_of
from fairway.views.jobs import name_text, state_text
from fairway.web.context import PageContext
from fairway.web.pages.jobs.rows import StateBadge, badge, task_badges
from fairway.web.sessions import PAGE_MEMBER, form_of
from fairway.wire import jobs as wire

MAX_SELECTED: Final = 90
"""Jobs of one form, which has at most 100 fields; a page of the list has 50."""
_FIELD: Final = "job."
"""Before the id of a selected job, in the name of its field."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    """What is done to every selected job."""

    desired: DesiredState
    verb: str
    done: str
    what: str
    """What happens, for the confirmation."""


ACTIONS: Final[Mapping[str, BulkAction]] = {
    "hold": BulkAction(
        DesiredState.HOLD,
        "Hold",
        "on hold",
        "Waiting jobs do not start until somebody releases them. Running jobs continue.",
    ),
    "release": BulkAction(
        DesiredState.RUN, "Release", "released", "Jobs on hold start as soon as GPUs are free for them."
    ),
    "cancel": BulkAction(
        DesiredState.CANCEL,
        "Cancel",
        "cancelled",
        "Running jobs are stopped and lose what they have not saved. Cancelled jobs do not start again.",
    ),
}


@dataclass(frozen=True, slots=True)
class SelectedJob:
    """One selected job, and what came of it."""

    job: wire.Job
    name: str
    tasks: int
    """The number of tasks of an array, which are all meant; 0 for a single job."""
    states: tuple[StateBadge, ...]
    result: str = ""
    failed: bool = False


def add_bulk_page(site: PageContext) -> None:
    """Add the confirmation of a change of several jobs, and its results."""

    @site.app.post("/jobs/change", dependencies=PAGE_MEMBER, include_in_schema=False)
    async def change_jobs(request: Request) -> Response:
        """Ask for confirmation; when it is given, change each job and show its result."""
        form = await form_of(request)
        action = ACTIONS.get(form.get("action", ""))
        ids = [name.removeprefix(_FIELD) for name in form if name.startswith(_FIELD)][:MAX_SELECTED]
        if action is None or not ids:
            raise RequestError(
                ErrorKind.INVALID,
                "NothingSelected",
                "no job is selected" if action else "there is no such action on jobs",
                "go back, select jobs, and choose Hold, Release or Cancel",
            )
        confirmed = form.get("confirmed") == "yes"
        selected = await _selected(site, request, ids, action, confirmed=confirmed)
        back = form.get("back", "")
        values = {
            "action": form["action"],
            "deed": action,
            "jobs": selected,
            "confirmed": confirmed,
            "headline": _headline(action, selected, confirmed=confirmed),
            "back": back if back.startswith("/jobs?") else "/jobs",
            "field": _FIELD,
        }
        return site.pages.show(request, "jobs-change.html", values)


async def _selected(
    site: PageContext, request: Request, ids: list[str], action: BulkAction, *, confirmed: bool
) -> list[SelectedJob]:
    """Read the selected jobs; if confirmed, change each of them first."""
    caller = caller_of(request)
    person = person_of(caller, await site.fleets.current())
    results: dict[str, tuple[str, bool]] = {}
    for word in ids if confirmed else ():
        try:
            changed = await job_services.change_jobs(
                site.ledger, person, [word], action.desired, by=caller.name
            )
            results[word] = (_result(action, changed), not changed.changed)
        except RequestError as error:
            results[word] = (error.message, True)
    numbers = [number for word in ids if (number := parse_job_id(word)) is not None]
    rows = {row.id: row for row in await site.ledger.jobs.rows(numbers)}
    counts = await site.ledger.jobs.array_counts([n for n in numbers if n in rows and rows[n].array == n])
    found = []
    for word in ids:
        row = rows.get(parse_job_id(word) or JobId(0))
        if row is None:
            continue
        job = convert.job(row)
        tasks = counts.get(row.id, {})
        states = task_badges(tasks, JobState) if tasks else [badge(row.state, state_text(job))]
        result, failed = results.get(word, ("", False))
        if not confirmed and not person.may(JobPermission.CHANGE, row):
            result, failed = "you may not change it", True
        found.append(SelectedJob(job, name_text(job), sum(tasks.values()), tuple(states), result, failed))
    return found


def _result(action: BulkAction, changed: wire.Changed) -> str:
    if not changed.changed:
        return "unchanged: it has ended, or is in this state already"
    tasks = len(changed.changed)
    return action.done if tasks == 1 else f"{action.done}: {count(tasks, 'task')}"


def _headline(action: BulkAction, jobs: list[SelectedJob], *, confirmed: bool) -> str:
    if not confirmed:
        return f"{action.verb} {count(len(jobs), 'job')}?"
    changed = sum(not job.failed for job in jobs)
    return f"{count(changed, 'job')} {action.done}" + (
        f", {len(jobs) - changed} unchanged" if changed < len(jobs) else ""
    )
