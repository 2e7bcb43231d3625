"""Pages that ask engines, through a server that has none: the same pages, and no way around CSRF."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.forward import EngineServer
from fairway.api.openapi import NO_JOB_SERVICES, NO_POLICY_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from fairway.web.app import add_pages
from fairway.web.sessions import csrf_of
from tests.unit.api.governed import Memory
from tests.unit.web.conftest import SignIn, browser, make_app

FILE = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters: { dream: { engine: virtual } }
pools: { dream-a100: { cluster: dream, gpu: A100-80GB, capacity: owned, price: 1, virtual: { nodes: 2 } } }
teams: { research: { guarantee: { dream-a100: 8 }, members: [ada] } }
"""


class Counted(httpx2.AsyncBaseTransport):
    """The way to the other server."""

    def __init__(self, app: FastAPI) -> None:
        self._asgi = httpx2.ASGITransport(app=app)
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return await self._asgi.handle_async_request(request)


@pytest.fixture
async def control(ledger: Ledger, memory: Memory, fleet: Fleet, settings: Settings) -> FastAPI:
    """A server that looks after clusters."""
    return await make_app(ledger, memory, fleet, settings, only_engine_routes=True)


@pytest.fixture
def way(control: FastAPI) -> Counted:
    return Counted(control)


@pytest.fixture(params=["http", "https"])
async def app(
    request: pytest.FixtureRequest, ledger: Ledger, fleet: Fleet, settings: Settings, way: Counted
) -> AsyncIterator[FastAPI]:
    """A server that only answers, whose own services fail; the other one is asked by http or https."""
    server = EngineServer(f"{request.param}://control.test", transport=way)
    fleets = Fleets(ledger, lambda _: fleet)
    made = create_app(ledger, CollectorRegistry(), fleets, NO_POLICY_SERVICES, NO_JOB_SERVICES, server)
    add_pages(made, ledger, fleets, NO_POLICY_SERVICES, NO_JOB_SERVICES, settings)
    yield made
    await server.close()


async def test_a_plan_by_the_page(sign_in: SignIn, app: FastAPI, way: Counted, memory: Memory) -> None:
    admin = await sign_in(Role.ADMIN)
    secret = admin.cookies["fairway_session"]
    form = {"fleet": FILE, "csrf": csrf_of(secret)}
    origin = {"Origin": "http://fairway.test", "Sec-Fetch-Site": "same-origin"}
    answer = await admin.post("/policy/plan", data=form, headers=origin)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "research" in answer.text
    assert memory.built  # there, not here
    (sent,) = way.requests
    assert "origin" not in sent.headers
    assert len(sent.headers.get_list("cookie")) == 1
    styles = re.findall(r'href="(/static/[^"]+\.css[^"]*)"', answer.text)
    assert styles
    for address in styles:
        assert (await admin.get(address)).status_code == 200, address  # served here


@pytest.mark.parametrize(
    ("csrf", "headers"),
    [
        (False, {}),
        (True, {"Origin": "http://evil.test"}),
        (True, {"Sec-Fetch-Site": "cross-site"}),
        (True, {"Origin": "http://control.test"}),
    ],
)
async def test_another_sites_form_goes_no_further(
    sign_in: SignIn, way: Counted, csrf: bool, headers: dict[str, str]
) -> None:
    admin = await sign_in(Role.ADMIN)
    token = csrf_of(admin.cookies["fairway_session"]) if csrf else "wrong"
    answer = await admin.post("/policy/plan", data={"fleet": FILE, "csrf": token}, headers=headers)
    assert answer.status_code == 403
    assert "NotFromHere" in answer.text or "did not come from" in answer.text
    assert not way.requests


async def test_who_did_not_sign_in_goes_to_the_sign_in_page(app: FastAPI, way: Counted) -> None:
    async with browser(app) as stranger:
        answer = await stranger.get("/jobs/abc")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fjobs%2Fabc")
        stranger.cookies.set("fairway_session", "made-up")
        assert (await stranger.get("/jobs/abc")).status_code == 303
    assert not way.requests


async def test_errors_of_the_other_server_are_pages_too(sign_in: SignIn, way: Counted) -> None:
    member = await sign_in(Role.MEMBER)
    answer = await member.get("/jobs/zzzz")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "ada" in answer.text  # with the navigation of who is signed in
    assert len(way.requests) == 1


async def test_pages_that_ask_no_engine_are_answered_here(sign_in: SignIn, way: Counted) -> None:
    admin = await sign_in(Role.ADMIN)
    for path in ("/", "/fleet", "/jobs", "/policy", "/policy/history", "/teams", "/server"):
        assert (await admin.get(path)).status_code == 200, path
    assert not way.requests


async def test_the_other_server_has_only_pages_that_ask_engines(control: FastAPI) -> None:
    async with browser(control) as client:
        for path in ("/", "/jobs", "/policy", "/sign-in", "/v1/pools", "/static/style.css"):
            assert (await client.get(path)).status_code == 404, path
        assert (await client.get("/jobs/abc")).status_code == 303
