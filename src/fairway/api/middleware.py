"""What happens to every request before and after its route: limits, headers, one log line, no loose error."""

from __future__ import annotations

import re
import secrets
import time
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairway.api.problems import ApiError, as_api_error, error_response
from fairway.model.errors import FairwayError
from fairway.model.metric import Metric
from fairway.services.errors import RequestError

MOST_BODY_BYTES: Final = 64 * 1024
"""Of any body, unless the route's rule was passed and allows more."""
MOST_TARGET_BYTES: Final = 8 * 1024

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_DIGITS: Final = 20
"""Of a length anybody could mean; without a length what comes is counted."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS: Final = Metric(
    "fairway_api_request_seconds",
    "histogram",
    "How long requests to the API take, by route and status.",
    ("route", "method", "status"),
)
log = structlog.get_logger("fairway.api")


class RequestMetrics:
    """How many requests, how they ended, how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=registry)

    def note(self, scope: Scope, status: int | None, seconds: float) -> None:
        """Count one request by its route's template: paths as labels would grow for ever."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds.labels(route, method, str(status or 0)).observe(seconds)


class RequestGuard:
    """The outermost layer of the app. Plain ASGI, so that streaming and time-outs stay as they are."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id, secure=scope["scheme"] == "https")
        started = time.perf_counter()
        try:
            _refuse_too_large(scope)
            await self._app(scope, _bounded(scope, receive), answer.send)
        except Exception as error:
            known = as_api_error(error)
            _log_failure(error, scope, request_id)
            if answer.status is not None:  # headers are out; the server closes the connection
                raise
            response = await error_response(Request(scope), known, request_id)
            await response(scope, receive, answer.send)
        finally:
            # What goes on for hours is as quick as its first word.
            ended = answer.started if scope["state"].get("open_ended") else None
            seconds = (ended or time.perf_counter()) - started
            self._metrics.note(scope, answer.status, seconds)
            _log_request(scope, answer.status, seconds, request_id)


class _Answer:
    """Adds the headers every answer carries and remembers its status."""

    def __init__(self, send: Send, request_id: str, *, secure: bool) -> None:
        self._send = send
        self._request_id = request_id
        self._secure = secure
        self.status: int | None = None
        self.started: float | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            self.started = time.perf_counter()
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self._request_id
            if self._secure:
                headers["Strict-Transport-Security"] = "max-age=31536000"
        await self._send(message)


def _request_id(headers: Headers) -> str:
    """The caller's id, if it is harmless in a log, or a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _refuse_too_large(scope: Scope) -> None:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_TARGET_BYTES:
        raise ApiError(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            "TargetTooLong",
            f"path and query are longer than {MOST_TARGET_BYTES} bytes",
            "ask for less at once, and follow next_cursor",
        )


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """`receive`, but a body that is too long, announced or not, is refused when somebody begins to read it.

    By then its route's rule was asked: strangers learn nothing, and only who may do so sends much.
    """
    announced = Headers(scope=scope).get("content-length", "0")
    length = int(announced) if announced.isdecimal() and len(announced) < _DIGITS else 0
    received = 0

    async def bounded() -> Message:
        nonlocal received
        most: int = scope["state"].get("most_body_bytes", MOST_BODY_BYTES)
        if length > most:
            raise _body_too_large(most)
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _body_too_large(most)
        return message

    return bounded


def _body_too_large(most: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "BodyTooLarge",
        f"the body is larger than {most} bytes",
        "send less",
        headers={"Connection": "close"},
    )


def _log_failure(error: Exception, scope: Scope, request_id: str) -> None:
    refused = isinstance(error, ApiError | RequestError)
    # A refusal is written for the caller: the answer says it all, and only what caused it may need a line.
    match error.__cause__ if refused else error:
        case ApiError() | RequestError():
            pass
        case FairwayError() as cause:
            log.warning(cause.message, code=cause.code, hint=cause.hint, request_id=request_id)
        case _ if not refused:
            log.error("request failed", request_id=request_id, path=scope["path"], exc_info=error)


def _log_request(scope: Scope, status: int | None, seconds: float, request_id: str) -> None:
    # Neither query nor headers: both may hold what a log must not.
    caller = scope["state"].get("caller")
    # Reads that went well are of no use in a log that people read: a dashboard makes thousands.
    quiet = scope["method"] in ("GET", "HEAD") and status is not None and status < HTTPStatus.BAD_REQUEST
    emit = log.debug if quiet else log.info
    emit(
        "request",
        method=scope["method"],
        path=scope["path"],
        status=status,
        duration_ms=round(seconds * 1000, 1),
        token=caller.name if caller else None,
        request_id=request_id,
    )
