"""Every Job of a cluster from memory that informers keep true; what changed is joined when somebody asks.

Pods take their facts with them when they are deleted, so what the informers told of them is kept as long as
their Job is there. What a batch told counts as told when the next call brings its mark; another mark gets
everything again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from fairway.engines.kubernetes.client import ApiServer
from fairway.engines.kubernetes.informer import Informer, Kind, Pace
from fairway.engines.kubernetes.jobs.joining import Eviction, Known, Places, Pods, join, with_forgotten
from fairway.engines.kubernetes.jobs.looking import JOBS, look_at, parse_id
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    PodFacts,
    WorkloadFacts,
    WorkloadObject,
    job_keeper,
    keep_workload,
    pod_keeper,
)
from fairway.engines.kubernetes.line import Line
from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.kubernetes.store import Change, Deleted, Key
from fairway.engines.port import Batch, Refused
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import ENDED_JOBS, EngineId, SeenJob

QUIET_SECONDS: Final = 1.0
"""How long a call waits for something to happen."""
GATHER_SECONDS: Final = 0.02
"""One change of a job is several events, a few milliseconds apart."""
_FRESH_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 120.0
"""For the first lists of a cluster with tens of thousands of jobs."""
_LINGER_SECONDS: Final = 3.0
"""How long after a Job its Workload and pods are waited for: they tell when it was deleted."""
_ENDING_SECONDS: Final = 150.0
"""And how long pods may take to end."""
_MOST_GONE: Final = 200
"""Pods of one Job that are kept beyond their end: one that fails for ever does not fill the memory."""


@dataclass(slots=True)
class _Record:
    """What is known of one Job."""

    key: Key
    job: JobFacts
    workload: WorkloadFacts | None = None
    pods: dict[str, Pods] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    earlier: int | None = None
    """None: not yet counted."""
    watched: bool = False
    deleted: bool = False
    gone: datetime | None = None
    """When it was deleted, once that is known."""
    gone_at: float = 0.0
    """The same by our clock: how long that has been waited for."""


class Mirror:
    """All jobs of one cluster, over a connection of its own."""

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pools = pools
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._line = Line(cluster)
        self._turn = asyncio.Lock()
        self._informers: tuple[Informer[Any, Any], ...] = ()
        self._records: dict[str, _Record] = {}
        """By uid."""
        self._by_name: dict[Key, str] = {}
        self._early: dict[str, tuple[WorkloadFacts | None, dict[str, Pods]]] = {}
        """Workload and pods of Jobs that have not been told of yet."""
        self._dirty: set[str] = set()
        self._leaving: set[str] = set()
        """Those that were deleted, until all is known of them."""
        self._told: dict[str, int] = {}
        self._awake = asyncio.Event()
        self._mark = ""
        self._batches = 0
        self._instance = uuid4().hex[:12]
        self._places: tuple[Fleet, Places] | None = None

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        async with self._turn:
            try:
                batch = await self._changes(mark, fleet)
            except FairwayError as e:
                told = self._line.softened(e)
                await self._start_over_after(told)
                raise told from e
            except Exception as e:
                raise self._line.unexpected(e) from e
            self._line.worked()
            return batch

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        places = Places(fleet, self._cluster.name)
        few = asyncio.Semaphore(16)

        async def one(api: ApiServer, engine_id: EngineId) -> SeenJob | None:
            known = self.known(engine_id)
            if known is None:
                async with few:
                    found = await look_at(Access(api, self._timeout_seconds), engine_id, self._pools)
                known = found.known() if found else None
            return None if known is None else join(known, places).seen

        async def every(api: ApiServer) -> list[SeenJob | None]:
            return await asyncio.gather(*(one(api, engine_id) for engine_id in ids))

        seen = await self._line.bounded(_FIRST_SECONDS, every)
        return {job.engine_id: job for job in seen if job is not None}

    def known(self, engine_id: EngineId) -> Known | None:
        """What is in memory of a Job that is there; None: it is not followed."""
        namespace, name, beginning = parse_id(engine_id)
        uid = self._by_name.get((namespace, name), "")
        record = self._records.get(uid)
        if record is None or not uid.startswith(beginning) or not self._informers:
            return None
        return self._known((namespace, name), record)

    async def close(self) -> None:
        await self._stop()
        await self._line.close()

    # a look

    async def _changes(self, mark: str | None, fleet: Fleet) -> Batch:
        whole = not self._informers or mark is None or mark != self._mark
        if not self._informers:
            await self._line.bounded(self._timeout_seconds, self._start)
        if whole:
            await self._proven(_FIRST_SECONDS)
        else:
            await self._something()
            if not self._dirty:
                await self._proven(self._timeout_seconds)
        places = self._placed(fleet)
        if whole:
            self._told.clear()
            self._dirty.update(self._records)
        jobs = tuple(self._joined(places))
        if jobs or whole:
            self._batches += 1
            self._mark = f"{self._instance}.{self._batches}"
        return Batch(jobs, self._mark, whole)

    async def _something(self) -> None:
        """Wait until something happens, and a moment longer for what goes with it."""
        if not self._dirty:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._awake.wait()
            except TimeoutError:
                return
        await asyncio.sleep(GATHER_SECONDS)

    async def _proven(self, seconds: float) -> None:
        """That what is in memory is what is there."""

        async def fresh(_: ApiServer) -> None:
            await asyncio.gather(*(i.fresh(_FRESH_SECONDS) for i in self._informers))

        await self._line.bounded(seconds, fresh)

    def _placed(self, fleet: Fleet) -> Places:
        if self._places is None or (self._places[0] is not fleet and self._places[0] != fleet):
            if self._places is not None:
                self._dirty.update(self._records)  # teams and pools may have other names now
            self._places = (fleet, Places(fleet, self._cluster.name))
        return self._places[1]

    def _joined(self, places: Places) -> Iterator[SeenJob]:
        self._awake.clear()
        dirty, self._dirty = self._dirty | self._leaving, set()
        for uid in dirty:
            record = self._records.get(uid)
            if record is None:
                continue
            key = record.key
            if record.deleted and not self._settled(record):
                continue
            known = self._known(key, record)
            if known.namespace in places.teams or known.job.devices:
                seen = join(known, places).seen
                if self._told.get(uid) != (told := hash(seen)):
                    self._told[uid] = told
                    yield seen
                over = seen.state in ENDED_JOBS
            else:
                over = True
            if record.deleted and over:
                self._forget(uid, key)

    def _settled(self, record: _Record) -> bool:
        """Whether all is known of a Job that was deleted: when, and how its pods ended."""
        waited = self._clock() - record.gone_at
        if record.gone is None:
            times = [p.facts.told_to_go for p in record.pods.values() if p.facts.told_to_go]
            workload = record.workload.deleted_at if record.workload else None
            known = [t for t in (record.job.deleted_at, workload, *times) if t is not None]
            if known:
                record.gone = min(known)
            elif waited > _LINGER_SECONDS:
                # It was in no queue and had no pods: nothing tells but the event itself.
                record.gone = datetime.now(UTC).replace(microsecond=0)
            else:
                return bool(record.job.finished)
        if waited > _ENDING_SECONDS:
            record.pods = {uid: Pods(p.facts, gone=True) for uid, p in record.pods.items()}
        return True

    def _known(self, key: Key, record: _Record) -> Known:
        known = Known(
            *key,
            record.job,
            record.gone,
            record.workload,
            tuple(record.pods.values()),
            tuple(record.evictions),
            record.earlier or 0,
            record.watched,
        )
        if record.earlier is None:
            known = with_forgotten(known)
            record.earlier = known.earlier
        return known

    def _forget(self, uid: str, key: Key) -> None:
        self._records.pop(uid, None)
        self._leaving.discard(uid)
        self._told.pop(uid, None)
        if self._by_name.get(key) == uid:
            del self._by_name[key]

    # informers

    async def _start(self, api: ApiServer) -> None:
        pace = Pace(request_seconds=self._timeout_seconds)
        jobs = Informer(api, Kind(JOBS, "/apis/batch/v1/jobs", JobObject, job_keeper(self._pools)), pace=pace)
        workloads = Informer(
            api, Kind(WORKLOADS, f"{KUEUE}/workloads", WorkloadObject, keep_workload), pace=pace
        )
        pods = Informer(api, Kind("pods", "/api/v1/pods", JobPodObject, pod_keeper(self._pools)), pace=pace)
        jobs.store.subscribe(self._on_job)
        workloads.store.subscribe(self._on_workload)
        pods.store.subscribe(self._on_pod)
        self._informers = (jobs, workloads, pods)
        for informer in self._informers:
            informer.start()

    async def _stop(self) -> None:
        informers, self._informers = self._informers, ()
        for informer in informers:
            await informer.stop()
        for memory in (self._records, self._by_name, self._early, self._told):
            memory.clear()
        self._dirty.clear()
        self._leaving.clear()

    async def _start_over_after(self, error: FairwayError) -> None:
        """New credentials may cure a refusal, and a new informer one that is dead; memory begins anew."""
        if isinstance(error, Refused) or not all(i.alive for i in self._informers):
            await self._stop()
            await self._line.start_over_after(error)

    def _touch(self, uid: str) -> None:
        self._dirty.add(uid)
        self._awake.set()

    def _on_job(self, change: Change[JobFacts]) -> None:
        if isinstance(change, Deleted):
            record = self._records.get(change.before.uid)
            if record is not None:
                record.deleted = True
                record.gone_at = self._clock()
                self._leaving.add(change.before.uid)
                self._touch(change.before.uid)
            return
        uid, facts = change.now.uid, change.now.value
        record = self._records.get(uid)
        if record is None:
            workload, pods = self._early.pop(uid, (None, {}))
            record = self._records[uid] = _Record(change.key, facts, workload, pods)
            record.watched = not facts.finished
            if workload is not None and workload.evicted is not None:
                record.evictions.append(workload.evicted)
            self._by_name[change.key] = uid
        record.job = facts
        self._touch(uid)

    def _on_workload(self, change: Change[WorkloadFacts]) -> None:
        if isinstance(change, Deleted):
            self._touch(change.before.value.job_uid)
            return
        facts = change.now.value
        record = self._records.get(facts.job_uid)
        if record is None:
            _, pods = self._early.get(facts.job_uid, (None, {}))
            self._early[facts.job_uid] = (facts, pods)
            return
        record.workload = facts
        if facts.evicted is not None and facts.evicted not in record.evictions[-1:]:
            record.evictions = [*record.evictions[-_MOST_GONE:], facts.evicted]
        self._touch(facts.job_uid)

    def _on_pod(self, change: Change[PodFacts]) -> None:
        gone = isinstance(change, Deleted)
        facts = change.before.value if isinstance(change, Deleted) else change.now.value
        record = self._records.get(facts.job_uid)
        if record is None:
            workload, pods = self._early.get(facts.job_uid, (None, {}))
            if gone:
                pods.pop(facts.uid, None)
            elif facts.job_uid:
                pods[facts.uid] = Pods(facts)
                self._early[facts.job_uid] = (workload, pods)
            if not pods and workload is None:
                self._early.pop(facts.job_uid, None)
            return
        record.pods[facts.uid] = Pods(facts, gone)
        if gone and len(record.pods) > _MOST_GONE:
            self._drop_oldest(record)
        self._touch(facts.job_uid)

    @staticmethod
    def _drop_oldest(record: _Record) -> None:
        oldest = min(record.pods.values(), key=lambda p: p.facts.created)
        if oldest.gone:
            del record.pods[oldest.facts.uid]
            record.earlier = (record.earlier or 0) + (oldest.facts.started is not None)
