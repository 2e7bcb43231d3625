"""Find what would help waiting jobs: changes that the server accepts and that the model has verified."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Final, Protocol

import structlog

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.model.access import JobPermission
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobId, JobSpec, JobState
from fairway.model.job_change import JobChange
from fairway.model.names import ClusterName
from fairway.model.team import Supply
from fairway.services.fleets import Fleets
from fairway.services.jobs import ChangesWaitingJobs, Submitter
from fairway.services.rights import Person
from fairway.services.run_times import predictor
from fairway.simulate.calibration import Calibration, calibrate
from fairway.simulate.cluster import JobRequest
from fairway.simulate.remedies import (
    Candidate,
    Remedy,
    distinct,
    of_supplies,
    remedies,
    smaller_sizes,
)
from fairway.simulate.run_times import JobTraits, PredictsRunTimes, RunTimes
from fairway.simulate.snapshot import ClusterSnapshot, WaitingJob
from fairway.simulate.starts import traits_of
from fairway.views.why import remedy_option
from fairway.wire import jobs as wire

WAIT_SECONDS: Final = 0.1
"""How long a request waits for remedies; later ones get what was found meanwhile."""
FRESH_SECONDS: Final = 30.0
"""How long remedies of a job are offered."""
SNAPSHOT_SECONDS: Final = 5.0
"""Longer, and suggestions would promise the GPUs that a change of another job has taken."""
_MAX_CACHED: Final = 256
_MAX_AT_ONCE: Final = 4
_MAX_POOLS: Final = 3
_MAX_OFFERED: Final = 4
_ENOUGH: Final = 10
"""Finished jobs from which on a shorter time limit is offered."""
_QUARTER_HOUR: Final = 900
_LONGEST, _MARGIN = 0.98, 1.25
"""A limit that is offered is longer than nearly all jobs like it ran, by a margin."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.services")


@dataclass(frozen=True, slots=True)
class RemedyTask:
    """What a worker gets: everything that remedies depend on."""

    snapshot: ClusterSnapshot
    job: JobId
    candidates: tuple[Candidate, ...]
    predictor: RunTimes
    calibrations: Mapping[ClusterName, Calibration]
    """How forecasts of each cluster came out."""


Compute = Callable[[RemedyTask], Awaitable[Sequence[Remedy]]]


def compute_remedies(task: RemedyTask) -> list[Remedy]:
    """Verify candidates in the model. Runs in the worker."""
    found = remedies(
        task.snapshot,
        task.job,
        task.candidates,
        task.predictor,
        seed=int(task.snapshot.at),
        calibrations=task.calibrations,
    )
    return distinct(found, _MAX_OFFERED)


class ReadsSnapshots(Protocol):
    """Reads the present of clusters; implemented by `SnapshotReader`."""

    async def read(self, cluster: ClusterName) -> ClusterSnapshot | None: ...


@dataclass(slots=True)
class _Search:
    """The remedies of a job, found or being looked for."""

    began: float
    row: tuple[object, ...]
    """What the job was when the search began."""
    task: asyncio.Task[list[Remedy]]


class RemedyFinder:
    """Finds what would help jobs of every cluster. Safe for concurrent use."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        snapshots: ReadsSnapshots,
        submitter: Submitter,
        changer: ChangesWaitingJobs,
        compute: Compute,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._snapshots = snapshots
        self._submitter = submitter
        self._changer = changer
        self._compute = compute
        self._clock = clock
        self._searches: OrderedDict[JobId, _Search] = OrderedDict()
        self._read: dict[ClusterName, tuple[float, ClusterSnapshot | None]] = {}

    async def find(
        self, who: Person, job: wire.Job, row: JobRow, spec: JobSpec
    ) -> tuple[list[wire.Alternative], bool]:
        """Return what would help a job that this person may change, and whether the search goes on."""
        changeable = row.state is JobState.WAITING and not row.native and row.array is None
        if not changeable or spec.manifest is not None or not who.may(JobPermission.CHANGE, row):
            return [], False
        search = self._search(who, row, spec)
        if search is None:
            return [], True
        await asyncio.wait({search.task}, timeout=WAIT_SECONDS)
        if not search.task.done():
            return [], True
        if search.task.cancelled() or search.task.exception() is not None:
            return [], False
        fleet = await self._fleets.current()
        today = datetime.now(UTC).date()
        # Submitting it again makes it the caller's own.
        found = [r for r in search.task.result() if r.candidate.elsewhere is None or who.user == row.user]
        return [remedy_option(job, remedy, fleet, today) for remedy in found], False

    def close(self) -> None:
        """End searches that go on."""
        for search in self._searches.values():
            search.task.cancel()

    def _search(self, who: Person, row: JobRow, spec: JobSpec) -> _Search | None:
        """Return the search for a job, and begin one if there is none. Returns None if too many go on."""
        now = self._clock()
        is_now = (row.pool, row.slice, row.gpus, row.nodes, row.time_seconds, row.priority)
        search = self._searches.get(row.id)
        if search is not None and search.row == is_now and now < search.began + FRESH_SECONDS:
            return search
        if sum(not one.task.done() for one in self._searches.values()) >= _MAX_AT_ONCE:
            return None
        task = asyncio.create_task(self._look(who, row, spec))
        search = self._searches[row.id] = _Search(now, is_now, task)
        self._searches.move_to_end(row.id)
        while len(self._searches) > _MAX_CACHED:
            self._searches.popitem(last=False)[1].task.cancel()
        return search

    async def _look(self, who: Person, row: JobRow, spec: JobSpec) -> list[Remedy]:
        try:
            snapshot = await self._snapshot(row.cluster)
            waiting = next((one for one in snapshot.waiting if one.job == row.id), None) if snapshot else None
            if snapshot is None or waiting is None:
                return []
            fleet = await self._fleets.applied() or await self._fleets.current()
            own = waiting.request
            learnt = await predictor(self._ledger, _traits(of_supplies(snapshot, {own.supply}), own))
            wanted = [*_changes(own, fleet, row, learnt), *_moves(fleet, row)]
            found = [await self._candidate(who, row, spec, fleet, waiting, change) for change in wanted]
            candidates = tuple(one for one in found if one is not None)
            if not candidates:
                return []
            supplies = {own.supply, *(one.request.supply for one in candidates)}
            part = of_supplies(snapshot, supplies)
            clusters = {snapshot.cluster, *(c.elsewhere.cluster for c in candidates if c.elsewhere)}
            calibrations = {
                cluster: calibrate(await self._ledger.job_forecasts.past(cluster)) for cluster in clusters
            }
            task = RemedyTask(part, row.id, candidates, learnt, calibrations)
            return list(await self._compute(task))
        except FairwayError as error:
            log.warning("no remedies", job=row.id, code=error.code, message=error.message)
            return []  # raised, it would be a traceback in the log if nobody asked again

    async def _candidate(
        self, who: Person, row: JobRow, spec: JobSpec, fleet: Fleet, waiting: WaitingJob, change: JobChange
    ) -> Candidate | None:
        """Return a change that the server accepts as a candidate. Returns None for any other."""
        own = waiting.request
        pool = fleet.pool(change.pool or own.pool)
        elsewhere = None
        try:
            if pool.cluster == row.cluster:
                asked = wire.JobChangeRequest(
                    pool=change.pool,
                    gpus=change.gpus,
                    nodes=change.nodes,
                    time_seconds=change.time_seconds,
                    priority=change.priority,
                    dry_run=True,
                )
                checked = await self._changer.change(who, row, asked, by="")
                where = checked.placement
                supply = Supply(pool.name, own.slice if where.slice else None)
            else:
                again = replace(spec, pool=pool.name, team=row.team, after=())
                supply = (await self._submitter.place_again(again, row.user)).placement.supply
                there = await self._snapshot(pool.cluster)
                elsewhere = None if there is None else of_supplies(there, {supply})
                if elsewhere is None:
                    return None
        except (FairwayError, Refused):
            return None
        request = replace(
            own,
            pool=supply.pool,
            slice=supply.slice,
            gpus=own.gpus if change.gpus is None else change.gpus,
            nodes=own.nodes if change.nodes is None else change.nodes,
            limit_seconds=own.limit_seconds if change.time_seconds is None else float(change.time_seconds),
            priority=own.priority if change.priority is None else change.priority,
        )
        return Candidate(change, request, elsewhere)

    async def _snapshot(self, cluster: ClusterName) -> ClusterSnapshot | None:
        """Read the present of a cluster, or return what was read a moment ago."""
        now = self._clock()
        at, known = self._read.get(cluster, (float("-inf"), None))
        if now >= at + SNAPSHOT_SECONDS:
            known = await self._snapshots.read(cluster)
            self._read[cluster] = (now, known)
        return known


def _traits(snapshot: ClusterSnapshot, own: JobRequest) -> set[JobTraits]:
    requests = [job.request for job in snapshot.running]
    requests += [job.request for job in (*snapshot.waiting, *snapshot.arrivals)]
    return {traits_of(own), *map(traits_of, requests)}


def _changes(request: JobRequest, fleet: Fleet, row: JobRow, learnt: PredictsRunTimes) -> Iterator[JobChange]:
    """Generate what may help where the job waits, what asks for least first."""
    team = next((t for t in fleet.teams if t.name == row.team), None)
    rank = next((p.rank for p in fleet.priorities if p.name == row.priority), None)
    if team is not None and rank is not None:
        higher = [p for p in fleet.priorities if p.name in team.priorities and p.rank > rank]
        for priority in sorted(higher, key=lambda p: p.rank):
            yield JobChange(priority=priority.name)
    distribution = learnt.predict(traits_of(request))
    if distribution.samples >= _ENOUGH:
        longest = distribution.quantile(_LONGEST) * _MARGIN
        seconds = ceil(longest / _QUARTER_HOUR) * _QUARTER_HOUR
        if request.limit_seconds is None or seconds <= 0.75 * request.limit_seconds:
            yield JobChange(time_seconds=seconds)
    if request.gpus == row.gpus and request.nodes == row.nodes:  # not packed in another shape
        yield from smaller_sizes(request)


def _moves(fleet: Fleet, row: JobRow) -> Iterator[JobChange]:
    """Generate moves to the other pools that the job's team has a grant on, the cheapest first."""
    team = next((t for t in fleet.teams if t.name == row.team), None)
    granted = {grant.supply.pool for grant in team.grants} if team is not None else set()
    others: list[Pool] = [p for p in fleet.pools if p.name in granted and p.name != row.pool]
    for pool in sorted(others, key=lambda p: p.price)[:_MAX_POOLS]:
        yield JobChange(pool=pool.name)
