"""The routes of jobs: submit, dry run, list, show, log, cancel, hold, release, change, keep, count."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import AwareDatetime

from fairway.api.auth import allow, caller_of
from fairway.api.cursors import decode_number
from fairway.api.load import RequestKind
from fairway.api.routes.fleet import (
    PROBLEMS,
    VIEWER,
    Cursor,
    LabelFilters,
    Limit,
    Name,
    first_page,
    problems,
)
from fairway.ledger import Ledger
from fairway.ledger.jobs.store import SEARCHED
from fairway.ledger.records.jobs import DesiredState, JobFilter
from fairway.model.access import Role
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, JobState, parse_job_id
from fairway.services import idle as idle_services
from fairway.services import jobs as job_services
from fairway.services.fleets import Fleets
from fairway.services.job_references import find_job, find_jobs
from fairway.services.jobs import JobServices
from fairway.services.labels import of_labels
from fairway.services.rights import Person, person_of
from fairway.services.unit_counts import report_counts
from fairway.services.waits import wait_sums
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as wire
from fairway.wire.fleet import PER_PAGE, Page

MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""Three times ten thousand jobs of a kilobyte each; a script may be a megabyte."""
_MAX_JOB_BYTES: Final = 2 * wire.MAX_SCRIPT
"""A job with a script, whose newlines JSON writes as two characters."""
_MAX_IDS_BYTES: Final = 1024 * 1024
"""Ten thousand ids or names."""
_LOG_BYTES: Final = 64 * 1024

MEMBER = allow(Role.MEMBER)
ASKS_ENGINE = allow(Role.VIEWER, kind=RequestKind.ENGINE)
MEMBER_WITH_BATCH = allow(Role.MEMBER, max_body_bytes=MAX_BATCH_BYTES, asks_engine=True)
MEMBER_WITH_JOB = allow(Role.MEMBER, max_body_bytes=_MAX_JOB_BYTES, kind=RequestKind.ENGINE)
MEMBER_WITH_CHANGE = allow(Role.MEMBER, kind=RequestKind.ENGINE)
MEMBER_WITH_IDS = allow(Role.MEMBER, max_body_bytes=_MAX_IDS_BYTES)

_NOT_FOUND = problems(
    {403: "the token's role is too low, or the job is not yours", 404: "there is no such job"}, PROBLEMS
)
_COUNTS = problems({409: "it would count too many units"}, _NOT_FOUND)
_CHANGE = problems({409: "the job has started or ended, or cannot be changed in place"}, _NOT_FOUND)
_NO_ARRAY = problems({404: "there is no such array", 409: "several jobs match it"}, PROBLEMS)
_SUBMIT = problems(
    {
        404: "there is no such job to come after",
        403: "the role is too low, or it is not your team",
        409: "other jobs were submitted under this key, or too many jobs are open",
    },
    PROBLEMS,
)
_LOG = problems(
    {404: "there is no such job or attempt, or no log of it", 502: "the cluster did not answer"}, _NOT_FOUND
)

_NO_SUPPLY = problems({404: "there is no such pool or team"}, PROBLEMS)
JobIdPath = Annotated[
    str, Path(description="a job's id, its engine's id (`hpc/1542`) or its name", examples=["8f3k"])
]


class Several(StrEnum):
    """Words for several states at once."""

    OPEN = "open"
    ENDED = "ended"


States = Annotated[list[JobState | Several] | None, Query(max_length=20, description="any of these")]


def add_submit_routes(app: FastAPI, ledger: Ledger, parts: JobServices) -> None:
    """Add the routes that submit jobs."""

    @app.post(
        "/v1/jobs",
        dependencies=MEMBER_WITH_BATCH,
        responses=_SUBMIT,
        tags=["jobs"],
        status_code=201,
        response_model=wire.Submitted,
    )
    async def submit_jobs(body: wire.SubmitRequest, request: Request) -> Response:
        """Keep jobs, at most 10,000 with all tasks. They go to an engine right after; this does not wait.

        With a `key`, asking again gives the same jobs and makes none: safe after a lost answer.
        """
        submitted = await job_services.submit_jobs(parts.submitter, ledger, caller_of(request), body)
        return Response(submitted.model_dump_json(), HTTPStatus.CREATED, media_type="application/json")

    @app.post("/v1/jobs/dry-run", dependencies=MEMBER_WITH_JOB, responses=_SUBMIT, tags=["jobs"])
    async def try_job(body: wire.DryRunRequest, request: Request) -> wire.DryRun:
        """Say where a job would go, what would be sent there, and whether it could ever run."""
        return await job_services.dry_run_job(parts.submitter, ledger, caller_of(request), body)


def add_job_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, parts: JobServices) -> None:
    """Add the routes that read jobs."""

    @app.get("/v1/jobs", dependencies=VIEWER, responses=_NO_ARRAY, tags=["jobs"])
    async def list_jobs(
        request: Request,
        cluster: Name = None,
        team: Name = None,
        user: Name = None,
        state: States = None,
        pool: Name = None,
        name: Name = None,
        node: Annotated[str | None, Query(max_length=253, description="running on this node now")] = None,
        array: Annotated[str | None, Query(max_length=300, description="any of its tasks")] = None,
        native: Annotated[bool | None, Query(description="only, or without, those of engines' tools")] = None,
        kind: Annotated[
            str | None,
            Query(max_length=253, description="a kind of workload on Kubernetes; empty: jobs alone"),
        ] = None,
        service: Annotated[bool | None, Query(description="only, or without, services")] = None,
        project: Name = None,
        label: LabelFilters = [],  # noqa: B006
        since: Annotated[AwareDatetime | None, Query(description="submitted then or later")] = None,
        until: Annotated[AwareDatetime | None, Query(description="submitted before")] = None,
        window: Annotated[
            str | None,
            Query(
                max_length=40, description="submitted on these days: 7d, 2026-10, last-week", examples=["7d"]
            ),
        ] = None,
        search: Annotated[
            str | None,
            Query(
                max_length=200,
                description=f"part of the user or of the name (newest {SEARCHED:,} jobs), or start of the id",
            ),
        ] = None,
        limit: Limit = PER_PAGE,
        cursor: Cursor = None,
    ) -> Page[wire.Job]:
        """Jobs of all clusters, Fairway's and native ones, the newest first."""
        task = (await find_jobs(ledger, [array]))[0] if array else None
        filters = JobFilter(
            cluster=cluster,
            team=team,
            user=user,
            states=_states(state or ()) if node is None else (JobState.RUNNING,),
            pool=pool,
            name=name,
            node=node,
            array=None if task is None else task.array or task.id,
            native=native,
            kind=kind,
            service=service,
            project=project or None,
            labels=of_labels(label),
            submitted_after=since,
            submitted_before=until,
        )
        before = decode_number(cursor)
        after = None if before is None else JobId(before)
        person = await _person(request, fleets)
        rows = await job_services.list_jobs(
            ledger,
            fleets,
            person,
            filters,
            window=window,
            search=search or "",
            before=after,
            limit=limit + 1,
        )
        return first_page(rows, limit, lambda job: (str(parse_job_id(job.id)),))

    @app.get("/v1/jobs/counts", dependencies=VIEWER, responses=PROBLEMS, tags=["jobs"])
    async def count_jobs(cluster: Name = None) -> wire.JobCounts:
        """Open jobs by cluster, team, pool and state, with the GPUs or slices they hold or ask for."""
        return await job_services.count_jobs(ledger, cluster)

    @app.get("/v1/waits", dependencies=VIEWER, responses=_NO_SUPPLY, tags=["jobs"])
    async def sum_waits(pool: Name = None, team: Name = None) -> wire.WaitSums:
        """What keeps jobs from starting, of a pool or team: each reason, the most GPU-hours first."""
        return await wait_sums(ledger, await fleets.current(), pool, team)

    @app.get("/v1/jobs/states", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def show_states(
        id: Annotated[  # noqa: A002
            list[Annotated[str, Query(max_length=64)]],
            Query(min_length=1, max_length=wire.MAX_STATES, description="repeat it for each job"),
        ],
    ) -> wire.JobStates:
        """The states of some jobs, without anything else: cheap enough to poll."""
        return await job_services.job_states(ledger, id)

    @app.get("/v1/idle-steps", dependencies=VIEWER, responses=PROBLEMS, tags=["jobs"])
    async def list_idle_steps(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.IdleStep]:
        """What idle rules did to jobs, or would have done in a dry run, the newest first."""
        rows = await idle_services.list_steps(ledger, before=decode_number(cursor), limit=limit + 1)
        return first_page(rows, limit, lambda step: (str(step.id),))

    @app.get("/v1/jobs/{id:path}/why", dependencies=ASKS_ENGINE, responses=_NOT_FOUND, tags=["jobs"])
    async def explain_job(id: JobIdPath, request: Request) -> wire.Why:  # noqa: A002
        """Explain why a job waits, with a hint for each reason, or describe one that runs or has ended."""
        found = await find_job(ledger, id)
        person = await _person(request, fleets)
        return await job_services.explain_job(ledger, fleets, parts.explainer, found, person)

    @app.get("/v1/jobs/{id:path}/use", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def show_use(
        id: JobIdPath,  # noqa: A002
        gpus: Annotated[int, Query(ge=1, le=10_000, description="list at most this many")] = 1000,
    ) -> gpu_wire.JobUse:
        """What a job's GPUs did: in all, side by side so that a straggler is visible, and over time."""
        return await job_services.job_use(ledger, (await find_job(ledger, id)).row, gpus)

    @app.get("/v1/jobs/{id:path}/tasks", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def count_tasks(id: JobIdPath) -> wire.TaskCounts:  # noqa: A002
        """How many tasks of an array, named by any of them, are in which state. A single job is one task."""
        return await job_services.count_tasks_of(ledger, (await find_job(ledger, id)).row)

    @app.get("/v1/jobs/{id:path}/log", dependencies=ASKS_ENGINE, responses=_LOG, tags=["jobs"])
    async def read_log(
        request: Request,
        id: JobIdPath,  # noqa: A002
        attempt: Annotated[int | None, Query(ge=1, le=10**6, description="from 1; the last one")] = None,
        node: Annotated[int, Query(ge=0, le=10_000, description="of several, from 0")] = 0,
        offset: Annotated[int, Query(ge=0, lt=2**60, description="in bytes")] = 0,
        limit: Annotated[int, Query(ge=16, le=wire.MAX_LOG_BYTES, description="in bytes")] = _LOG_BYTES,
    ) -> wire.LogPart:
        """A piece of what an attempt printed. Ask on with next_offset."""
        found = await find_job(ledger, id)
        who = await _person(request, fleets)
        return await job_services.read_log_part(parts.log_reader, who, found, attempt, node, offset, limit)

    # Last: its path also matches those above.
    @app.get("/v1/jobs/{id:path}", dependencies=VIEWER, responses=_NOT_FOUND, tags=["jobs"])
    async def show_job(id: JobIdPath, request: Request) -> wire.JobDetail:  # noqa: A002
        """One job with its attempts and events. How it was asked for is shown to those who may read it."""
        found = await find_job(ledger, id)
        return await job_services.describe_job(ledger, fleets, found, await _person(request, fleets))


def add_change_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, parts: JobServices) -> None:
    """Add the routes that cancel, hold, release, change and keep jobs, and take what jobs count."""

    @app.post("/v1/jobs/cancel", dependencies=MEMBER_WITH_IDS, responses=_NOT_FOUND, tags=["jobs"])
    async def cancel_jobs(body: wire.ChangeRequest, request: Request) -> wire.Changed:
        """End jobs: all of them, or none if one may not be. The first task of an array stands for all."""
        return await change(body, request, DesiredState.CANCEL)

    @app.post("/v1/jobs/hold", dependencies=MEMBER_WITH_IDS, responses=_NOT_FOUND, tags=["jobs"])
    async def hold_jobs(body: wire.ChangeRequest, request: Request) -> wire.Changed:
        """Keep jobs from starting; what runs goes on. All of them, or none if one may not be."""
        return await change(body, request, DesiredState.HOLD)

    @app.post("/v1/jobs/release", dependencies=MEMBER_WITH_IDS, responses=_NOT_FOUND, tags=["jobs"])
    async def release_jobs(body: wire.ChangeRequest, request: Request) -> wire.Changed:
        """Let held jobs start. All of them, or none if one may not be."""
        return await change(body, request, DesiredState.RUN)

    @app.post("/v1/jobs/keep", dependencies=MEMBER_WITH_IDS, responses=_NOT_FOUND, tags=["jobs"])
    async def keep_jobs(body: wire.KeepRequest, request: Request) -> wire.Kept:
        """Have idle rules leave jobs alone for a while. All of them, or none if one may not be."""
        who, now = await _person(request, fleets), datetime.now(UTC)
        return await idle_services.keep_jobs(ledger, fleets, who, body, by=caller_of(request).name, now=now)

    @app.post("/v1/jobs/{id:path}/change", dependencies=MEMBER_WITH_CHANGE, responses=_CHANGE, tags=["jobs"])
    async def change_job(id: JobIdPath, body: wire.JobChangeRequest, request: Request) -> wire.JobChanged:  # noqa: A002
        """Change the pool, GPUs, nodes, time limit or priority of a job that has not started.

        It keeps its place in the queue as far as its cluster allows. The change is checked like a new job:
        with the rights, limits and grants of the job's owner and team. A cluster that refuses it later says
        so in the job's events.
        """
        found = await find_job(ledger, id)
        who = await _person(request, fleets)
        return await parts.changer.change(who, found.row, body, by=caller_of(request).name)

    @app.post("/v1/jobs/{id:path}/counts", dependencies=MEMBER, responses=_COUNTS, tags=["jobs"])
    async def count_units(id: JobIdPath, body: wire.CountsRequest, request: Request) -> wire.Counts:  # noqa: A002
        """Report how much a job has done since it began: `{"steps": 120000}`, for the cost of a unit.

        Reporting the same or a lower total again adds nothing.
        """
        return await report_counts(ledger, fleets, await _person(request, fleets), id, body.root)

    async def change(body: wire.ChangeRequest, request: Request, desired: DesiredState) -> wire.Changed:
        who = await _person(request, fleets)
        return await job_services.change_jobs(ledger, who, body.jobs, desired, by=caller_of(request).name)


async def _person(request: Request, fleets: Fleets) -> Person:
    return person_of(caller_of(request), await fleets.current())


def _states(names: Sequence[JobState | Several]) -> tuple[JobState, ...]:
    groups = {Several.OPEN: OPEN_JOBS, Several.ENDED: ENDED_JOBS}
    found: list[JobState] = []
    for name in names:
        found += groups[name] if isinstance(name, Several) else [name]
    return tuple(dict.fromkeys(found))
