"""The app over a real ledger, and a fleet to ask about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.files import check_text
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, SlurmConnection, SlurmPlace, VirtualConnection
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName, UserName
from fairway.services.fleets import Fleets
from fairway.services.plans import Planner
from fairway.services.policy import PolicyServices
from fairway.services.tokens import hash_secret, new_secret
from fairway.wire import policy as policy_wire
from tests.unit.api.governed import Memory

A100 = GpuType("A100-80GB", 80)


def pool(name: str, cluster: str, *slices: str) -> Pool:
    return Pool(
        PoolName(name),
        ClusterName(cluster),
        A100,
        Capacity.OWNED,
        Decimal("1.90"),
        SlurmPlace("gpu"),
        tuple(SliceName(s) for s in slices),
    )


FLEET = Fleet(
    "acme",
    "USD",
    (
        Cluster(ClusterName("hpc"), SlurmConnection("http://127.0.0.1:1")),
        Cluster(ClusterName("dream"), VirtualConnection()),
    ),
    (pool("hpc-a100", "hpc"), pool("hpc-mig", "hpc", "1g.10gb", "3g.40gb"), pool("dream-a100", "dream")),
)


async def import_nothing(_: Fleet, cluster: ClusterName) -> policy_wire.Imported:
    return policy_wire.Imported(cluster=cluster, fleet="name: imported\n", remarks=0)


async def render_little(fleet: Fleet, cluster: ClusterName) -> dict[str, str]:
    return {"job_submit.lua": f"-- {fleet.name} {cluster}\n"}


def build_policy_services(memory: Memory) -> PolicyServices:
    """Parts whose clusters are in `memory`; relative paths count from /srv."""
    return PolicyServices(
        check=lambda text, source: check_text(text, source, Path("/srv")),
        planner=Planner(memory.build),
        render=render_little,
        import_policy=import_nothing,
    )


@pytest.fixture
def memory() -> Memory:
    """What the clusters have."""
    return Memory()


@pytest.fixture
async def app(ledger: Ledger, memory: Memory) -> FastAPI:
    """The app, with FLEET as the newest revision."""
    await ledger.revisions.add("the text does not matter here", "digest", "test")
    return create_app(
        ledger,
        CollectorRegistry(),
        Fleets(ledger, lambda _: FLEET),
        build_policy_services(memory),
        NO_JOB_SERVICES,
    )


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Speaks to the app without a token."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
        yield client


async def bearer(
    ledger: Ledger, role: Role, name: str | None = None, *, user: str | None = None
) -> dict[str, str]:
    """Headers with a fresh token of this role, which acts for `user`."""
    secret, called = new_secret(), name or f"{user or 'a'}-{role}"
    of_user = UserName(user) if user else None
    await ledger.tokens.create(called, role, hash_secret(secret), "test", user=of_user)
    return {"Authorization": f"Bearer {secret}"}
