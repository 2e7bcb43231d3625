"""The app with its API and its pages, over a real ledger with a fleet, and people who signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Grant, Supply, Team
from fairway.services.fleets import Fleets
from fairway.services.tokens import hash_secret, new_secret
from fairway.settings import Settings, read_settings
from fairway.web.app import add_pages
from tests.unit.api import conftest as api
from tests.unit.api.governed import Memory

URL = "http://fairway.test"
A100 = Supply(PoolName("hpc-a100"))
_PRIORITIES = tuple(p.name for p in DEFAULT_PRIORITIES)


def team(name: str, *people: str, parent: str | None = None, guarantee: int = 0) -> Team:
    """A team that may have A100s of the cluster hpc."""
    return Team(
        TeamName(name),
        None if parent is None else TeamName(parent),
        grants=(Grant(A100, guarantee, 8),),
        priorities=tuple(PriorityName(p) for p in _PRIORITIES),
        members=tuple(UserName(p) for p in people),
    )


FLEET = replace(
    api.FLEET,
    priorities=DEFAULT_PRIORITIES,
    teams=(
        team("research", "ada", "lee", guarantee=16),
        team("vision", "vic", parent="research", guarantee=4),
        team("product", "bob", guarantee=8),
    ),
)
"""ada (a member) and lee (a lead) are of research, bob of product; vision is inside research."""

USERS = {
    Role.ALERTS: "alertmanager",
    Role.VIEWER: "finance",
    Role.MEMBER: "ada",
    Role.LEAD: "lee",
    Role.OPERATOR: "olga",
    Role.ADMIN: "root",
}

SignIn = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture
def fleet() -> Fleet:
    """What the newest revision reads as; a test module may have its own."""
    return FLEET


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A server's settings with nothing set; a test module may have its own."""
    return read_settings({"state_dir": str(tmp_path)}, {"XDG_CONFIG_HOME": str(tmp_path)})


@pytest.fixture
def memory() -> Memory:
    """What the clusters have."""
    return Memory()


@pytest.fixture
async def app(ledger: Ledger, memory: Memory, fleet: Fleet, settings: Settings) -> FastAPI:
    """The API and the pages, with `fleet` as the newest revision."""
    return await make_app(ledger, memory, fleet, settings)


async def make_app(
    ledger: Ledger, memory: Memory, fleet: Fleet, settings: Settings, *, only_engine_routes: bool = False
) -> FastAPI:
    await ledger.revisions.add("the text does not matter here", "digest", "test")
    # Nothing is charged before there was a fleet.
    async with ledger._connections.transaction() as connection:
        await connection.execute(text("UPDATE fleet_revision SET created_at = '2026-01-01T00:00:00Z'"))
    policy = api.build_policy_services(memory)
    made = create_app(ledger, CollectorRegistry(), Fleets(ledger, lambda _: fleet), policy, NO_JOB_SERVICES)
    fleets = made.state.fleets
    add_pages(made, ledger, fleets, policy, NO_JOB_SERVICES, settings, only_engine_routes=only_engine_routes)
    return made


def browser(app: FastAPI, url: str = URL, address: str = "127.0.0.1") -> httpx2.AsyncClient:
    """A client with cookies of its own that asks for pages, as a browser does."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False, client=(address, 1234))
    return httpx2.AsyncClient(transport=transport, base_url=url, headers={"Accept": "text/html,*/*;q=0.8"})


@pytest.fixture
async def stranger(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who did not sign in."""
    async with browser(app) as client:
        yield client


async def token(ledger: Ledger, role: Role, name: str | None = None, user: str | None = None) -> str:
    """A fresh token of this role, of the person who has it in USERS."""
    secret = new_secret()
    made = UserName(user or USERS[role])
    await ledger.tokens.create(name or f"a-{role}", role, hash_secret(secret), "test", user=made)
    return secret


@pytest.fixture
async def sign_in(app: FastAPI, ledger: Ledger) -> AsyncIterator[SignIn]:
    """Signs people in by a token, as the sign-in page does: `await sign_in(Role.MEMBER, user="bob")`."""
    opened: list[httpx2.AsyncClient] = []

    async def signed_in(
        role: Role, *, user: str | None = None, name: str | None = None
    ) -> httpx2.AsyncClient:
        client = browser(app)
        opened.append(client)
        secret = await token(ledger, role, name or f"{role}-{len(opened)}", user)
        answer = await client.post("/sign-in", data={"token": secret})
        assert answer.status_code == 303, answer.text
        return client

    yield signed_in
    for client in opened:
        await client.aclose()


@pytest.fixture
async def admin(sign_in: SignIn) -> httpx2.AsyncClient:
    """Signed in as root, an admin."""
    return await sign_in(Role.ADMIN)


@pytest.fixture
async def viewer(sign_in: SignIn) -> httpx2.AsyncClient:
    """Signed in as finance, a viewer: sees everything, changes nothing."""
    return await sign_in(Role.VIEWER)


@pytest.fixture
async def member(sign_in: SignIn) -> httpx2.AsyncClient:
    """Signed in as ada, a member of research."""
    return await sign_in(Role.MEMBER)


@pytest.fixture
async def lead(sign_in: SignIn) -> httpx2.AsyncClient:
    """Signed in as lee, a lead of research."""
    return await sign_in(Role.LEAD)
