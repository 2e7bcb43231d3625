"""A real `fairway server` that governs a real cluster of the lab, with a ledger the test reads too."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

from fairway.files.fleet.write import compose_fleet
from fairway.ledger import ApplyCluster, Ledger
from fairway.model.apply import OPEN_STATES, ApplyState
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Grant, Supply, Team
from fairway.policy.objects import FoundPolicy, ObjectKey, Value
from fairway.server import build_engine
from tests.integration.policy.policy_lab import Governed
from tests.integration.server_process import Home, Server
from tests.waiting import Deadline

HERE = ClusterName("here")
POOL = PoolName("gpu")
ENDED = tuple(state for state in ApplyState if state not in OPEN_STATES)
_PRIORITIES = tuple(p.name for p in DEFAULT_PRIORITIES)

Policy = dict[ObjectKey, dict[str, Value]]
"""Every object with our mark, and what it is."""


def team(
    name: str,
    *,
    parent: str = "",
    share: int = 1,
    guarantee: int = 0,
    borrow: int | None = None,
    members: tuple[str, ...] = (),
) -> Team:
    return Team(
        TeamName(name),
        TeamName(parent) if parent else None,
        share=share,
        grants=(Grant(Supply(POOL), guarantee, borrow),),
        priorities=_PRIORITIES,
        members=tuple(UserName(m) for m in members),
    )


def fleet(*teams: Team) -> Fleet:
    """Of one pool; where it is, `Governed.home` says."""
    pool = Pool(
        POOL,
        HERE,
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal(1),
        VirtualPlace(nodes=4, gpus_per_node=8),
    )
    return Fleet("kept", "USD", (Cluster(HERE, VirtualConnection()),), (pool,), teams)


@dataclass
class PolicyServer:
    """A cluster, a ledger, and a server that can be killed and started anew."""

    cluster: Governed
    home: Home
    ledger: Ledger
    database_url: str
    server: Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.to_thread(
            self.home.start,
            "--listen",
            "127.0.0.1:0",
            FAIRWAY_DATABASE_URL=self.database_url,
            FAIRWAY_DRIFT_SECONDS="5",
        )

    async def kill(self) -> None:
        assert self.server is not None
        self.server.send(signal.SIGKILL)
        await asyncio.to_thread(self.server.wait)
        self.server = None

    def at_home(self, wanted: Fleet) -> Fleet:
        return self.cluster.home(wanted, HERE)

    async def queue(self, wanted: Fleet, *, force: bool = False) -> int:
        text = compose_fleet(self.at_home(wanted))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return await self.ledger.applies.queue(text, digest, {HERE: ""}, force=force, by="test")

    async def state(self, number: int) -> ApplyCluster:
        found = await self.ledger.applies.one(number)
        assert found is not None
        return found.clusters[0]

    async def until(self, number: int, *states: ApplyState, within: float = 240) -> ApplyCluster:
        """Kueue may take over a minute to let go of queues that the test before gave up."""
        deadline = Deadline(within)
        while (now := await self.state(number)).state not in states:
            assert not deadline.passed, f"{now}\n{self._told()}"
            await asyncio.sleep(0.02)
        return now

    def _told(self) -> str:
        if self.server is None:
            return "no server runs"
        return f"exit code {self.server.process.poll()}, if it has ended\n{self.server.log}"

    async def applied(self, wanted: Fleet) -> ApplyCluster:
        """Queue it, and wait until it is carried out."""
        end = await self.until(await self.queue(wanted, force=True), *ENDED)
        assert end.state is ApplyState.DONE, f"{end.code}: {end.message}"
        return end

    async def policy(self) -> Policy:
        """What the cluster itself says it has of ours."""
        found = await self.found()
        return {o.key: {k: v for k, v in o.fields.items() if v is not None} for o in found.objects if o.ours}

    async def found(self) -> FoundPolicy:
        home = self.at_home(fleet())
        engine = build_engine(home.clusters[0], home.pools)
        try:
            return await engine.find_policy()
        finally:
            await engine.close()


@asynccontextmanager
async def policy_server(
    cluster: Governed, home: Home, ledger: Ledger, database_url: str
) -> AsyncIterator[PolicyServer]:
    """Governs the cluster; what it made there is taken away at the end."""
    served = PolicyServer(cluster, home, ledger, database_url)
    await cluster.clear()
    try:
        await served.start()
        yield served
    finally:
        if served.server is not None:
            await served.kill()
        await cluster.clear()
