"""The routes of jobs: submit, try, list, look, read the log, cancel, hold, release, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final, Protocol

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import AwareDatetime

from fairway.api import job_known as known
from fairway.api import job_wire as wire
from fairway.api.access import allow, caller_of
from fairway.api.budget_known import explained
from fairway.api.budget_routes import held_now
from fairway.api.cursors import decode_number
from fairway.api.fleets import Fleets
from fairway.api.job_answers import (
    ReadsLogs,
    change_jobs,
    count_tasks_of,
    find_job,
    job_explained,
    no_such_job,
    read_log_part,
    why_job,
)
from fairway.api.job_rights import Person, person_of, submitting_user
from fairway.api.problems import ApiError
from fairway.api.routes import PROBLEMS, VIEWER, Cursor, Limit, Name, first_of
from fairway.api.wire import PER_PAGE, Page
from fairway.ledger import Ledger
from fairway.ledger.job_records import JobFilter, Wish
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, JobSpec, JobState, Placement, job_number, job_word
from fairway.model.names import UserName
from fairway.policy.membership import NotAllowed
from fairway.policy.placement import Option

MOST_BATCH_BYTES: Final = 32 * 1024 * 1024
"""Ten thousand jobs of a kilobyte each, three times over; a script may be a megabyte."""
_LOG_BYTES: Final = 64 * 1024
_ARRAY_PAGE: Final = 2000
_NAMED: Final = 10

MEMBER = allow(Role.MEMBER)
MEMBER_WITH_BATCH = allow(Role.MEMBER, most_body_bytes=MOST_BATCH_BYTES)

_NOT_FOUND: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    403: {**PROBLEMS[403], "description": "the token's role is too low, or the job is not yours"},
    404: {**PROBLEMS[422], "description": "there is no such job"},
}
_SUBMIT: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    404: {**PROBLEMS[422], "description": "there is no such job to come after"},
    403: {**PROBLEMS[403], "description": "the role is too low, or it is not your team"},
    409: {**PROBLEMS[422], "description": "other jobs were submitted under this key"},
}
_LOG: dict[int | str, dict[str, Any]] = {
    **_NOT_FOUND,
    404: {**PROBLEMS[422], "description": "there is no such job or attempt, or no log of it"},
    502: {**PROBLEMS[422], "description": "the cluster did not answer"},
}

Word = Annotated[str, Path(description="a job's id", examples=["8f3k"])]


class Several(StrEnum):
    """Words for several states at once."""

    OPEN = "open"
    ENDED = "ended"


States = Annotated[list[JobState | Several] | None, Query(max_length=20, description="any of these")]


class Submitted(Protocol):
    """What became of one job that was asked for."""

    @property
    def ids(self) -> tuple[JobId, ...]:
        """One for each task."""
        ...

    @property
    def placement(self) -> Placement:
        """Where it goes."""
        ...


class TriedRun(Protocol):
    """What would become of a job."""

    @property
    def could_run(self) -> bool: ...

    @property
    def why(self) -> str: ...

    @property
    def placement(self) -> Placement | None: ...

    @property
    def options(self) -> Sequence[Option]: ...

    @property
    def preview(self) -> str: ...

    @property
    def hint(self) -> str: ...


class Submits(Protocol):
    """Decides where jobs go and keeps them."""

    async def submit(
        self, specs: Sequence[JobSpec], user: UserName, *, by: str, key: str | None, hold: bool
    ) -> Sequence[Submitted]: ...

    async def dry_run(self, spec: JobSpec, user: UserName) -> TriedRun: ...


@dataclass(frozen=True, slots=True)
class JobParts:
    """What the routes of jobs need beside the ledger; `wiring` knows how to make them."""

    submitter: Submits
    log_reader: ReadsLogs


def add_submit_routes(app: FastAPI, ledger: Ledger, parts: JobParts) -> None:
    """Asking for jobs."""

    async def specs_of(jobs: Sequence[wire.JobSpec]) -> list[JobSpec]:
        """As Fairway knows them; what they come after must be there, or they would wait for ever."""
        specs = [job.to_model() for job in jobs]
        before = {a.job for spec in specs for a in spec.after}
        if before and (missing := before - {row.id for row in await ledger.job_rows(sorted(before))}):
            raise no_such_job([job_word(number) for number in sorted(missing)], "to come after")
        return specs

    @app.post(
        "/v1/jobs",
        dependencies=MEMBER_WITH_BATCH,
        responses=_SUBMIT,
        tags=["jobs"],
        status_code=201,
        response_model=wire.Submitted,
    )
    async def submit_jobs(asked: wire.AskedJobs, request: Request) -> Response:
        """Keep jobs, at most 10,000 with all tasks. They go to an engine right after; this does not wait.

        With a `key`, asking again gives the same jobs and makes none: safe after a lost answer.
        """
        caller = caller_of(request)
        user = submitting_user(caller, asked.as_user)
        specs = await specs_of(asked.jobs)
        try:
            kept = await parts.submitter.submit(specs, user, by=caller.name, key=asked.key, hold=asked.hold)
        except PermanentError as error:
            raise _refusal(error) from error
        answer = wire.Submitted(
            jobs=[known.submitted(s, k.ids, k.placement) for s, k in zip(specs, kept, strict=True)]
        )
        return Response(answer.model_dump_json(), HTTPStatus.CREATED, media_type="application/json")

    @app.post("/v1/jobs/dry-run", dependencies=MEMBER_WITH_BATCH, responses=_SUBMIT, tags=["jobs"])
    async def try_job(asked: wire.AskedDryRun, request: Request) -> wire.DryRun:
        """Say where a job would go, what would be sent there, and whether it could ever run."""
        user = submitting_user(caller_of(request), asked.as_user)
        (spec,) = await specs_of([asked.job])
        try:
            tried = await parts.submitter.dry_run(spec, user)
        except PermanentError as error:
            raise _refusal(error) from error
        return wire.DryRun(
            could_run=tried.could_run,
            why=tried.why,
            hint=tried.hint,
            placement=known.placement(tried.placement) if tried.placement else None,
            options=[known.option(o) for o in tried.options],
            preview=tried.preview,
        )


def add_job_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, parts: JobParts) -> None:
    """Looking at jobs."""

    @app.get("/v1/jobs", dependencies=VIEWER, responses=PROBLEMS, tags=["jobs"])
    async def list_jobs(
        cluster: Name = None,
        team: Name = None,
        user: Name = None,
        state: States = None,
        pool: Name = None,
        name: Name = None,
        array: Annotated[str | None, Query(pattern=wire.WORD_PATTERN, description="its first task")] = None,
        native: Annotated[bool | None, Query(description="only, or without, those of engines' tools")] = None,
        since: Annotated[AwareDatetime | None, Query(description="submitted then or later")] = None,
        until: Annotated[AwareDatetime | None, Query(description="submitted before")] = None,
        limit: Limit = PER_PAGE,
        cursor: Cursor = None,
    ) -> Page[wire.Job]:
        """Jobs of all clusters, Fairway's and native ones, the newest first."""
        which = JobFilter(
            cluster=cluster,
            team=team,
            user=user,
            states=_states(state or ()),
            pool=pool,
            name=name,
            array=job_number(array) if array else None,
            native=native,
            submitted_after=since,
            submitted_before=until,
        )
        before = decode_number(cursor)
        rows = await ledger.jobs(which, before=None if before is None else JobId(before), limit=limit + 1)
        fleet, held = await held_now(ledger, fleets)
        return first_of(
            rows,
            limit,
            show=lambda row: explained(known.job(row), fleet, held),
            key=lambda row: (str(row.id),),
        )

    @app.get("/v1/jobs/counts", dependencies=VIEWER, responses=PROBLEMS, tags=["jobs"])
    async def count_jobs(cluster: Name = None) -> wire.JobCounts:
        """Open jobs by cluster, team, pool and state, with the GPUs or slices they hold or ask for."""
        return wire.JobCounts(counts=[known.count(c) for c in await ledger.job_counts(cluster)])

    @app.get("/v1/jobs/{id}", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def show_job(id: Word, request: Request) -> wire.JobDetail:  # noqa: A002
        """One job with its attempts and events. How it was asked for is shown to those who may read it."""
        found = await find_job(ledger, id)
        return await job_explained(ledger, fleets, found, await _person(request, fleets))

    @app.get("/v1/jobs/{id}/why", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def explain_job(id: Word, request: Request) -> wire.Why:  # noqa: A002
        """Why a job waits, with a remedy for each reason; of one that runs or is over, how it stands."""
        found = await find_job(ledger, id)
        job = await job_explained(ledger, fleets, found, await _person(request, fleets))
        return await why_job(ledger, job, found)

    @app.get("/v1/jobs/{id}/tasks", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def count_tasks(id: Word) -> wire.TaskCounts:  # noqa: A002
        """How many tasks of an array, named by any of them, are in which state. A single job is one task."""
        return await count_tasks_of(ledger, (await find_job(ledger, id)).row)

    @app.get("/v1/jobs/{id}/log", dependencies=VIEWER, responses=_LOG, tags=["jobs"])
    async def read_log(
        request: Request,
        id: Word,  # noqa: A002
        attempt: Annotated[int | None, Query(ge=1, le=10**6, description="from 1; the last one")] = None,
        node: Annotated[int, Query(ge=0, le=10_000, description="of several, from 0")] = 0,
        offset: Annotated[int, Query(ge=0, lt=2**60, description="in bytes")] = 0,
        limit: Annotated[int, Query(ge=16, le=wire.MOST_LOG_BYTES, description="in bytes")] = _LOG_BYTES,
    ) -> wire.LogPart:
        """A piece of what an attempt printed. Ask on with next_offset."""
        found = await find_job(ledger, id)
        who = await _person(request, fleets)
        return await read_log_part(parts.log_reader, who, found, attempt, node, offset, limit)


def add_change_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Ending jobs and holding them back."""

    @app.post("/v1/jobs/cancel", dependencies=MEMBER_WITH_BATCH, responses=_NOT_FOUND, tags=["jobs"])
    async def cancel_jobs(asked: wire.AskedChange, request: Request) -> wire.Changed:
        """End jobs: all of them, or none if one may not be. The first task of an array stands for all."""
        return await change(asked, request, Wish.CANCEL)

    @app.post("/v1/jobs/hold", dependencies=MEMBER_WITH_BATCH, responses=_NOT_FOUND, tags=["jobs"])
    async def hold_jobs(asked: wire.AskedChange, request: Request) -> wire.Changed:
        """Keep jobs from starting; what runs goes on. All of them, or none if one may not be."""
        return await change(asked, request, Wish.HOLD)

    @app.post("/v1/jobs/release", dependencies=MEMBER_WITH_BATCH, responses=_NOT_FOUND, tags=["jobs"])
    async def release_jobs(asked: wire.AskedChange, request: Request) -> wire.Changed:
        """Let held jobs start. All of them, or none if one may not be."""
        return await change(asked, request, Wish.RUN)

    async def change(asked: wire.AskedChange, request: Request, wish: Wish) -> wire.Changed:
        who = await _person(request, fleets)
        return await change_jobs(ledger, who, asked.jobs, wish, by=caller_of(request).name)


async def _person(request: Request, fleets: Fleets) -> Person:
    return person_of(caller_of(request), await fleets.current())


def _states(asked: Sequence[JobState | Several]) -> tuple[JobState, ...]:
    groups = {Several.OPEN: OPEN_JOBS, Several.ENDED: ENDED_JOBS}
    found: list[JobState] = []
    for word in asked:
        found += groups[word] if isinstance(word, Several) else [word]
    return tuple(dict.fromkeys(found))


def _refusal(error: PermanentError) -> ApiError:
    """Why jobs were not kept, by what kind of no it is."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NotAllowed):
        status = HTTPStatus.FORBIDDEN
    elif error.code == "KeyReused":
        status = HTTPStatus.CONFLICT
    else:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    return ApiError(status, error.code, error.message, error.hint)
