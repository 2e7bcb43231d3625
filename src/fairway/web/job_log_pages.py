"""A job's log on its page: the end of it, followed while it runs, or all of it as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from fairway.api import job_known as known
from fairway.api.access import caller_of
from fairway.api.job_answers import find_job, read_log_part
from fairway.api.job_rights import person_of
from fairway.api.job_wire import MOST_LOG_BYTES, LogPart
from fairway.api.problems import ApiError
from fairway.ledger.job_records import JobDetail
from fairway.model.job import job_word
from fairway.web.job_log_text import SHOWN_BYTES, ReadsPart, last_part, printable
from fairway.web.rules import PAGE
from fairway.web.site import Site

MOST_FILE_BYTES: Final = 256 * 1024 * 1024

Attempt = Annotated[int | None, Query(ge=1, le=10**6)]
Node = Annotated[int, Query(ge=0, le=10_000)]
Offset = Annotated[int | None, Query(ge=0, lt=2**60)]


def add_log_pages(site: Site) -> None:
    """What a job printed."""
    app, pages = site.app, site.pages

    async def reader(request: Request, found: JobDetail, attempt: int | None, node: int) -> ReadsPart:
        person = person_of(caller_of(request), await site.fleets.current())

        async def read(offset: int, limit: int) -> LogPart:
            return await read_log_part(site.jobs.log_reader, person, found, attempt, node, offset, limit)

        return read

    @app.get("/jobs/{id}/log", dependencies=PAGE, include_in_schema=False)
    async def show_log(
        request: Request,
        id: str,  # noqa: A002
        attempt: Attempt = None,
        node: Node = 0,
        offset: Offset = None,
    ) -> Response:
        """Its end; with an offset, what came since then."""
        found = await find_job(site.ledger, id)
        read = await reader(request, found, attempt, node)
        chosen = attempt or (found.attempts[-1].number if found.attempts else 0)
        nodes = next((a.attempt.nodes for a in found.attempts if a.number == chosen), ())
        values = {
            "job": known.job(found.row),
            "attempts": [a.number for a in found.attempts],
            "attempt": chosen,
            "node": node,
            "nodes": list(enumerate(nodes)),
            "error": None,
            "part": None,
            "text": "",
        }
        in_place = bool(request.headers.get("hx-request"))
        status = HTTPStatus.OK
        try:
            part = await last_part(read) if offset is None else await read(offset, SHOWN_BYTES)
            values |= {"part": part, "text": printable(part.text)}
        except ApiError as error:
            values["error"] = error
            status = HTTPStatus.OK if in_place else error.status  # htmx shows no part that is an error
        which = None if not in_place else "log_part" if offset is None else "log_more"
        return pages.show(request, "job-log.html", values, part=which, status=status)

    @app.get("/jobs/{id}/log/download", dependencies=PAGE, include_in_schema=False)
    async def download_log(
        request: Request,
        id: str,  # noqa: A002
        attempt: Attempt = None,
        node: Node = 0,
    ) -> Response:
        """All that an attempt printed on a node so far, as it is."""
        found = await find_job(site.ledger, id)
        read = await reader(request, found, attempt, node)
        first = await read(0, MOST_LOG_BYTES)  # what may not be read is refused as a page, not as half a file
        name = f"{job_word(found.row.id)}-attempt-{first.attempt}-node-{node}.log"
        return StreamingResponse(
            _rest(read, first),
            media_type="text/plain; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )


async def _rest(read: ReadsPart, first: LogPart) -> AsyncIterator[bytes]:
    part = first
    while part.text:
        yield part.text.encode()
        if part.ended or part.next_offset >= MOST_FILE_BYTES:
            return
        part = await read(part.next_offset, MOST_LOG_BYTES)
