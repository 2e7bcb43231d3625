"""Generate the demo's live load: jobs sent through Fairway and natively, cancellations, lost spot nodes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Final

import structlog

from fairway.client.async_client import AsyncClient
from fairway.client.contexts import Target
from fairway.demo.users import PlannedJob, Users
from fairway.engines.virtual import SimState, VirtualEngine
from fairway.model.errors import FairwayError
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.job import EngineId, JobState, Tolerates
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, UserName
from fairway.model.team import Supply
from fairway.wire import jobs as wire

BEAT_SECONDS: Final = 1.0
NODE_GONE_SECONDS: Final = (900.0, 2400.0)
"""How long a spot node is gone, before scaling by the demo's speed."""
NODE_GOES_SECONDS: Final = 5400.0
"""The mean time between losses of a spot node, before scaling by the demo's speed."""

log = structlog.get_logger("fairway.demo")


@dataclass(frozen=True, slots=True)
class Beat:
    """The state of the clusters at one moment."""

    running: int
    waiting: int
    ended: int
    held: int
    """GPUs and slices in use."""
    devices: int


class Load:
    """Keeps the clusters busy until it is cancelled."""

    def __init__(
        self,
        fleet: Fleet,
        engines: Mapping[ClusterName, VirtualEngine],
        url: str,
        tokens: Mapping[str, str],
        *,
        speed: float,
        seed: int,
    ) -> None:
        """`tokens` has one for each user, and one for `admin`, which counts jobs."""
        self._fleet = fleet
        self._engines = engines
        self._crowd = Users(fleet, speed, seed)
        self._speed = speed
        self._random = Random(seed)  # noqa: S311 - nothing secret
        self._clients = {name: AsyncClient(Target(url, token)) for name, token in tokens.items()}
        self._pools = {pool.name: pool for pool in fleet.pools}
        self._numbers = itertools.count()
        self._regrets: list[tuple[float, int, _Regret]] = []
        self._gone: list[tuple[float, NodeName, VirtualEngine]] = []
        self._waiting: Mapping[Supply, int] = {}
        self.refused = 0

    async def fill(self) -> None:
        """Submit the jobs that run and wait when the demo opens."""
        await self._send(self._crowd.first())
        self._waiting = await self._count()

    async def run(self) -> None:
        """Submit and cancel jobs every second. Jobs that the server rejects are dropped."""
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                stack.push_async_callback(client.close)
            before = time.monotonic()
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                now = time.monotonic()
                try:
                    self._waiting = await self._count()
                    await self._send(self._crowd.next(now - before, self._waiting))
                    await self._regret(now)
                except FairwayError as error:
                    log.info("not sent", code=error.code, message=error.message)
                self._lose_and_recover(now, now - before)
                before = now

    @property
    def devices(self) -> Mapping[Supply, int]:
        """Return the number of devices of each supply."""
        return self._crowd.devices

    def beat(self) -> Beat:
        """Return the current state of the clusters."""
        running = held = ended = 0
        for engine in self._engines.values():
            ended += engine.simulator.ended
            running += sum(n for key, n in engine.simulator.under().items() if key[0] is SimState.RUNNING)
        for supply in self._crowd.devices:
            devices = self._engines[self._pools[supply.pool].cluster].simulator.held_devices(supply)
            held += sum(devices[team.name].held for team in self._fleet.teams if team.parent is None)
        waiting = sum(self._waiting.values())
        return Beat(running, waiting, ended, held, sum(self._crowd.devices.values()))

    # jobs

    async def _count(self) -> Mapping[Supply, int]:
        waiting: Counter[Supply] = Counter()
        for count in await self._clients["admin"].job_counts():
            if count.pool is not None and count.state in (JobState.QUEUED, JobState.WAITING):
                slice_ = None if count.slice is None else SliceName(count.slice)
                waiting[Supply(PoolName(count.pool), slice_)] += count.jobs
        return waiting

    async def _send(self, wanted: Iterable[PlannedJob]) -> None:
        by_user: dict[UserName, list[PlannedJob]] = {}
        for each in wanted:
            if each.native:
                self._send_natively(each)
            else:
                by_user.setdefault(each.user, []).append(each)
        await asyncio.gather(*(self._send_as(user, jobs) for user, jobs in by_user.items()))

    async def _send_as(self, user: UserName, jobs: list[PlannedJob]) -> None:
        try:
            kept = await self._clients[user].submit([self._spec(job) for job in jobs])
        except FairwayError as error:
            self.refused += len(jobs)
            log.info("refused", user=user, code=error.code, message=error.message)
            return
        for job, made in zip(jobs, kept, strict=True):
            self._plan_regret(job, _Regret(user, words=tuple(made.ids)))

    def _send_natively(self, job: PlannedJob) -> None:
        engine = self._engines[self._pools[job.supply.pool].cluster]
        try:
            made = engine.submit_natively(job.request(job.name))
        except FairwayError as error:
            self.refused += 1
            log.info("refused", user=job.user, code=error.code, message=error.message)
        else:
            self._plan_regret(job, _Regret(job.user, engine=engine, engine_id=made))

    def _spec(self, job: PlannedJob) -> wire.JobSpec:
        pool = self._pools[job.supply.pool]
        exits = f"{job.exit_code},0" if job.retries else str(job.exit_code)
        return wire.JobSpec(
            name=job.name,
            gpus=wire.GpuRequest(
                count=job.gpus, slice=job.supply.slice, model=pool.gpu.name if job.picked else None
            ),
            command=list(job.command),
            team=job.team,
            priority=job.priority,
            pool=None if job.picked else job.supply.pool,
            nodes=job.nodes,
            time_seconds=job.limit_seconds,
            env={"VIRTUAL_SECONDS": f"{job.seconds:.1f}", "VIRTUAL_EXIT": exits},
            array=list(range(job.tasks)) if job.tasks > 1 else [],
            retries=wire.Retries(count=job.retries, first_seconds=max(1, round(300 / self._speed))),
            tolerates=[Tolerates.SPOT] if job.spot else [],
        )

    def _plan_regret(self, job: PlannedJob, regret: _Regret) -> None:
        if job.regretted_after is not None:
            due = time.monotonic() + job.regretted_after
            heapq.heappush(self._regrets, (due, next(self._numbers), regret))

    async def _regret(self, now: float) -> None:
        while self._regrets and self._regrets[0][0] <= now:
            _, _, regret = heapq.heappop(self._regrets)
            if regret.engine is not None and regret.engine_id is not None:
                await regret.engine.cancel([regret.engine_id])
            else:
                await self._clients[regret.user].cancel(list(regret.words))

    # nodes

    def _lose_and_recover(self, now: float, seconds: float) -> None:
        for due, node, engine in [gone for gone in self._gone if gone[0] <= now]:
            engine.recover(node)
            self._gone.remove((due, node, engine))
        if self._gone or self._random.random() >= seconds * self._speed / NODE_GOES_SECONDS:
            return
        spot = [pool for pool in self._fleet.pools if pool.capacity is Capacity.SPOT]
        if spot:
            self._lose_one(self._random.choice(spot), now)

    def _lose_one(self, pool: Pool, now: float) -> None:
        engine = self._engines[pool.cluster]
        nodes = [name for name, n in engine.simulator.nodes().items() if n.pool.name == pool.name]
        node = self._random.choice(nodes)
        engine.lose(node)
        self._gone.append((now + self._random.uniform(*NODE_GONE_SECONDS) / self._speed, node, engine))


@dataclass(frozen=True, slots=True)
class _Regret:
    """A job that its owner is going to cancel."""

    user: UserName
    words: tuple[str, ...] = ()
    engine: VirtualEngine | None = None
    engine_id: EngineId | None = None
