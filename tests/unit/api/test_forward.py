"""A server without engines forwards what asks one: what goes out, what comes back, when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from starlette.types import Message

from fairway.api.app import create_app
from fairway.api.auth import keep_engine_routes, rule_of
from fairway.api.forward import EngineServer
from fairway.api.load import RequestKind
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.services.fleets import Fleets
from tests.unit.api.conftest import FLEET, bearer

Answer = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
ENGINE_ROUTES = {
    "GET /v1/jobs/{id}/log",
    "GET /v1/jobs/{id}/why",
    "POST /v1/jobs/{id}/change",
    "POST /v1/adoptions",
    "POST /v1/applies",
    "POST /v1/imports",
    "POST /v1/jobs",
    "POST /v1/jobs/dry-run",
    "POST /v1/leaves",
    "POST /v1/leaves/plan",
    "POST /v1/plans",
    "POST /v1/renders",
}
STATUS_ROUTES = {"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json", "GET /v1/loops"}


class Body(httpx2.AsyncByteStream):
    """The body of an answer as it comes from a socket: in parts; it may break off."""

    def __init__(self, *parts: bytes, breaks: bool = False) -> None:
        self.closed = False
        self._parts = parts
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._breaks:
            raise httpx2.ReadError("reset")

    async def aclose(self) -> None:
        self.closed = True


class Other:
    """The other server: keeps what it was sent, and answers as a test says."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.answer: Answer = self.say_hello

    async def say_hello(self, _: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Body(b"hel", b"lo"))

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return await self.answer(request)


@pytest.fixture
def other() -> Other:
    return Other()


@pytest.fixture
async def app(ledger: Ledger, other: Other) -> AsyncIterator[FastAPI]:
    """An app whose own services fail when they are used."""
    server = EngineServer("http://control.test:8471", transport=httpx2.MockTransport(other))
    fleets = Fleets(ledger, lambda _: FLEET)
    yield create_app(ledger, CollectorRegistry(), fleets, NO_POLICY_SERVICES, NO_JOB_SERVICES, server)
    await server.close()


def names(app: FastAPI, *, asks_engine: bool | None = None) -> set[str]:
    found = set()
    for route in app.routes:
        rule = rule_of(route)
        assert isinstance(route, APIRoute)
        assert rule is not None
        if asks_engine in (None, rule.asks_engine):
            found |= {f"{method} {route.path_format}" for method in route.methods or ()}
    return found


def test_these_routes_ask_engines_and_no_others(app: FastAPI) -> None:
    assert names(app, asks_engine=True) == ENGINE_ROUTES


def test_a_server_for_the_others_answers_nothing_else(app: FastAPI) -> None:
    keep_engine_routes(app)
    assert names(app) == ENGINE_ROUTES | STATUS_ROUTES


async def test_what_is_sent(http: httpx2.AsyncClient, ledger: Ledger, other: Other) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    more = {
        "X-Request-Id": "my-own-id",
        "Accept": "application/json",
        "Connection": "keep-alive, x-mine",
        "X-Mine": "1",
        "Cookie": "fairway_session=stolen",
        "X-Forwarded-For": "203.0.113.9",
        "Host": "fairway.example.org",
    }
    answer = await http.get("/v1/jobs/a%2Fb%20c/log?offset=1&limit=16&x=%2F..%2F", headers=headers | more)
    assert (answer.status_code, answer.text) == (200, "hello")
    (sent,) = other.requests
    assert (sent.method, str(sent.url)) == (
        "GET",
        "http://control.test:8471/v1/jobs/a%2Fb%20c/log?offset=1&limit=16&x=%2F..%2F",
    )
    assert sent.content == b""
    kept = {name: value for name, value in sent.headers.items() if name != "user-agent"}
    assert kept == {
        "host": "control.test:8471",
        "accept": "application/json",
        "accept-encoding": "identity",
        "authorization": headers["Authorization"],
        "connection": "keep-alive",
        "x-request-id": "my-own-id",
    }


async def test_whatever_a_target_or_a_header_holds_is_sent_on(
    app: FastAPI, ledger: Ledger, other: Other
) -> None:
    token = (await bearer(ledger, Role.VIEWER))["Authorization"].encode()
    printable = bytes(range(0x21, 0x7F)).replace(b"?", b"").replace(b"/", b"").replace(b"%", b"")
    for raw, query in ((b"a" + printable, b"x=" + printable), (b"%00%ff%2e%2E", b"%zz&;=&&"), (b"..", b"?")):
        headers = [(b"authorization", token), (b"accept", b"\xe9\xff"), (b"hx-target", b"\xc3\xa9")]
        path = b"/v1/jobs/" + raw + b"/why"
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("fairway.test", 80),
        }
        statuses: list[int] = []

        async def receive() -> Message:
            await asyncio.Event().wait()  # nothing more comes, and the caller stays
            raise AssertionError

        async def send(message: Message, seen: list[int] = statuses) -> None:
            if message["type"] == "http.response.start":
                seen.append(message["status"])

        await app(scope, receive, send)
        assert statuses == [200], raw
        sent = other.requests[-1]
        assert sent.url.host == "control.test"
        assert sent.headers.raw[0] in ((b"Host", b"control.test:8471"), (b"accept", b"\xe9\xff"))
        if raw != b"..":  # not a job; the way to it is shortened
            assert unquote_to_bytes(sent.url.raw_path.partition(b"?")[0]) == unquote_to_bytes(path)
        assert unquote_to_bytes(sent.url.query) == unquote_to_bytes(query)


@pytest.mark.parametrize("path", ["//evil.test/v1/plans", "/v1//plans", "/v1/plans/"])
async def test_only_the_routes_own_paths_are_sent(
    http: httpx2.AsyncClient, ledger: Ledger, other: Other, path: str
) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    request = http.build_request("POST", "/", headers=headers)
    request.url = request.url.copy_with(raw_path=path.encode())
    assert (await http.send(request)).status_code == 404
    assert not other.requests


async def test_a_body_is_sent_as_it_came(http: httpx2.AsyncClient, ledger: Ledger, other: Other) -> None:
    headers = await bearer(ledger, Role.OPERATOR) | {"Content-Type": "application/json"}
    body = b'{"fleet": "' + b"x" * 1_000_000 + b'"  }'
    assert (await http.post("/v1/plans", content=body, headers=headers)).status_code == 200
    (sent,) = other.requests
    assert sent.content == body
    assert sent.headers["content-type"] == "application/json"


async def test_bodies_are_bounded_here_already(
    http: httpx2.AsyncClient, ledger: Ledger, other: Other
) -> None:
    headers = await bearer(ledger, Role.OPERATOR)
    answer = await http.post("/v1/imports", content=b"x" * 65537, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "BodyTooLarge")
    assert not other.requests


async def test_who_may_not_is_refused_here(http: httpx2.AsyncClient, ledger: Ledger, other: Other) -> None:
    member = await bearer(ledger, Role.MEMBER)
    for headers, status in ({}, 401), ({"Authorization": "Bearer fw_wrong"}, 401), (member, 403):
        assert (await http.post("/v1/plans", json={}, headers=headers)).status_code == status
    assert not other.requests


async def test_what_the_ledger_has_is_answered_here(
    http: httpx2.AsyncClient, ledger: Ledger, other: Other
) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    for path in ("/v1/jobs", "/v1/pools", "/healthz", "/readyz", "/metrics"):
        assert (await http.get(path, headers=headers)).status_code == 200, path
    assert not other.requests


async def test_the_answer_comes_back_without_what_belongs_to_a_hop(
    http: httpx2.AsyncClient, ledger: Ledger, other: Other
) -> None:
    async def redirect(_: httpx2.Request) -> httpx2.Response:
        headers = {
            "Location": "http://evil.test/",
            "Connection": "close",
            "Keep-Alive": "timeout=5",
            "Strict-Transport-Security": "max-age=1",
            "X-Request-Id": "another",
            "Content-Security-Policy": "default-src 'self'",
            "Retry-After": "7",
            "Server": "other",
        }
        return httpx2.Response(303, headers=headers, stream=Body(b"there"))

    other.answer = redirect
    headers = await bearer(ledger, Role.VIEWER) | {"X-Request-Id": "my-own-id"}
    answer = await http.get("/v1/jobs/abc/why", headers=headers)
    assert (answer.status_code, answer.text) == (303, "there")
    assert len(other.requests) == 1  # not followed: the token is for one server
    assert answer.headers["location"] == "http://evil.test/"
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-request-id"] == "my-own-id"
    assert answer.headers["content-security-policy"] == "default-src 'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not {"connection", "keep-alive", "strict-transport-security", "server"} & set(answer.headers)


async def test_nobody_answers(http: httpx2.AsyncClient, ledger: Ledger, other: Other) -> None:
    async def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    other.answer = refuse
    headers = await bearer(ledger, Role.OPERATOR)
    for answer in (
        await http.get("/v1/jobs/abc/why", headers=headers),
        await http.post("/v1/imports", json={"cluster": "hpc"}, headers=headers),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "EngineServerAway")
        assert answer.headers["retry-after"] == "5"
        assert answer.json()["hint"]
        assert "control.test" not in answer.text  # addresses are for the log


@pytest.mark.parametrize("late", [True, False], ids=["late", "cut off"])
async def test_no_answer_to_what_was_sent(
    http: httpx2.AsyncClient, app: FastAPI, ledger: Ledger, other: Other, late: bool
) -> None:
    async def never(request: httpx2.Request) -> httpx2.Response:
        if not late:
            raise httpx2.ReadError("reset", request=request)
        await asyncio.Event().wait()
        raise AssertionError

    other.answer = never
    for kind in (RequestKind.ENGINE, RequestKind.WRITE):
        queue = app.state.queues.by_kind[kind]
        queue.limits = replace(queue.limits, total_seconds=0.05)
    headers = await bearer(ledger, Role.MEMBER)
    read = await http.get("/v1/jobs/abc/why", headers=headers)
    assert (read.status_code, read.json()["code"]) == (503, "EngineServerAway")
    # A job may have been made: nobody is told to send it again.
    written = await http.post("/v1/jobs", json={"jobs": []}, headers=headers)
    assert (written.status_code, written.json()["code"]) == (504, "EngineServerSilent")
    assert "retry-after" not in written.headers
    assert app.state.queues.by_kind[RequestKind.ENGINE].running == 0


async def test_an_answer_that_stops_in_the_middle_is_not_taken_for_a_whole_one(
    http: httpx2.AsyncClient, ledger: Ledger, other: Other
) -> None:
    stream = Body(b"half", breaks=True)

    async def half(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=stream)

    other.answer = half
    headers = await bearer(ledger, Role.VIEWER)
    transport = httpx2.ASGITransport(app=http._transport.app)  # type: ignore[attr-defined]
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as raising:
        with pytest.raises(FairwayError, match="stopped during a response"):
            await raising.get("/v1/jobs/abc/log", headers=headers)
    assert stream.closed


def test_a_certificate_authority_that_is_not_there_is_told_at_the_start() -> None:
    with pytest.raises(FairwayError, match="certificate authority") as caught:
        EngineServer("https://control.test", Path("/nowhere/ca.crt"))
    assert "FAIRWAY_ENGINE_SERVER_CA" in (caught.value.hint or "")
