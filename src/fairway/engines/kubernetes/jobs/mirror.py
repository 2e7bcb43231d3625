"""Mirror every Job of a cluster from the stores of informers; changes are joined on request.

Deleted pods take their facts with them, so what the informers reported is stored as long as their Job
exists. A batch counts as delivered when the next call passes its mark; any other mark gets everything again.
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
from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.kinds import KUEUE
from fairway.engines.kubernetes.api.requests import MAX_CONCURRENT, KubeRequests
from fairway.engines.kubernetes.api.store import Change, Deleted, Key
from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.jobs.join import (
    Eviction,
    ObservedJob,
    ObservedPod,
    SupplyLookup,
    count_forgotten_attempts,
    join,
)
from fairway.engines.kubernetes.jobs.lookup import JOBS, look_up_job, parse_id
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    PodFacts,
    WorkloadFacts,
    WorkloadObject,
    job_of_pod,
    job_transform,
    keep_start,
    pod_transform,
    workload_facts,
)
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import MirrorBatch, Refused
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
"""How long after the deletion of a Job that of its Workload and pods is awaited: it shows the time."""
_ENDING_SECONDS: Final = 150.0
"""How long after a Job was deleted its pods may take to end."""
_MAX_DELETED_PODS: Final = 200
"""Deleted pods stored per Job: one that fails for ever does not fill the memory."""


@dataclass(slots=True)
class _FollowedJob:
    """One Job with all that the informers reported of it."""

    key: Key
    job: JobFacts
    workload: WorkloadFacts | None = None
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    forgotten_attempts: int | None = None
    """None: not yet counted."""
    watched: bool = False
    deleted: bool = False
    deleted_at: datetime | None = None
    """When it was deleted, by the API server's times, once that is known."""
    deletion_reported_at: float = 0.0
    """When its deletion was reported, by our clock."""
    is_pod: bool = False
    """A GPU pod that no Job created."""


class KubernetesMirror:
    """A mirror of all jobs of one cluster, over a separate connection."""

    def __init__(
        self,
        connection: ApiConnection,
        pools: tuple[Pool, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._timeout_seconds = connection.timeout_seconds
        self._pools = pools
        self._clock = clock
        self._lock = asyncio.Lock()
        self._watched_api: ApiServer | None = None
        """The connection that the informers use."""
        self._informers: tuple[Informer[Any, Any], ...] = ()
        self._records: dict[str, _FollowedJob] = {}
        """By uid."""
        self._by_name: dict[Key, str] = {}
        self._without_job: dict[str, tuple[WorkloadFacts | None, dict[str, ObservedPod]]] = {}
        """Workload and pods of Jobs that have not been reported yet."""
        self._changed: set[str] = set()
        self._deleted: set[str] = set()
        """Deleted Jobs, until their end and that of their pods is known."""
        self._delivered: dict[str, int] = {}
        """The hash of each job as it was last returned, by uid."""
        self._node_labels: dict[str, tuple[tuple[str, str], ...]] = {}
        """Labels of the nodes of GPU pods that no Job created: they tell the pool."""
        self._has_changes = asyncio.Event()
        self._mark = ""
        self._batches = 0
        self._instance = uuid4().hex[:12]
        self._supplies: tuple[Fleet, SupplyLookup] | None = None

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        async with self._lock:
            try:
                async with self._connection.use() as api:
                    batch = await self._changes(api, mark, fleet)
            except FairwayError as e:
                error = self._connection.as_warm_up(e)
                # New credentials may resolve a refusal, and a new informer a dead one.
                if isinstance(error, Refused) or not all(i.alive for i in self._informers):
                    await self._stop()
                raise error from e
            self._connection.note_allowed()
            return batch

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        supplies = SupplyLookup(fleet, self._cluster.name)
        limit = asyncio.Semaphore(MAX_CONCURRENT)

        async def look_up_one(requests: KubeRequests, engine_id: EngineId) -> SeenJob | None:
            observed = self.observed(engine_id)
            if observed is None:
                async with limit:
                    found = await look_up_job(requests, engine_id, self._pools)
                observed = found.observed() if found else None
            return None if observed is None else join(observed, supplies)

        async with self._connection.requests(_FIRST_SECONDS) as requests:
            jobs = await asyncio.gather(*(look_up_one(requests, engine_id) for engine_id in ids))
        return {job.engine_id: job for job in jobs if job is not None}

    def observed(self, engine_id: EngineId) -> ObservedJob | None:
        """Return what the informers reported of an existing Job. Returns None if it is not followed."""
        namespace, name, uid_prefix = parse_id(engine_id)
        uid = self._by_name.get((namespace, name), "")
        record = self._records.get(uid)
        if record is None or not uid.startswith(uid_prefix) or not self._informers:
            return None
        return self._observed(record)

    async def close(self) -> None:
        await self._connection.close()
        await self._stop()

    # changes

    async def _changes(self, api: ApiServer, mark: str | None, fleet: Fleet) -> MirrorBatch:
        started = await self._follow(api)
        snapshot = started or mark is None or mark != self._mark
        if snapshot:
            await self._ensure_current(_FIRST_SECONDS)
        else:
            await self._wait_for_changes()
            if not self._changed:
                await self._ensure_current(self._timeout_seconds)
        supplies = self._supply_lookup(fleet)
        if snapshot:
            self._delivered.clear()
            self._changed.update(self._records)
        await self._read_node_labels()
        jobs = tuple(self._join_changed(supplies))
        if jobs or snapshot:
            self._batches += 1
            self._mark = f"{self._instance}.{self._batches}"
        return MirrorBatch(jobs, self._mark, snapshot)

    async def _read_node_labels(self) -> None:
        """Read the labels of nodes that run changed GPU pods of no Job, as far as they are not known."""
        records = (self._records.get(uid) for uid in self._changed)
        pods = [p.facts.node for r in records if r is not None and r.is_pod for p in r.pods.values()]
        unknown = {node for node in pods if node} - self._node_labels.keys()
        if not unknown:
            return
        async with self._connection.requests(_FIRST_SECONDS) as requests:
            nodes = await requests.list_all("/api/v1/nodes", "nodes", type_=NodeObject)
        labels = {node.metadata.name: tuple(sorted(node.metadata.labels.items())) for node in nodes}
        self._node_labels |= {node: labels.get(node, ()) for node in unknown}

    async def _wait_for_changes(self) -> None:
        """Wait until a job changes, and a moment longer for related events."""
        if not self._changed:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._has_changes.wait()
            except TimeoutError:
                return
        await asyncio.sleep(GATHER_SECONDS)

    async def _ensure_current(self, seconds: float) -> None:
        """Wait until the informers have proof that their stores are current."""
        async with self._connection.use(seconds):
            await asyncio.gather(*(i.ensure_fresh(_FRESH_SECONDS) for i in self._informers))

    def _supply_lookup(self, fleet: Fleet) -> SupplyLookup:
        if self._supplies is None or (self._supplies[0] is not fleet and self._supplies[0] != fleet):
            if self._supplies is not None:
                self._changed.update(self._records)  # teams and pools may have other names now
            self._supplies = (fleet, SupplyLookup(fleet, self._cluster.name))
        return self._supplies[1]

    def _join_changed(self, supplies: SupplyLookup) -> Iterator[SeenJob]:
        self._has_changes.clear()
        changed, self._changed = self._changed | self._deleted, set()
        for uid in changed:
            record = self._records.get(uid)
            if record is None or (record.deleted and not self._is_settled(record)):
                continue
            observed, ended = self._observed(record), True
            if observed.namespace in supplies.teams or observed.job.devices:
                job = join(observed, supplies)
                if self._delivered.get(uid) != (digest := hash(job)):
                    self._delivered[uid] = digest
                    yield job
                ended = job.state in ENDED_JOBS
            if record.deleted and ended:
                self._forget(uid, record.key)

    def _is_settled(self, record: _FollowedJob) -> bool:
        """Return whether the end of a deleted Job is known: when it was deleted, and how its pods ended."""
        waited = self._clock() - record.deletion_reported_at
        if record.deleted_at is None:
            times = [p.facts.deletion_requested for p in record.pods.values() if p.facts.deletion_requested]
            workload = record.workload.deleted_at if record.workload else None
            times += [t for t in (record.job.deleted_at, workload) if t is not None]
            if times:
                record.deleted_at = min(times)
            elif waited > _LINGER_SECONDS:
                # It was in no queue and had no pods: only the event itself shows the time.
                record.deleted_at = datetime.now(UTC).replace(microsecond=0)
            else:
                return bool(record.job.finished)
        if waited > _ENDING_SECONDS:
            record.pods = {uid: ObservedPod(p.facts, deleted=True) for uid, p in record.pods.items()}
        return True

    def _observed(self, record: _FollowedJob) -> ObservedJob:
        observed = ObservedJob(
            *record.key,
            record.job,
            record.deleted_at,
            record.workload,
            tuple(record.pods.values()),
            tuple(record.evictions),
            record.forgotten_attempts or 0,
            record.watched,
            record.is_pod,
            self._node_labels.get(next(iter(record.pods.values())).facts.node) if record.is_pod else None,
        )
        if record.forgotten_attempts is None:
            observed = count_forgotten_attempts(observed)
            record.forgotten_attempts = observed.forgotten_attempts
        return observed

    def _forget(self, uid: str, key: Key) -> None:
        self._records.pop(uid, None)
        self._deleted.discard(uid)
        self._delivered.pop(uid, None)
        if self._by_name.get(key) == uid:
            del self._by_name[key]

    # informers

    async def _follow(self, api: ApiServer) -> bool:
        """Run informers on this connection. Returns whether they were started now, with an empty memory.

        A refused `look_up` replaces the connection, and informers cannot go on with one that was closed.
        """
        if self._informers and self._watched_api is api:
            return False
        await self._stop()
        self._connection.raise_if_closed()
        timing = InformerTiming(request_seconds=self._timeout_seconds)
        job_kind = WatchedKind(JOBS, "/apis/batch/v1/jobs", JobObject, job_transform(self._pools))
        workload_kind = WatchedKind(WORKLOADS, f"{KUEUE}/workloads", WorkloadObject, workload_facts)
        pod_kind = WatchedKind("pods", "/api/v1/pods", JobPodObject, pod_transform(self._pools))
        jobs = Informer(api, job_kind, timing=timing)
        workloads = Informer(api, workload_kind, timing=timing)
        pods = Informer(api, pod_kind, timing=timing)
        jobs.store.subscribe(self._on_job)
        workloads.store.subscribe(self._on_workload)
        pods.store.subscribe(self._on_pod)
        self._watched_api = api
        self._informers = (jobs, workloads, pods)
        for informer in self._informers:
            informer.start()
        return True

    async def _stop(self) -> None:
        informers, self._informers = self._informers, ()
        for informer in informers:
            await informer.stop()
        for memory in (self._records, self._by_name, self._without_job, self._delivered, self._node_labels):
            memory.clear()
        self._changed.clear()
        self._deleted.clear()

    def _mark_changed(self, uid: str) -> None:
        self._changed.add(uid)
        self._has_changes.set()

    def _on_job(self, change: Change[JobFacts]) -> None:
        if isinstance(change, Deleted):
            record = self._records.get(change.before.uid)
            if record is not None:
                record.deleted = True
                record.deletion_reported_at = self._clock()
                self._deleted.add(change.before.uid)
                self._mark_changed(change.before.uid)
            return
        uid, facts = change.now.uid, change.now.value
        record = self._records.get(uid)
        if record is None:
            workload, pods = self._without_job.pop(uid, (None, {}))
            record = self._records[uid] = _FollowedJob(change.key, facts, workload, pods)
            record.watched = not facts.finished
            if workload is not None and workload.evicted is not None:
                record.evictions.append(workload.evicted)
            self._by_name[change.key] = uid
        record.job = facts
        self._mark_changed(uid)

    def _on_workload(self, change: Change[WorkloadFacts]) -> None:
        if isinstance(change, Deleted):
            self._mark_changed(change.before.value.job_uid)
            return
        facts = change.now.value
        record = self._records.get(facts.job_uid)
        if record is None:
            _, pods = self._without_job.get(facts.job_uid, (None, {}))
            self._without_job[facts.job_uid] = (facts, pods)
            return
        record.workload = facts
        if facts.evicted is not None and facts.evicted not in record.evictions[-1:]:
            record.evictions = [*record.evictions[-_MAX_DELETED_PODS:], facts.evicted]
        self._mark_changed(facts.job_uid)

    def _on_pod(self, change: Change[PodFacts]) -> None:
        deleted = isinstance(change, Deleted)
        facts = change.before.value if isinstance(change, Deleted) else change.now.value
        if not facts.job_uid:
            self._on_pod_without_job(change.key, facts, deleted=deleted)
            return
        record = self._records.get(facts.job_uid)
        if record is None:
            workload, pods = self._without_job.get(facts.job_uid, (None, {}))
            if deleted:
                pods.pop(facts.uid, None)
            else:
                earlier = pods.get(facts.uid)
                pods[facts.uid] = ObservedPod(keep_start(earlier.facts, facts) if earlier else facts)
                self._without_job[facts.job_uid] = (workload, pods)
            if not pods and workload is None:
                self._without_job.pop(facts.job_uid, None)
            return
        before = record.pods.get(facts.uid)
        record.pods[facts.uid] = ObservedPod(
            facts if before is None else keep_start(before.facts, facts), deleted
        )
        if deleted and len(record.pods) > _MAX_DELETED_PODS:
            self._drop_oldest(record)
        self._mark_changed(facts.job_uid)

    def _on_pod_without_job(self, key: Key, facts: PodFacts, *, deleted: bool) -> None:
        """Follow a GPU pod of a Deployment, of an operator, or made by hand: it holds GPUs, too."""
        record = self._records.get(facts.uid)
        if record is None:
            if deleted:
                return
            record = self._records[facts.uid] = _FollowedJob(
                key, job_of_pod(facts), forgotten_attempts=0, is_pod=True
            )
            record.watched = not record.job.finished
        before = record.pods.get(facts.uid)
        facts = facts if before is None else keep_start(before.facts, facts)
        record.job = job_of_pod(facts)
        record.pods[facts.uid] = ObservedPod(facts, deleted)
        if deleted:
            record.deleted = True
            record.deletion_reported_at = self._clock()
            self._deleted.add(facts.uid)
        self._mark_changed(facts.uid)

    @staticmethod
    def _drop_oldest(record: _FollowedJob) -> None:
        oldest = min(record.pods.values(), key=lambda p: p.facts.created)
        if oldest.deleted:
            del record.pods[oldest.facts.uid]
            forgotten = record.forgotten_attempts or 0
            record.forgotten_attempts = forgotten + (oldest.facts.started is not None)
