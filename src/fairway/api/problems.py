"""Translate errors into HTTP responses: problem+json (RFC 9457) with a code and a hint, or a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.ledger import InvalidText
from fairway.model.errors import FairwayError
from fairway.services.errors import ErrorKind, RequestError
from fairway.wire.fleet import Fault, Problem

MEDIA_TYPE = "application/problem+json"
_MAX_FAULTS = 20
_STATUSES: Final = {
    ErrorKind.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorKind.CONFLICT: HTTPStatus.CONFLICT,
    ErrorKind.ENGINE_FAILED: HTTPStatus.BAD_GATEWAY,
}
log = structlog.get_logger("fairway.api")


class ApiError(FairwayError):
    """An error of the HTTP layer itself, with its status and headers; services raise RequestError."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        hint: str,
        *,
        headers: Mapping[str, str] | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(code, message, hint)
        self.status = status
        self.headers = dict(headers or {})
        self.faults = list(faults)


ErrorPage = Callable[[Request, ApiError], Awaitable[Response]]
"""Renders an error as a page; an app without pages has none."""


def as_api_error(error: Exception) -> ApiError:  # noqa: PLR0911 - one for each kind
    """Translate `error` into an ApiError that is safe to return to the caller.

    Only ApiErrors and RequestErrors are written for callers. Others may name hosts and files of the
    server, and the caller is not even authenticated if the ledger fails to look up the token: their
    details go to the log only.
    """
    match error:
        case ApiError():
            return error
        case InvalidText():
            return as_api_error(RequestError.wrap(ErrorKind.INVALID, error))
        case RequestError():
            return ApiError(_STATUSES[error.kind], error.code, error.message, error.hint, faults=error.faults)
        case RequestValidationError():
            return _invalid_request(error)
        case HTTPException():
            return _from_routing(error)
        case FairwayError():
            return not_ready(error)
        case _:
            return ApiError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "InternalError",
                "internal error: this is a bug",
                "please report it, with the lines of the server's log that have this request_id",
            )


def not_ready(error: FairwayError) -> ApiError:
    """Return the 503 error for a failing dependency; its details go to the log only."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        error.code,
        "the server cannot use its ledger now",
        "try again in a few seconds; the server's log says why",
        headers={"Retry-After": "5"},
    )


def problem_response(error: ApiError, request_id: str) -> Response:
    """Build the problem+json response of an error."""
    problem = Problem(
        type=f"urn:fairway:problem:{error.code}",
        title=error.status.phrase,
        status=error.status,
        detail=error.message,
        code=error.code,
        hint=error.hint,
        request_id=request_id,
        faults=error.faults,
    )
    return Response(
        problem.model_dump_json(), status_code=error.status, headers=error.headers, media_type=MEDIA_TYPE
    )


async def error_response(request: Request, error: ApiError, request_id: str) -> Response:
    """Build the response of an error: a page for browsers, if there are pages, else problem+json."""
    render_page: ErrorPage | None = getattr(request.app.state, "error_page", None)
    if render_page is None or not _wants_page(request):
        return problem_response(error, request_id)
    try:
        return await render_page(request, error)
    except Exception:  # rendering failed too: still report the original error
        log.exception("error page failed", request_id=request_id)
        return problem_response(error, request_id)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")


def _invalid_request(error: RequestValidationError) -> ApiError:
    # Leave out the rejected input: it may be a secret sent in the wrong field.
    faults = [
        Fault(where=".".join(str(part) for part in fault["loc"]), message=str(fault["msg"]))
        for fault in error.errors()[:_MAX_FAULTS]
    ]
    first = faults[0] if faults else Fault(where="request", message="is not valid")
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "InvalidRequest",
        f"{first.where}: {first.message}",
        "compare the request with GET /openapi.json",
        faults=faults,
    )


def _from_routing(error: HTTPException) -> ApiError:
    match error.__cause__:  # FastAPI wraps errors raised while it reads a body
        case ApiError() as cause:
            return cause
        case RequestValidationError() as cause:
            return _invalid_request(cause)
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    match status:
        case HTTPStatus.NOT_FOUND:
            return ApiError(
                status, "NoSuchPath", "there is nothing at this path", "GET /openapi.json lists all paths"
            )
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = headers.get("Allow", headers.get("allow", ""))
            hint = f"use {allowed}" if allowed else "GET /openapi.json lists all paths and their methods"
            return ApiError(
                status, "MethodNotAllowed", "the path does not support this method", hint, headers=headers
            )
        case _:
            return ApiError(
                status,
                "BadRequest" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalError",
                str(error.detail),
                "compare the request with GET /openapi.json",
                headers=headers,
            )
