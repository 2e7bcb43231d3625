"""Mirror every Job of a cluster from memory that informers keep up to date; changes are joined on request.

Deleted pods take their facts with them, so what the informers reported is stored as long as their Job
exists. A batch counts as delivered when the next call brings its mark; another mark gets everything again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import Reconnecting
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.store import Change, Deleted, Key
from fairway.engines.kubernetes.jobs.join import (
    Eviction,
    ObservedJob,
    ObservedPod,
    SupplyLookup,
    join,
    with_forgotten,
)
from fairway.engines.kubernetes.jobs.lookup import JOBS, look_at, parse_id
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
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import Batch, Refused
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import ENDED_JOBS, EngineId, SeenJob

QUIET_SECONDS: Final = 1.0
"""How long a call waits for a change."""
GATHER_SECONDS: Final = 0.02
"""One change of a job is several events, a few milliseconds apart."""
_FRESH_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 120.0
"""For the first lists of a cluster with tens of thousands of jobs."""
_LINGER_SECONDS: Final = 3.0
"""How long after a Job its Workload and pods are awaited: they show when it was deleted."""
_ENDING_SECONDS: Final = 150.0
"""And how long pods may take to end."""
_MOST_GONE: Final = 200
"""Deleted pods stored per Job: one that fails for ever does not fill the memory."""


@dataclass(slots=True)
class _FollowedJob:
    """What is known of one Job."""

    key: Key
    job: JobFacts
    workload: WorkloadFacts | None = None
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    earlier: int | None = None
    """None: not yet counted."""
    watched: bool = False
    deleted: bool = False
    gone: datetime | None = None
    """When it was deleted, once that is known."""
    gone_at: float = 0.0
    """The same by our clock: how long that has been awaited."""


class KubernetesMirror:
    """Mirrors all jobs of one cluster, over a separate connection."""

    def __init__(
        self,
        connection: Reconnecting,
        pools: tuple[Pool, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._timeout_seconds = connection.timeout_seconds
        self._pools = pools
        self._clock = clock
        self._turn = asyncio.Lock()
        self._followed: ApiServer | None = None
        """Where the informers run."""
        self._informers: tuple[Informer[Any, Any], ...] = ()
        self._records: dict[str, _FollowedJob] = {}
        """By uid."""
        self._by_name: dict[Key, str] = {}
        self._early: dict[str, tuple[WorkloadFacts | None, dict[str, ObservedPod]]] = {}
        """Workload and pods of Jobs that have not been reported yet."""
        self._dirty: set[str] = set()
        self._leaving: set[str] = set()
        """Deleted Jobs, until everything is known about them."""
        self._told: dict[str, int] = {}
        self._awake = asyncio.Event()
        self._mark = ""
        self._batches = 0
        self._instance = uuid4().hex[:12]
        self._places: tuple[Fleet, SupplyLookup] | None = None

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        async with self._turn:
            try:
                async with self._connection.use() as api:
                    batch = await self._changes(api, mark, fleet)
            except FairwayError as e:
                told = self._connection.as_warm_up(e)
                await self._start_over_after(told)
                raise told from e
            self._connection.note_allowed()
            return batch

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        places = SupplyLookup(fleet, self._cluster.name)
        few = asyncio.Semaphore(16)

        async def one(api: ApiServer, engine_id: EngineId) -> SeenJob | None:
            known = self.known(engine_id)
            if known is None:
                async with few:
                    found = await look_at(KubeRequests(api, self._timeout_seconds), engine_id, self._pools)
                known = found.known() if found else None
            return None if known is None else join(known, places).seen

        async with self._connection.use(_FIRST_SECONDS) as api:
            seen = await asyncio.gather(*(one(api, engine_id) for engine_id in ids))
        return {job.engine_id: job for job in seen if job is not None}

    def known(self, engine_id: EngineId) -> ObservedJob | None:
        """Return what is in memory of an existing Job. Returns None if it is not followed."""
        namespace, name, beginning = parse_id(engine_id)
        uid = self._by_name.get((namespace, name), "")
        record = self._records.get(uid)
        if record is None or not uid.startswith(beginning) or not self._informers:
            return None
        return self._known((namespace, name), record)

    async def close(self) -> None:
        await self._connection.close()
        await self._stop()

    # a look

    async def _changes(self, api: ApiServer, mark: str | None, fleet: Fleet) -> Batch:
        started = await self._follow(api)
        whole = started or mark is None or mark != self._mark
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
        """Wait until something changes, and a moment longer for related events."""
        if not self._dirty:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._awake.wait()
            except TimeoutError:
                return
        await asyncio.sleep(GATHER_SECONDS)

    async def _proven(self, seconds: float) -> None:
        """Wait until the memory is known to be current."""
        async with self._connection.use(seconds):
            await asyncio.gather(*(i.fresh(_FRESH_SECONDS) for i in self._informers))

    def _placed(self, fleet: Fleet) -> SupplyLookup:
        if self._places is None or (self._places[0] is not fleet and self._places[0] != fleet):
            if self._places is not None:
                self._dirty.update(self._records)  # teams and pools may have other names now
            self._places = (fleet, SupplyLookup(fleet, self._cluster.name))
        return self._places[1]

    def _joined(self, places: SupplyLookup) -> Iterator[SeenJob]:
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

    def _settled(self, record: _FollowedJob) -> bool:
        """Return whether everything is known about a deleted Job: when, and how its pods ended."""
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
            record.pods = {uid: ObservedPod(p.facts, gone=True) for uid, p in record.pods.items()}
        return True

    def _known(self, key: Key, record: _FollowedJob) -> ObservedJob:
        known = ObservedJob(
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

    async def _follow(self, api: ApiServer) -> bool:
        """Have informers run on this connection; says whether they were started, with an empty memory.

        A refused `look_up` replaces the connection, and informers cannot go on with one that was closed.
        """
        if self._informers and self._followed is api:
            return False
        await self._stop()
        self._connection.raise_if_closed()
        pace = InformerTiming(request_seconds=self._timeout_seconds)
        jobs = Informer(
            api, WatchedKind(JOBS, "/apis/batch/v1/jobs", JobObject, job_keeper(self._pools)), pace=pace
        )
        workloads = Informer(
            api, WatchedKind(WORKLOADS, f"{KUEUE}/workloads", WorkloadObject, keep_workload), pace=pace
        )
        pods = Informer(
            api, WatchedKind("pods", "/api/v1/pods", JobPodObject, pod_keeper(self._pools)), pace=pace
        )
        jobs.store.subscribe(self._on_job)
        workloads.store.subscribe(self._on_workload)
        pods.store.subscribe(self._on_pod)
        self._followed = api
        self._informers = (jobs, workloads, pods)
        for informer in self._informers:
            informer.start()
        return True

    async def _stop(self) -> None:
        informers, self._informers = self._informers, ()
        for informer in informers:
            await informer.stop()
        for memory in (self._records, self._by_name, self._early, self._told):
            memory.clear()
        self._dirty.clear()
        self._leaving.clear()

    async def _start_over_after(self, error: FairwayError) -> None:
        """Start over: new credentials may resolve a refusal, and a new informer a dead one."""
        if isinstance(error, Refused) or not all(i.alive for i in self._informers):
            await self._stop()

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
            record = self._records[uid] = _FollowedJob(change.key, facts, workload, pods)
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
                pods[facts.uid] = ObservedPod(facts)
                self._early[facts.job_uid] = (workload, pods)
            if not pods and workload is None:
                self._early.pop(facts.job_uid, None)
            return
        record.pods[facts.uid] = ObservedPod(facts, gone)
        if gone and len(record.pods) > _MOST_GONE:
            self._drop_oldest(record)
        self._touch(facts.job_uid)

    @staticmethod
    def _drop_oldest(record: _FollowedJob) -> None:
        oldest = min(record.pods.values(), key=lambda p: p.facts.created)
        if oldest.gone:
            del record.pods[oldest.facts.uid]
            record.earlier = (record.earlier or 0) + (oldest.facts.started is not None)
