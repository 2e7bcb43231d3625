"""Applying a fleet of many teams to a real engine, beside the same writes made bare.

Fairway's run is recorded request by request; then everything is taken away again, and the very same bodies
are sent by a plain HTTP client, stage after stage, as many at once as Fairway sends. The ratio is all that
Fairway adds: looking first, translating, planning, checking answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import httpx2

from bench.figure import Figure, median
from bench.fleets import A100, PRODUCT, teams_of
from fairway.engines.port import Governs
from fairway.model.errors import FairwayError
from fairway.model.fleet import (
    Capacity,
    Cluster,
    Connection,
    Fleet,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.names import ClusterName, PoolName
from fairway.server import build_engine
from fairway.services.plans import blocking, plan_cluster, raise_if_blocked, write_plan
from lab import Instance, find

TARGET = 1.3
SIZES = {"small": 20, "300": 300}
ROUNDS = {"small": 1, "300": 2}
INSTANCES = ("slurm-24", "slurm-26", "kubernetes")
AT_ONCE = 16
READS = frozenset({"GET", "HEAD"})
CLEAN_SECONDS = 300
NAME = ClusterName("bench")


@dataclass(slots=True)
class Recorded:
    """The writes of one apply, stage by stage, as they went over the wire."""

    stages: list[list[httpx2.Request]] = field(default_factory=lambda: [[]])
    bodies: dict[int, bytes] = field(default_factory=dict)
    client: httpx2.AsyncClient | None = None
    """The plain HTTP client that sent the last of them."""

    @property
    def writes(self) -> int:
        return sum(len(stage) for stage in self.stages)

    def next_stage(self) -> None:
        if self.stages[-1]:
            self.stages.append([])


@contextmanager
def recording(into: Recorded) -> Iterator[Recorded]:
    """Keep every request that is not a read, whichever client sends it."""
    send = httpx2.AsyncClient.send

    async def remember(self: httpx2.AsyncClient, request: httpx2.Request, **how: Any) -> httpx2.Response:
        into.client = self
        if request.method not in READS:
            into.stages[-1].append(request)
            into.bodies[id(request)] = request.content
        return await send(self, request, **how)

    with patch.object(httpx2.AsyncClient, "send", remember):
        yield into


class _Staged:
    """An engine that tells when its next stage begins."""

    def __init__(self, engine: Governs, recorded: Recorded) -> None:
        self._engine, self._recorded = engine, recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(self, changes: Any) -> Any:
        self._recorded.next_stage()
        return self._engine.write(changes)


def _fleet(instance: Instance, teams: int) -> Fleet:
    facts = instance.facts()
    connection: Connection
    place: Place
    if instance.kind == "slurm":
        connection = SlurmConnection(facts["url"], facts["user"], jwt_key_file=facts["jwt_key_file"])
        place = SlurmPlace("gpu", "a100")
    else:
        connection = KubernetesConnection(kubeconfig=facts["fairway_kubeconfig"])
        place = KubernetesPlace(PRODUCT)
    pool = Pool(PoolName("gpu"), NAME, A100, Capacity.OWNED, Decimal("1.90"), place)
    members = ("alice", "bob", "carol")
    return Fleet("bench", "USD", (Cluster(NAME, connection),), (pool,), teams_of(teams, (pool,), members))


@asynccontextmanager
async def _engine(fleet: Fleet) -> AsyncIterator[Governs]:
    engine = build_engine(fleet.clusters[0], fleet.pools)
    try:
        yield engine
    finally:
        await engine.close()


async def _apply(fleet: Fleet, engine: Governs) -> int:
    """As a server does: look, plan, write. How many changes it made."""
    plan = await plan_cluster(engine, fleet, NAME)
    raise_if_blocked(blocking(plan, force=True))
    applied = await write_plan(engine, plan, force=True)
    if applied.refusal is not None:
        raise applied.refusal
    return len(applied.done)


async def _clean(fleet: Fleet) -> None:
    """Take all teams away, and wait until the engine has really let go of them."""
    async with _engine(fleet) as engine, asyncio.timeout(CLEAN_SECONDS):
        while True:
            try:
                if await _apply(replace(fleet, teams=()), engine) == 0:
                    return
            except FairwayError as error:
                print(f"  still going: {error.message[:90]}", flush=True)
            await asyncio.sleep(1)


async def _ours(fleet: Fleet, recorded: Recorded) -> tuple[float, float]:
    """Seconds for the whole apply, and how many of them were looking and planning."""
    async with _engine(fleet) as engine:
        await engine.find_policy()  # connections, tokens and imports are not what is compared
        start = time.perf_counter()
        plan = await plan_cluster(engine, fleet, NAME)
        planned = time.perf_counter()
        with recording(recorded):
            raise_if_blocked(blocking(plan, force=True))
            applied = await write_plan(_Staged(engine, recorded), plan, force=True)
        if applied.refusal is not None:
            raise applied.refusal
        return time.perf_counter() - start, planned - start


async def _bare(fleet: Fleet, recorded: Recorded) -> float:
    """The same requests over one plain client."""
    async with _engine(fleet) as engine:
        with recording(Recorded()) as heard:
            await engine.find_policy()
        http = heard.client  # the same TLS, the same credentials, nothing else of the engine
        assert http is not None
        turns = asyncio.Semaphore(AT_ONCE if fleet.clusters[0].engine == "kubernetes" else 1)

        async def send(request: httpx2.Request) -> None:
            async with turns:
                again = http.build_request(
                    request.method,
                    request.url,
                    headers=_own_headers(request.headers),
                    content=recorded.bodies[id(request)],
                )
                answer = await http.send(again)
                answer.raise_for_status()

        start = time.perf_counter()
        for stage in recorded.stages:
            await asyncio.gather(*(send(request) for request in stage))
        return time.perf_counter() - start


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in {"host", "content-length", "connection"}}


async def _measure(instance: Instance, size: str) -> Figure:
    teams = SIZES[size]
    fleet = _fleet(instance, teams)
    ours: list[float] = []
    bare: list[float] = []
    planning: list[float] = []
    recorded = Recorded()
    for _ in range(ROUNDS[size]):
        await _clean(fleet)
        recorded = Recorded()
        seconds, looking = await _ours(fleet, recorded)
        ours.append(seconds)
        planning.append(looking)
        await _clean(fleet)
        bare.append(await _bare(fleet, recorded))
    await _clean(fleet)
    return Figure(
        f"apply {teams} teams to {instance.name}",
        size,
        median(ours),
        median(bare),
        "s",
        TARGET,
        "the engine's own writes",
        {
            "writes": recorded.writes,
            "looking_and_planning_s": round(median(planning), 3),
            "all_ours_s": [round(s, 2) for s in ours],
            "all_bare_s": [round(s, 2) for s in bare],
        },
    )


async def run(size: str) -> list[Figure]:
    """One figure for each engine that is up."""
    figures = []
    for name in INSTANCES:
        instance = find(name)
        if instance is None or instance.state != "up":
            print(f"apply: {name} is not up, left out (make lab-up)")
            continue
        try:
            figures.append(await _measure(instance, size))
        except (FairwayError, TimeoutError, httpx2.HTTPError) as error:  # said plainly; no build fails by it
            print(f"apply: {name} could not be measured: {type(error).__name__}: {error}")
    return figures
