"""ASGI middleware for every request: size limits, headers, metrics, one log line, error responses."""

from __future__ import annotations

import re
import secrets
import time
from contextlib import nullcontext
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairway.api.bodies import LARGE_BYTES, LargeBodies
from fairway.api.problems import ApiError, as_api_error, error_response
from fairway.api.rate_limit import OpenRequests
from fairway.model.errors import FairwayError
from fairway.model.metric import Metric
from fairway.services.errors import RequestError

MAX_BODY_BYTES: Final = 64 * 1024
"""The size limit of bodies, unless the route's access rule was passed and allows more."""
_MAX_DISCARDED: Final = 64 * 1024 * 1024
MAX_TARGET_BYTES: Final = 8 * 1024

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_DIGITS: Final = 20
"""A content length of more digits is ignored; the received bytes are counted anyway."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
_PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Never refused for load: who asks would restart a server that is merely busy."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS: Final = Metric(
    "fairway_api_request_seconds",
    "histogram",
    "How long requests to the API take, by route and status.",
    ("route", "method", "status"),
)
log = structlog.get_logger("fairway.api")


class RequestMetrics:
    """The Prometheus histogram of requests by route, method and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=registry)

    def note(self, scope: Scope, status: int | None, seconds: float) -> None:
        """Record one request by its route's template: paths as labels would grow without limit."""
        found = scope.get("route")
        route = getattr(found, "path_format", None) or getattr(found, "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds.labels(route, method, str(status or 0)).observe(seconds)


class RequestGuard:
    """The outermost middleware. Plain ASGI, so that streaming and timeouts are unaffected."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, large_bodies: LargeBodies) -> None:
        self._app = app
        self._metrics = metrics
        self._large_bodies = large_bodies
        self._open_requests = OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        recorder = _ResponseRecorder(send, request_id, secure=scope["scheme"] == "https")
        body = _BoundedBody(scope, receive, self._large_bodies)
        started = time.perf_counter()
        try:
            _check_target_length(scope)
            _check_framing(Headers(scope=scope))
            with nullcontext() if scope["path"] in _PROBES else self._open_requests.counted(scope["client"]):
                await self._app(scope, body.receive, recorder.send)
        except ClientDisconnect:
            pass  # it closed the connection, or was too slow: nobody reads an answer
        except Exception as error:
            api_error = as_api_error(error)
            _log_failure(error, scope, request_id)
            if recorder.status is not None:  # headers were sent; the server closes the connection
                raise
            response = await error_response(Request(scope), api_error, request_id)
            await response(scope, receive, recorder.send)
        finally:
            body.close()
            # An event stream lasts for hours: measure the time to its first byte.
            ended = recorder.started if scope["state"].get("open_ended") else None
            seconds = (ended or time.perf_counter()) - started
            self._metrics.note(scope, recorder.status, seconds)
            _log_request(scope, recorder.status, seconds, request_id)


class _ResponseRecorder:
    """Adds the common headers to a response and records its status and start."""

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
    """Return the caller's request id if it is safe in a log, else a new one."""
    request_id = headers.get("x-request-id", "")
    return request_id if _REQUEST_ID.fullmatch(request_id) else secrets.token_hex(8)


def _check_target_length(scope: Scope) -> None:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise ApiError(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            "TargetTooLong",
            f"the URL is longer than {MAX_TARGET_BYTES} bytes",
            "request fewer items at a time, and follow next_cursor",
        )


def _check_framing(headers: Headers) -> None:
    """Refuse a request that says twice how long it is: a proxy in front may believe the other one."""
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "AmbiguousLength",
            "the request has both Content-Length and Transfer-Encoding",
            "send one of them",
            headers={"Connection": "close"},
        )


class _BoundedBody:
    """The body of a request; a too large one, declared or not, is refused when it is first read.

    By then the route's access rule has been checked: unauthorized callers learn nothing, and only callers
    that the rule allows may send a large body.
    """

    def __init__(self, scope: Scope, receive: Receive, large_bodies: LargeBodies) -> None:
        declared = Headers(scope=scope).get("content-length", "0")
        self._length = int(declared) if declared.isdecimal() and len(declared) < _DIGITS else 0
        self._scope = scope
        self._receive = receive
        self._large_bodies = large_bodies
        self._received = 0
        self._is_large = False

    async def receive(self) -> Message:
        limit: int = self._scope["state"].get("max_body_bytes", MAX_BODY_BYTES)
        message: Message = {"more_body": True}
        if self._length <= limit:
            message = await self._receive()
            self._received += len(message.get("body", b""))
        if max(self._length, self._received) > limit:
            await self._discard(message)
            raise _body_too_large(limit)
        if self._received > LARGE_BYTES and not self._is_large:
            self._large_bodies.enter()
            self._is_large = True
        return message

    async def _discard(self, message: Message) -> None:
        """Read the rest of a refused body, within reason: many clients read no answer before all is sent."""
        while message.get("more_body") and max(self._length, self._received) <= _MAX_DISCARDED:
            message = await self._receive()
            self._received += len(message.get("body", b""))

    def close(self) -> None:
        if self._is_large:
            self._large_bodies.leave()


def _body_too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "BodyTooLarge",
        f"the request body is larger than {limit} bytes",
        "send less",
        headers={"Connection": "close"},
    )


def _log_failure(error: Exception, scope: Scope, request_id: str) -> None:
    refused = isinstance(error, ApiError | RequestError)
    # A refusal is explained in the response; only its cause may need a log line.
    match error.__cause__ if refused else error:
        case ApiError() | RequestError():
            pass
        case FairwayError() as cause:
            log.warning(cause.message, code=cause.code, hint=cause.hint, request_id=request_id)
        case _ if not refused:
            log.error("request failed", request_id=request_id, path=scope["path"], exc_info=error)


def _log_request(scope: Scope, status: int | None, seconds: float, request_id: str) -> None:
    # Neither query nor headers: both may contain secrets.
    caller = scope["state"].get("caller")
    # Successful reads are logged at debug level: a dashboard makes thousands.
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
