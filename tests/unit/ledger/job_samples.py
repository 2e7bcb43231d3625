"""Jobs, orders and sightings to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fairway.ledger import JobDetail, JobRow, Lease, Ledger, MirrorResult, NewJob
from fairway.model.job import (
    After,
    Attempt,
    Ending,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Placement,
    Retries,
    SeenJob,
    When,
)
from fairway.model.job_change import JobChange
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply

START = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=2)
"""Long enough ago: what a test lets end after some seconds is over, even if it is the first to run."""


def at(seconds: float) -> datetime:
    """So long after the test began."""
    return START + timedelta(seconds=seconds)


def new_job(
    name: str = "train",
    *,
    user: str = "ann",
    team: str = "research",
    cluster: str = "hpc",
    pool: str = "hpc-a100",
    hold: bool = False,
    gpus: int = 2,
    **spec: Any,
) -> NewJob:
    """A job, everything decided."""
    asked = JobSpec(name=name, gpus=GpuRequest(gpus), command=("python", "train.py"), **spec)
    placement = Placement(ClusterName(cluster), Supply(PoolName(pool)), "the only pool")
    return NewJob(asked, UserName(user), TeamName(team), PriorityName("normal"), placement, hold)


async def request_change(ledger: Ledger, number: JobId, change: JobChange, cluster: str = "hpc") -> None:
    """Request a change of a job, as a service that has checked it."""
    before = await ledger.job_changes.one(number)
    assert before is not None
    supply = Supply(change.pool or before.wanted.pool)
    made = new_job()
    changed = replace(
        made,
        spec=change.apply_to(before.wanted.spec),
        priority=change.priority or made.priority,
        placement=replace(made.placement, cluster=ClusterName(cluster), supply=supply, why="moved"),
    )
    await ledger.job_changes.request(number, before, changed, "a change", "bob")


def after(job: JobId, when: When = When.OK) -> dict[str, Any]:
    return {"after": (After(job, when),)}


def retries(count: int, first_seconds: int = 0) -> dict[str, Any]:
    return {"retries": Retries(count, first_seconds)}


def run(start: float, end: float | None = None, ending: Ending | None = None, **more: Any) -> Attempt:
    """An attempt on one node."""
    ended_at = None if end is None else at(end)
    if end is not None and ending is None:
        ending = Ending.DONE
    return Attempt(at(start), (NodeName("n1"),), 2, ended_at, ending, **more)


def seen(engine_id: str, name: str, state: JobState, *attempts: Attempt, **more: Any) -> SeenJob:
    """A sighting. What is over ended when its last attempt did."""
    given: dict[str, Any] = {
        "user": UserName("ann"),
        "team": TeamName("research"),
        "submitted_at": at(0),
        "supply": Supply(PoolName("hpc-a100")),
        "gpus": 2,
    }
    over = state not in {JobState.WAITING, JobState.HELD, JobState.RUNNING}
    if over and attempts:
        given |= {"ended_at": attempts[-1].ended_at, "exit_code": attempts[-1].exit_code}
    elif over:
        given["ended_at"] = at(1)
    return SeenJob(EngineId(engine_id), name, state=state, attempts=attempts, **given | more)


class Desk:
    """A ledger with both leases of a cluster, as a server has them."""

    def __init__(self, ledger: Ledger, dispatch: Lease, mirror: Lease) -> None:
        self.ledger = ledger
        self.dispatch = dispatch
        self.mirror = mirror

    @classmethod
    async def of(cls, ledger: Ledger, cluster: str = "hpc", holder: str = "a") -> Desk:
        leases = [await ledger.leases.take(loop, cluster, holder, 60) for loop in ("dispatch", "mirror")]
        assert leases[0] is not None
        assert leases[1] is not None
        return cls(ledger, leases[0], leases[1])

    async def submit(self, *new: NewJob, key: str | None = None) -> list[JobId]:
        """The id of each, or of each task."""
        return [id_ for ids in await self.ledger.jobs.submit(new, by="ann", key=key) for id_ in ids]

    async def begin(self, *ids: JobId, seconds: float = 30) -> frozenset[JobId]:
        async with self.ledger.writing(self.dispatch) as tx:
            return await tx.dispatch.begin(ids, seconds)

    async def sent(self, *sent: tuple[JobId, int, str]) -> None:
        async with self.ledger.writing(self.dispatch) as tx:
            await tx.dispatch.record_sent([(job, submission, EngineId(id_)) for job, submission, id_ in sent])

    async def send(self, *ids: JobId) -> list[str]:
        """As the dispatch loop does; the engine's ids and names are `e<id>` and the right ones."""
        await self.begin(*ids)
        orders = {
            order.id: order for order in [await self.ledger.dispatch.order_of(id_) for id_ in ids] if order
        }
        await self.sent(*((id_, orders[id_].submission, f"e{id_}-{orders[id_].submission}") for id_ in ids))
        return [orders[id_].engine_name for id_ in ids]

    async def see(self, *jobs: SeenJob, mark: str | None = None, complete: bool = True) -> MirrorResult:
        async with self.ledger.writing(self.mirror) as tx:
            return await tx.mirror.write_jobs(jobs, mark, complete=complete)

    async def settle(self) -> int:
        async with self.ledger.writing(self.dispatch) as tx:
            return len(await tx.dispatch.cancel_unsatisfiable())

    async def due(self) -> list[JobId]:
        return [order.id for order in await self.ledger.dispatch.pending_submits(self.dispatch.cluster, 1000)]

    async def row(self, id_: JobId) -> JobRow:
        (row,) = await self.ledger.jobs.rows([id_])
        return row

    async def state(self, id_: JobId) -> JobState:
        return (await self.row(id_)).state

    async def states(self, ids: Sequence[JobId]) -> list[str]:
        return [row.state.value for row in await self.ledger.jobs.rows(ids)]

    async def detail(self, id_: JobId) -> JobDetail:
        detail = await self.ledger.jobs.one(id_)
        assert detail is not None
        return detail
