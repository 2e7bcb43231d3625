"""A cluster of jobs that is a dictionary: for what the loops of jobs do, whatever the engine.

It outlives the engines that speak to it. Orders take a while to arrive, also those whose sender is gone by
then; where names are not unique the same order twice makes two jobs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from fairway.engines.port import LogPart, MirrorBatch, SubmitResult
from fairway.ledger import Lease, Ledger, Revision
from fairway.ledger.records.jobs import NewJob
from fairway.model.apply import ApplyState, Lifted
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import (
    Attempt,
    Ending,
    EngineId,
    EngineName,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Order,
    Placement,
    SeenJob,
)
from fairway.model.job_change import WaitingChange, job_started
from fairway.model.names import ClusterName, NodeName, PoolName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Grant, Supply, Team

HPC = ClusterName("hpc")
POOL = PoolName("hpc-a100")
SUPPLY = Supply(POOL)
ADA = UserName("ada")
RESEARCH = TeamName("research")
NORMAL = next(p.name for p in DEFAULT_PRIORITIES if p.default)

FLEET = Fleet(
    "acme",
    "USD",
    (Cluster(HPC, VirtualConnection()),),
    (Pool(POOL, HPC, GpuType("A100-80GB", 80), Capacity.OWNED, Decimal(1), VirtualPlace(nodes=4)),),
    (
        Team(
            RESEARCH,
            grants=(Grant(SUPPLY, 8),),
            priorities=tuple(p.name for p in DEFAULT_PRIORITIES),
            members=(ADA,),
        ),
    ),
)


def parse(revision: Revision) -> Fleet:
    assert revision.text == "fleet"
    return FLEET


async def give_fleet(ledger: Ledger) -> None:
    await ledger.revisions.add("fleet", "fleet", "test")


async def applied(ledger: Ledger) -> None:
    """Apply the fleet to the cluster."""
    number = await ledger.applies.queue("fleet", "fleet", {HPC: "f"}, force=False, by="ada")
    lease = await take(ledger, "apply")
    async with ledger.writing(lease) as tx:
        await tx.applies.start(number, [])
        await tx.applies.finish(number, ApplyState.DONE, [], error=None, applied=True)
    await ledger.leases.release(lease)


async def leave(ledger: Ledger) -> None:
    """Leave the cluster."""
    lease = await take(ledger, "apply")
    async with ledger.writing(lease) as tx:
        await tx.applies.lift(Lifted.LEFT, "eve")
    await ledger.leases.release(lease)


def new_job(**more: object) -> NewJob:
    spec = replace(JobSpec("train", GpuRequest(1), ("true",)), **more)  # type: ignore[arg-type]
    return NewJob(spec, ADA, RESEARCH, NORMAL, Placement(HPC, SUPPLY, "it is there"))


async def submit(ledger: Ledger, count: int = 1, **more: object) -> list[JobId]:
    jobs = [new_job(**more) for _ in range(count)]
    return [number for ids in await ledger.jobs.submit(jobs, by="test") for number in ids]


async def take(ledger: Ledger, loop: str, holder: str = "one", seconds: float = 30) -> Lease:
    lease = await ledger.leases.take(loop, HPC, holder, seconds)
    assert lease is not None
    return lease


async def arrived() -> None:
    """Return when nothing is under way any more."""
    await asyncio.gather(*_UNDER_WAY)


@dataclass
class Field:
    """The cluster."""

    unique_names: bool = False
    arrive_seconds: float = 0.0
    """How long an order is under way."""
    jobs: dict[EngineId, SeenJob] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    """By the person's word for a job."""
    deaf: Exception | None = None
    """What every call meets."""
    deaf_after: int | None = None
    """So many orders are answered, then none is, though they arrive."""
    hidden: set[EngineId] = field(default_factory=set)
    """No longer in the queue."""
    forgotten: set[EngineId] = field(default_factory=set)
    """Not even in the records."""
    cannot: dict[EngineId, Refused] = field(default_factory=dict)
    unchangeable: dict[str, Refused] = field(default_factory=dict)
    """By the person's word for a job."""
    told: list[tuple[str, tuple[EngineId, ...]]] = field(default_factory=list)
    marks: list[str | None] = field(default_factory=list)
    snapshots: list[bool] = field(default_factory=list)
    """Whether each batch was whole."""
    keeps_engine: bool = False
    """New engines go on where the last one was, as those of a virtual cluster do."""
    built: int = 0
    closed: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _changed: dict[EngineId, int] = field(default_factory=dict)
    _version: int = 0

    def build(self) -> ToyRuns:
        self.built += 1
        return ToyRuns(self)

    def arrive(self, order: Order) -> EngineId:
        if self.unique_names:
            there = next((j.engine_id for j in self.jobs.values() if j.name == order.engine_name), None)
            if there is not None:
                return there
        state = JobState.HELD if order.hold else JobState.WAITING
        return self.put(order.engine_name, state)

    def put(self, name: str, state: JobState = JobState.WAITING) -> EngineId:
        """A job of that name, whoever made it."""
        id_ = EngineId(str(next(self._numbers)))
        self.set(SeenJob(id_, name, ADA, RESEARCH, state, datetime.now(UTC), SUPPLY, gpus=1))
        return id_

    def set(self, job: SeenJob) -> None:
        self._version += 1
        self._changed[job.engine_id] = self._version
        self.jobs[job.engine_id] = job

    def end(self, id_: EngineId, state: JobState = JobState.DONE) -> None:
        now = datetime.now(UTC)
        run = Attempt(now - timedelta(seconds=1), (NodeName("n1"),), 1, now, Ending(state.value))
        self.set(replace(self.jobs[id_], state=state, attempts=(run,), ended_at=now))

    def live(self) -> Counter[str]:
        """How many jobs of each name there are that nobody ended."""
        return Counter(j.name for j in self.jobs.values() if j.state is not JobState.CANCELLED)

    def since(self, version: int) -> tuple[SeenJob, ...]:
        return tuple(self.jobs[i] for i, v in self._changed.items() if v > version and i not in self.hidden)

    @property
    def version(self) -> int:
        return self._version


class ToyRuns:
    """Speaks to it."""

    def __init__(self, world: Field) -> None:
        self.world = world
        self.unique_names = world.unique_names
        self._fresh = not world.keeps_engine

    def preview(self, order: Order, fleet: Fleet) -> str:
        refusal = self.world.refused.get(order.spec.name)
        if refusal is not None:
            raise refusal
        return f"run {order.engine_name} on {order.supply}"

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        self._hear()
        for number, order in enumerate(orders):
            refusal = self.world.refused.get(order.spec.name)
            if refusal is not None:
                yield SubmitResult(order, None, refusal)
                continue
            # It goes its way, whatever becomes of whoever sent it.
            arrival = asyncio.create_task(self._go(order))
            _UNDER_WAY.add(arrival)
            arrival.add_done_callback(_UNDER_WAY.discard)
            id_ = await asyncio.shield(arrival)
            if self.world.deaf_after is not None and number >= self.world.deaf_after:
                self.world.deaf_after = None
                assert self.world.deaf is not None
                raise self.world.deaf
            yield SubmitResult(order, id_)

    async def _go(self, order: Order) -> EngineId:
        await asyncio.sleep(self.world.arrive_seconds)
        return self.world.arrive(order)

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        self._hear()
        await asyncio.sleep(0)
        return {EngineName(j.name): j.engine_id for j in self.world.jobs.values() if j.name in names}

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._tell("cancel", ids, JobState.CANCELLED)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._tell("hold", ids, JobState.HELD)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._tell("release", ids, JobState.WAITING)

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        refusal = self.world.unchangeable.get(after.spec.name)
        if refusal is not None:
            raise refusal

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        self._hear()
        await asyncio.sleep(0)
        self.world.told.append(("change", tuple(one.engine_id for one in changes)))
        no = {id_: refusal for id_, refusal in self.world.cannot.items() if id_ in self.world.jobs}
        for one in changes:
            job = self.world.jobs[one.engine_id]
            spec = one.after.spec
            wanted = replace(
                job,
                gpus=spec.gpus.count,
                nodes=spec.nodes,
                supply=one.after.supply,
                priority=one.after.priority,
                time_seconds=spec.time_seconds,
            )
            if one.engine_id in no or wanted == job or job.ended_at is not None:
                continue
            if job.state is JobState.RUNNING:
                no[one.engine_id] = job_started(one.engine_id)
            else:
                self.world.set(wanted)
        await asyncio.sleep(0)
        return no

    async def _tell(self, verb: str, ids: Sequence[EngineId], state: JobState) -> Mapping[EngineId, Refused]:
        self._hear()
        await asyncio.sleep(0)
        self.world.told.append((verb, tuple(ids)))
        no = {id_: self.world.cannot[id_] for id_ in ids if id_ in self.world.cannot}
        for id_ in ids:
            if id_ not in no and id_ in self.world.jobs:
                ended = datetime.now(UTC) if state is JobState.CANCELLED else None
                self.world.set(replace(self.world.jobs[id_], state=state, ended_at=ended))
        return no

    async def read_log(
        self,
        order: Order,
        engine_id: EngineId,
        attempt: int,
        offset: int,
        limit: int,
        node: int = 0,
        replica: str = "",
    ) -> LogPart:
        data = f"{order.engine_name} {order.attempts_before} {engine_id} {replica or attempt}".encode()
        return LogPart(data[offset : offset + limit], min(len(data), offset + limit), ended=True)

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        self._hear()
        self.world.marks.append(mark)
        await asyncio.sleep(0)
        whole, self._fresh = self._fresh, False
        self.world.snapshots.append(whole)
        seen = self.world.since(0 if whole or mark is None else int(mark))
        return MirrorBatch(seen, str(self.world.version), whole)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        self._hear()
        await asyncio.sleep(0)
        there = self.world.jobs.keys() - self.world.forgotten
        return {id_: self.world.jobs[id_] for id_ in ids if id_ in there}

    async def close(self) -> None:
        self.world.closed += 1

    def _hear(self) -> None:
        if self.world.deaf is not None and self.world.deaf_after is None:
            raise self.world.deaf


_UNDER_WAY: set[asyncio.Task[EngineId]] = set()
