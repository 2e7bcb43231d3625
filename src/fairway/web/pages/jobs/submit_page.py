"""Submit a job file on a page: an example, or the file of an earlier job to change and submit again."""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import caller_of
from fairway.api.load import RequestKind
from fairway.files.job.load import MAX_CHARACTERS, check_jobs
from fairway.files.job.write import compose_job
from fairway.model.access import JobPermission, Role
from fairway.model.job import JobSpec, format_job_id
from fairway.services.convert.policy import file_fault
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.job_references import find_job
from fairway.services.jobs import dry_run_job, submit_jobs
from fairway.services.rights import person_of, require_permission
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE_MEMBER, form_of, page_allow
from fairway.wire import jobs as wire

MEMBER_WITH_JOB: Final = page_allow(Role.MEMBER, max_body_bytes=4 * MAX_CHARACTERS, kind=RequestKind.ENGINE)
EXAMPLE: Final = """apiVersion: fairway/v1alpha1
kind: Job
name: hello
gpus: 1
time: 1h
command: [nvidia-smi]
"""
_SOURCE: Final = "job.yaml"


def add_submit_page(site: PageContext) -> None:
    """Add the page that submits a job file."""
    app, pages = site.app, site.pages

    @app.get("/jobs/new", dependencies=PAGE_MEMBER, include_in_schema=False)
    async def show_form(request: Request) -> Response:
        """Show the form: with `from`, the file of that job."""
        origin = request.query_params.get("from", "")
        text, name = (await _job_file(site, request, origin)) if origin else (EXAMPLE, "")
        return pages.show(request, "job-new.html", _values(text, name=name, origin=origin))

    @app.post("/jobs/new", dependencies=MEMBER_WITH_JOB, include_in_schema=False)
    async def submit_form(request: Request) -> Response:
        """Check the file and say where it would run; or submit its jobs."""
        form = await form_of(request)
        text = form.get("job", "").replace("\r\n", "\n")
        report = await asyncio.to_thread(check_jobs, text, _SOURCE)
        values = _values(text) | {"faults": [file_fault(fault) for fault in report.faults]}
        if report.jobs is None:
            return pages.show(request, "job-new.html", values, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        jobs = [wire.JobSpec.from_model(job) for job in report.jobs]
        caller, services = caller_of(request), site.jobs
        try:
            if form.get("action") != "submit":
                asked = wire.DryRunRequest(job=jobs[0])
                values["dry_run"] = await dry_run_job(services.submitter, site.ledger, caller, asked)
                return pages.show(request, "job-new.html", values)
            order = _order(jobs, form.get("key", ""))
            stored = await submit_jobs(services.submitter, site.ledger, caller, order)
        except RequestError as error:
            return pages.show(request, "job-new.html", values | {"refused": error}, status=HTTPStatus.OK)
        first = stored.jobs[0].id
        return RedirectResponse(f"/jobs/{first}", HTTPStatus.SEE_OTHER)


def _order(jobs: list[wire.JobSpec], key: str) -> wire.SubmitRequest:
    """Build the request; the form's key keeps a form that is sent twice from submitting twice."""
    try:
        return wire.SubmitRequest(jobs=jobs, key=key or None)
    except ValueError as error:  # pydantic's are ValueErrors
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"these jobs are not accepted: {error}",
            "submit fewer at once, or load the page again",
        ) from None


async def _job_file(site: PageContext, request: Request, word: str) -> tuple[str, str]:
    """Return the job file of a job that the caller may read, and its name and id."""
    found = await find_job(site.ledger, word)
    person = person_of(caller_of(request), await site.fleets.current())
    require_permission(person, JobPermission.READ, [found.row])
    if found.spec is None:
        raise RequestError(
            ErrorKind.INVALID,
            "NotFairways",
            f"{format_job_id(found.row.id)} was not submitted through Fairway, so its job file is not known",
            "submit its script:  fairway submit script.sh",
        )
    spec: JobSpec = found.spec
    return compose_job(spec), f"{found.row.name} ({format_job_id(found.row.id)})"


def _values(text: str, *, name: str = "", origin: str = "") -> dict[str, Any]:
    return {
        "text": text,
        "name": name,
        "origin": origin,
        "faults": [],
        "dry_run": None,
        "refused": None,
        "key": uuid.uuid4().hex,
    }
