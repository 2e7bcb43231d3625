"""Generate the demo's live load: jobs sent through Fairway and natively, cancellations, lost spot nodes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import structlog

from fairway.client.async_client import AsyncClient
from fairway.client.contexts import Target
from fairway.demo.users import PlannedJob, Users
from fairway.engines.virtual import VirtualEngine
from fairway.model.errors import FairwayError
from fairway.model.fleet import Capacity, Fleet
from fairway.model.job import PENDING_JOBS, Tolerates
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, UserName
from fairway.model.team import Supply
from fairway.simulate.cluster import SimState, Simulator
from fairway.wire import jobs as wire

STEP_SECONDS: Final = 1.0
SPOT_OUTAGE_SECONDS: Final = (900.0, 2400.0)
"""How long a spot node is gone, before scaling by the demo's speed."""
SPOT_LOSS_SECONDS: Final = 5400.0
"""The mean time between losses of a spot node, before scaling by the demo's speed."""

log = structlog.get_logger("fairway.demo")


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """The current load of the clusters."""

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
        self._users = Users(fleet, speed, seed)
        self._speed = speed
        self._random = Random(seed)  # noqa: S311 - nothing secret
        self._clients = {name: AsyncClient(Target(url, token)) for name, token in tokens.items()}
        self._pools = {pool.name: pool for pool in fleet.pools}
        self._numbers = itertools.count()
        self._cancellations: list[tuple[float, int, Callable[[], Awaitable[object]]]] = []
        self._lost_node: tuple[float, NodeName, Simulator] | None = None
        self._waiting: Mapping[Supply, int] = {}

    async def fill(self) -> None:
        """Submit the jobs that run and wait when the demo opens."""
        await self._submit([self._users.abandoned_notebook()])
        await self._submit(self._users.initial_jobs())
        self._waiting = await self._count_waiting()

    async def run(self) -> None:
        """Submit and cancel jobs every second. Jobs that the server rejects are dropped."""
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                stack.push_async_callback(client.close)
            before = time.monotonic()
            while True:
                await asyncio.sleep(STEP_SECONDS)
                now = time.monotonic()
                try:
                    self._waiting = await self._count_waiting()
                    await self._submit(self._users.next_jobs(now - before, self._waiting))
                    await self._cancel_due(now)
                except FairwayError as error:
                    log.info("not sent", code=error.code, message=error.message)
                self._lose_and_recover(now, now - before)
                before = now

    @property
    def devices(self) -> Mapping[Supply, int]:
        """Return the number of devices of each supply."""
        return self._users.devices

    def status(self) -> LoadStatus:
        """Return the current load of the clusters."""
        running = held = ended = 0
        for engine in self._engines.values():
            ended += engine.simulator.ended
            counts = engine.simulator.job_counts()
            running += sum(jobs for (state, *_), jobs in counts.items() if state is SimState.RUNNING)
        for supply in self._users.devices:
            devices = self._engines[self._pools[supply.pool].cluster].simulator.held_devices(supply)
            held += sum(devices.get(team.name, 0) for team in self._fleet.teams if team.parent is None)
        waiting = sum(self._waiting.values())
        return LoadStatus(running, waiting, ended, held, sum(self._users.devices.values()))

    # jobs

    async def _count_waiting(self) -> Mapping[Supply, int]:
        waiting: Counter[Supply] = Counter()
        for count in await self._clients["admin"].job_counts():
            if count.pool is not None and count.state in PENDING_JOBS:
                slice_ = None if count.slice is None else SliceName(count.slice)
                waiting[Supply(PoolName(count.pool), slice_)] += count.jobs
        return waiting

    async def _submit(self, planned: Iterable[PlannedJob]) -> None:
        by_user: dict[UserName, list[PlannedJob]] = {}
        for job in planned:
            if job.native:
                self._submit_natively(job)
            else:
                by_user.setdefault(job.user, []).append(job)
        await asyncio.gather(*(self._submit_as(user, jobs) for user, jobs in by_user.items()))

    async def _submit_as(self, user: UserName, jobs: list[PlannedJob]) -> None:
        client = self._clients[user]
        for job in jobs:
            self._set_outcome(job)
        try:
            submitted = await client.submit([self._spec(job) for job in jobs])
        except FairwayError as error:
            log.info("refused", user=user, code=error.code, message=error.message)
            return
        for job, result in zip(jobs, submitted, strict=True):
            self._plan_cancellation(job, partial(client.cancel, list(result.ids)))

    def _submit_natively(self, job: PlannedJob) -> None:
        engine = self._engines[self._pools[job.supply.pool].cluster]
        try:
            engine_id = engine.submit_natively(job.request(job.name))
        except FairwayError as error:
            log.info("refused", user=job.user, code=error.code, message=error.message)
        else:
            self._plan_cancellation(job, partial(engine.cancel, [engine_id]))

    def _set_outcome(self, job: PlannedJob) -> None:
        """Set how long a job takes, on every cluster that Fairway may choose for it."""
        exits = f"{job.exit_code},0" if job.retries else str(job.exit_code)
        for engine in self._engines.values():
            engine.set_outcome(job.user, job.name, seconds=job.seconds, exits=exits)

    def _spec(self, job: PlannedJob) -> wire.JobSpec:
        pool = self._pools[job.supply.pool]
        return wire.JobSpec(
            name=job.name,
            gpus=wire.GpuRequest(
                count=job.gpus, slice=job.supply.slice, model=pool.gpu.name if job.any_pool else None
            ),
            command=list(job.command),
            team=job.team,
            project=job.project,
            labels=job.labels(job.name),
            priority=job.priority,
            pool=None if job.any_pool else job.supply.pool,
            nodes=job.nodes,
            time_seconds=job.limit_seconds,
            array=list(range(job.tasks)) if job.tasks > 1 else [],
            retries=wire.Retries(count=job.retries, first_seconds=max(1, round(300 / self._speed))),
            tolerates=[Tolerates.SPOT] if job.spot else [],
        )

    def _plan_cancellation(self, job: PlannedJob, cancel: Callable[[], Awaitable[object]]) -> None:
        if job.cancelled_after is not None:
            due = time.monotonic() + job.cancelled_after
            heapq.heappush(self._cancellations, (due, next(self._numbers), cancel))

    async def _cancel_due(self, now: float) -> None:
        while self._cancellations and self._cancellations[0][0] <= now:
            _, _, cancel = heapq.heappop(self._cancellations)
            await cancel()

    # nodes

    def _lose_and_recover(self, now: float, seconds: float) -> None:
        """Recover the lost spot node when its outage is over, or lose one from time to time."""
        if self._lost_node is not None:
            until, node, simulator = self._lost_node
            if until > now:
                return
            simulator.recover(node)
            self._lost_node = None
        if self._random.random() >= seconds * self._speed / SPOT_LOSS_SECONDS:
            return
        spot = [pool for pool in self._fleet.pools if pool.capacity is Capacity.SPOT]
        if spot:
            pool = self._random.choice(spot)
            simulator = self._engines[pool.cluster].simulator
            nodes = [name for name, n in simulator.nodes().items() if n.pool.name == pool.name]
            if nodes:  # none while a fleet without this pool is applied
                node = self._random.choice(nodes)
                simulator.lose(node)
                until = now + self._random.uniform(*SPOT_OUTAGE_SECONDS) / self._speed
                self._lost_node = (until, node, simulator)
