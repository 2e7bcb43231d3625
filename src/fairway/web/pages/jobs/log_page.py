"""The log page of a job: the end of the log, followed live, or all of it as a download."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from fairway.api.auth import caller_of
from fairway.api.problems import as_api_error
from fairway.ledger.records.jobs import JobDetail
from fairway.model.job import format_job_id
from fairway.model.text import clean
from fairway.services.convert import jobs as convert
from fairway.services.errors import RequestError
from fairway.services.job_references import find_job
from fairway.services.jobs import read_log_part
from fairway.services.rights import person_of
from fairway.web.context import PageContext
from fairway.web.sessions import ENGINE_PAGE
from fairway.wire.jobs import MAX_LOG_BYTES, LogPart

SHOWN_BYTES: Final = 64 * 1024
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_PROBE_BYTES: Final = 16
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

ReadPart = Callable[[int, int], Awaitable[LogPart]]
"""Reads at most so many bytes from an offset."""
Attempt = Annotated[int | None, Query(ge=1, le=10**6)]
Node = Annotated[int, Query(ge=0, le=10_000)]
Offset = Annotated[int | None, Query(ge=0, lt=2**60)]


async def last_part(read: ReadPart) -> LogPart:
    """Return the last 64 KB of a log, or all of it if shorter.

    Engines do not report the length. A short log is read at once; the end of a longer one is found by
    doubling and bisecting the offset, reading a few bytes at a time.
    """
    first = await read(0, MAX_LOG_BYTES)
    if first.ended or first.next_offset < MAX_LOG_BYTES - 3:  # a character may have been cut off
        return _end_of(first)
    low = first.next_offset
    while (await read(2 * low, _PROBE_BYTES)).next_offset > 2 * low:
        low *= 2
    return await _bisect(read, low, 2 * low)


async def _bisect(read: ReadPart, low: int, high: int) -> LogPart:
    """Find the end between two offsets by bisection, and return the part before it."""
    while high - low > SHOWN_BYTES // 2:
        middle = (low + high) // 2
        if (await read(middle, _PROBE_BYTES)).next_offset > middle:
            low = middle
        else:
            high = middle
    return await read(max(0, low - SHOWN_BYTES // 2), SHOWN_BYTES)


def _end_of(part: LogPart) -> LogPart:
    data = part.text.encode()
    if len(data) <= SHOWN_BYTES:
        return part
    text = data[-SHOWN_BYTES:].decode(errors="ignore")
    cut = text.find("\n") + 1
    return part.model_copy(update={"text": text[cut:], "offset": part.next_offset - len(text[cut:].encode())})


def printable(text: str) -> str:
    """Remove escapes and control characters; of a line overwritten by carriage returns, keep the last."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROLS.sub("", "\n".join(lines))


def add_log_pages(site: PageContext) -> None:
    """Add the log page and the download."""
    app, pages = site.app, site.pages

    async def reader(request: Request, found: JobDetail, attempt: int | None, node: int) -> ReadPart:
        person = person_of(caller_of(request), await site.fleets.current())

        async def read(offset: int, limit: int) -> LogPart:
            return await read_log_part(site.jobs.log_reader, person, found, attempt, node, offset, limit)

        return read

    @app.get("/jobs/{id}/log", dependencies=ENGINE_PAGE, include_in_schema=False)
    async def show_log(
        request: Request,
        id: str,  # noqa: A002
        attempt: Attempt = None,
        node: Node = 0,
        offset: Offset = None,
    ) -> Response:
        """Show the end of the log; with an offset, what was added since."""
        found = await find_job(site.ledger, id)
        read = await reader(request, found, attempt, node)
        chosen = attempt or (found.attempts[-1].number if found.attempts else 0)
        nodes = next((a.attempt.nodes for a in found.attempts if a.number == chosen), ())
        values = {
            "job": convert.job(found.row),
            "attempts": [(a.number, clean(a.attempt.replica) or a.number) for a in found.attempts],
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
        except RequestError as error:
            values["error"] = error
            # htmx does not show the content of an error response
            status = HTTPStatus.OK if in_place else as_api_error(error).status
        which = None if not in_place else "log_part" if offset is None else "log_more"
        return pages.show(request, "job-log.html", values, part=which, status=status)

    @app.get("/jobs/{id}/log/download", dependencies=ENGINE_PAGE, include_in_schema=False)
    async def download_log(
        request: Request,
        id: str,  # noqa: A002
        attempt: Attempt = None,
        node: Node = 0,
    ) -> Response:
        """Download the log of an attempt on a node, unmodified."""
        found = await find_job(site.ledger, id)
        read = await reader(request, found, attempt, node)
        first = await read(0, MAX_LOG_BYTES)  # raises before the download begins
        name = f"{format_job_id(found.row.id)}-attempt-{first.attempt}-node-{node}.log"
        return StreamingResponse(
            _rest(read, first),
            media_type="text/plain; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )


async def _rest(read: ReadPart, first: LogPart) -> AsyncIterator[bytes]:
    part = first
    while part.text:
        yield part.text.encode()
        if part.ended or part.next_offset >= MAX_FILE_BYTES:
            return
        part = await read(part.next_offset, MAX_LOG_BYTES)
