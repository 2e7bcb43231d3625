"""The calls about jobs, for both clients: each method is one of these, sent."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Final, TypedDict, Unpack
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from fairway.client.http import Answer, Call, get, post
from fairway.model.errors import PermanentError
from fairway.model.job import Tolerates
from fairway.model.text import parse_duration
from fairway.wire import jobs as wire
from fairway.wire.fleet import MOST_PER_PAGE, Page, zulu

# A batch of ten thousand is read, placed and written in one request.
_BATCH: Final = httpx2.Timeout(300.0, connect=5.0)
# The server asks the engine for its log.
_LOG: Final = httpx2.Timeout(60.0, connect=5.0)


class SpecFields(TypedDict, total=False):
    """The fields of a JobSpec beside what it runs, as people like to write them."""

    name: str
    gpus: str | wire.GpuRequest
    """`H100:8`, `A100-80GB`, `40GB..80GB`, `1g.10gb:2`."""
    team: str | None
    priority: str | None
    pool: str | None
    nodes: int
    cpus: int | None
    memory_gb: int | None
    time: str | int | None
    """`2h30m`, or seconds."""
    image: str | None
    setup: str | None
    env: dict[str, str]
    workdir: str | None
    after: Sequence[str | wire.After]
    """Jobs that must have ended well first."""
    retries: int | wire.Retries
    tolerates: Sequence[Tolerates | str]
    together: bool


def spec_of(command: Sequence[str] | str, fields: SpecFields) -> wire.JobSpec:
    """A job as a notebook asks for it. Raises PermanentError for what makes no sense."""
    said: dict[str, object] = dict(fields)
    if isinstance(command, str):
        said["script"] = command if command.startswith("#!") else f"#!/bin/bash\n{command}\n"
    else:
        said["command"] = list(command)
        said.setdefault("name", PurePath(command[0]).name if command else "job")
    said.setdefault("name", "job")
    if isinstance(gpus := said.get("gpus"), str):
        said["gpus"] = gpus_of(gpus)
    if "time" in said:
        said["time_seconds"] = _seconds(said.pop("time"))
    if isinstance(retries := said.get("retries"), int):
        said["retries"] = wire.Retries(count=retries)
    after = said.get("after")
    if isinstance(after, Sequence):
        said["after"] = [wire.After(job=a) if isinstance(a, str) else a for a in after]
    return _checked(wire.JobSpec, **said)


def submit(
    jobs: wire.JobSpec | Sequence[wire.JobSpec], *, key: str | None, as_user: str | None, hold: bool
) -> Call[wire.Submitted]:
    """Keep jobs. Without a key of the caller's own it gets one, so that asking again makes none twice."""
    asked = _checked(
        wire.SubmitRequest,
        jobs=[jobs] if isinstance(jobs, wire.JobSpec) else list(jobs),
        key=key or secrets.token_hex(16),
        as_user=as_user,
        hold=hold,
    )
    return post("/v1/jobs", asked, wire.Submitted, again=True, timeout=_BATCH)


def dry_run(job: wire.JobSpec, *, as_user: str | None) -> Call[wire.DryRun]:
    """What would become of a job."""
    asked = _checked(wire.DryRunRequest, job=job, as_user=as_user)
    return post("/v1/jobs/dry-run", asked, wire.DryRun, again=True)


class Filters(TypedDict, total=False):
    """Which jobs; what is left out, or None, is not asked about."""

    cluster: str | None
    team: str | None
    user: str | None
    states: Iterable[str]
    """States by name; `open` and `ended` are several."""
    pool: str | None
    name: str | None
    array: str | None
    """The id of its first task."""
    native: bool | None
    since: datetime | None
    """Submitted then or later."""
    until: datetime | None
    """Submitted before."""


def jobs(most: int | None, **filters: Unpack[Filters]) -> Call[Page[wire.Job]]:
    """The first page of a list of jobs, the newest first."""
    native, since, until = filters.get("native"), filters.get("since"), filters.get("until")
    params: list[tuple[str, object]] = [
        *((key, filters.get(key)) for key in ("cluster", "team", "user", "pool", "name", "array")),
        *(("state", str(state)) for state in filters.get("states", ())),
        ("native", None if native is None else str(native).lower()),
        ("since", zulu(since) if since else None),
        ("until", zulu(until) if until else None),
        ("limit", min(most or MOST_PER_PAGE, MOST_PER_PAGE)),
    ]
    return get("/v1/jobs", Page[wire.Job], params)


def job(number: str) -> Call[wire.JobDetail]:
    """One job."""
    return get(f"/v1/jobs/{_quoted(number)}", wire.JobDetail)


def why(number: str) -> Call[wire.Why]:
    """Why a job waits."""
    return get(f"/v1/jobs/{_quoted(number)}/why", wire.Why)


def task_counts(number: str) -> Call[wire.TaskCounts]:
    """The tasks of an array by state."""
    return get(f"/v1/jobs/{_quoted(number)}/tasks", wire.TaskCounts)


def log(
    number: str, *, attempt: int | None = None, node: int = 0, offset: int = 0, limit: int | None = None
) -> Call[wire.LogPart]:
    """A piece of what a job printed."""
    params = [("attempt", attempt), ("node", node or None), ("offset", offset), ("limit", limit)]
    call = get(f"/v1/jobs/{_quoted(number)}/log", wire.LogPart, params)
    return Call("GET", call.path, call.answer, call.params, timeout=_LOG, again=True)


def change(what: str, numbers: str | Sequence[str]) -> Call[wire.Changed]:
    """`cancel`, `hold` or `release` jobs; twice is the same as once."""
    asked = _checked(wire.ChangeRequest, jobs=[numbers] if isinstance(numbers, str) else list(numbers))
    return post(f"/v1/jobs/{what}", asked, wire.Changed, again=True, timeout=_BATCH)


def job_counts(cluster: str | None) -> Call[wire.JobCounts]:
    """Open jobs, counted."""
    return get("/v1/jobs/counts", wire.JobCounts, [("cluster", cluster)])


def gpus_of(text: str) -> wire.GpuRequest:
    """`H100:8` and the like."""
    from fairway.files.job.gpus import EXPECTED, parse_gpus  # noqa: PLC0415

    found, problem = parse_gpus(text)
    if found is None:
        said = (problem.message, problem.hint) if problem else (f"{text!r} are no GPUs", EXPECTED)
        raise PermanentError("InvalidGpus", *said)
    return wire.GpuRequest.from_model(found)


def _seconds(time: object) -> object:
    if not isinstance(time, str):
        return time
    seconds = parse_duration(time)
    if seconds is None:
        raise PermanentError("InvalidTime", f"{time!r} is not a length of time", "write it like 2h30m or 90s")
    return seconds


def _quoted(number: str) -> str:
    return quote(number, safe="")


def _checked(kind: type[Answer], **values: object) -> Answer:
    """What is asked, or all that is wrong with it, without a way to the server."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise invalid(error) from error


def invalid(
    error: ValidationError, hint: str = "compare it with the reference of job files"
) -> PermanentError:
    """What pydantic says of a value, as one sentence."""
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    what = fault["msg"].removeprefix("Value error, ")
    return PermanentError("InvalidRequest", f"{where}: {what}" if where else what, hint)
