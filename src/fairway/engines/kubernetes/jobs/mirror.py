"""Mirror every workload of a cluster from the stores of informers; changes are joined on request.

A workload is what a person created: a Job, or the root owner of GPU pods of any other kind. Deleted pods take
their facts with them, so what the informers reported is stored as long as their workload exists; pods that
hold their GPUs on their own, until they were delivered. A batch counts as delivered when the next call passes
its mark; any other mark gets everything again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final
from uuid import uuid4

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.kinds import KUEUE
from fairway.engines.kubernetes.api.requests import MAX_CONCURRENT, KubeRequests, concurrently
from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.jobs.join import SupplyLookup, join
from fairway.engines.kubernetes.jobs.lookup import JOBS, look_up_workload
from fairway.engines.kubernetes.jobs.objects import (
    JobObject,
    JobPodObject,
    PodFacts,
    WorkloadObject,
    job_transform,
    pod_transform,
    workload_transform,
)
from fairway.engines.kubernetes.jobs.observed import ObservedJob, ObservedPod, RootStatus
from fairway.engines.kubernetes.jobs.records import Record, Records
from fairway.engines.kubernetes.jobs.root_status import read_status
from fairway.engines.kubernetes.jobs.roots import Root, Roots
from fairway.engines.kubernetes.nodes.claims import claims_kind
from fairway.engines.kubernetes.nodes.devices import REPLICAS, device_classes
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import MirrorBatch
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import ENDED_JOBS, EngineId, SeenJob

QUIET_SECONDS: Final = 1.0
"""How long a call waits for a change."""
GATHER_SECONDS: Final = 0.02
"""One change of a job is several events, a few milliseconds apart."""
_FRESH_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 120.0
"""For the first lists of a cluster with tens of thousands of jobs."""


class KubernetesMirror:
    """A mirror of all workloads of one cluster, over a separate connection."""

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
        self._pods: Informer[JobPodObject, PodFacts] | None = None
        self._roots = Roots(clock)
        self._classes = device_classes(pools)
        self._records = Records(self._roots, clock, self._notify, frozenset(self._classes.values()))
        self._delivered: dict[str, int] = {}
        """The hash of each job as it was last returned, by uid."""
        self._ended_pods: list[tuple[str, tuple[ObservedPod, ...]]] = []
        """Pods of the last batch that ended and hold their GPUs on their own, by their workload's uid."""
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
        supplies = SupplyLookup(fleet, self._cluster.name, self._records.node_labels.values())
        limit = asyncio.Semaphore(MAX_CONCURRENT)

        async def look_up_one(requests: KubeRequests, engine_id: EngineId) -> SeenJob | None:
            observed = self.observed(engine_id)
            if observed is None:
                async with limit:
                    found = await look_up_workload(requests, engine_id, self._pools)
                observed = found.observed() if found else None
            return None if observed is None else join(observed, supplies)

        async with self._connection.requests(_FIRST_SECONDS) as requests:
            jobs = await asyncio.gather(*(look_up_one(requests, engine_id) for engine_id in ids))
        return {job.engine_id: job for job in jobs if job is not None}

    def observed(self, engine_id: EngineId) -> ObservedJob | None:
        """Return what the informers reported of a workload. Returns None if it is not followed."""
        return self._records.find(engine_id) if self._informers else None

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
            if not self._records.changed:
                await self._ensure_current(self._timeout_seconds)
        self._supply_lookup(fleet)
        ended, self._ended_pods = self._ended_pods, []
        if snapshot:
            self._delivered.clear()
            self._records.deliver_again(self._pods.store.values() if self._pods else ())
        else:
            for uid, pods in ended:
                if (record := self._records.by_uid.get(uid)) is not None:
                    self._records.delivered(record, pods)
        await self._resolve_roots()
        await self._check_roots()
        await self._read_node_labels()
        jobs = tuple(self._join_changed(self._supply_lookup(fleet)))
        if jobs or snapshot:
            self._batches += 1
            self._mark = f"{self._instance}.{self._batches}"
        return MirrorBatch(jobs, self._mark, snapshot)

    async def _resolve_roots(self) -> None:
        """Find the roots of pods and Workloads that were reported without a known one."""
        if unresolved := self._records.unresolved():
            async with self._connection.requests(_FIRST_SECONDS) as requests:
                await self._roots.resolve(requests, unresolved)
        self._records.settle()

    async def _check_roots(self) -> None:
        """Read objects that have neither pods nor Workloads: they ended, wait, or were scaled to 0."""
        due = self._records.to_check()
        if not due:
            return

        async def check(item: tuple[Record, Root]) -> tuple[Record, RootStatus | None]:
            record, root = item
            return record, await read_status(requests, self._roots.plurals, root)

        async with (
            self._connection.requests(_FIRST_SECONDS) as requests,
            aclosing(concurrently(due, check)) as results,
        ):
            async for record, status in results:
                self._records.checked(record, status)

    async def _read_node_labels(self) -> None:
        """Read the labels of nodes at first, and when a changed workload is on one that is not known.

        They tell the pool of a workload without a flavor, and whether pods share the GPUs of their node.
        """
        unknown = self._records.unknown_nodes()
        if self._records.node_labels and not unknown:
            return
        async with self._connection.requests(_FIRST_SECONDS) as requests:
            nodes = await requests.list_all("/api/v1/nodes", "nodes", type_=NodeObject)
        places = (pool.place for pool in self._pools if isinstance(pool.place, KubernetesPlace))
        keys = {REPLICAS, *(key for place in places for key in place.node_labels)}
        labels = {
            node.metadata.name: tuple(sorted((k, v) for k, v in node.metadata.labels.items() if k in keys))
            for node in nodes
        }
        self._records.node_labels |= dict.fromkeys(unknown, ()) | labels
        if self._supplies is not None:
            fleet = self._supplies[0]
            self._supplies = (fleet, SupplyLookup(fleet, self._cluster.name, labels.values()))

    async def _wait_for_changes(self) -> None:
        """Wait until a job changes, and a moment longer for related events."""
        if not self._records.changed:
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
                self._records.changed.update(self._records.by_uid)  # teams and pools may have other names now
            nodes = self._records.node_labels.values()
            self._supplies = (fleet, SupplyLookup(fleet, self._cluster.name, nodes))
        return self._supplies[1]

    def _join_changed(self, supplies: SupplyLookup) -> Iterator[SeenJob]:
        self._has_changes.clear()
        records = self._records
        changed, records.changed = records.changed | records.deleted, set()
        for uid in changed:
            record = records.by_uid.get(uid)
            if record is None or (record.deleted and not records.is_settled(record)):
                continue
            observed, ended = records.observed(record), True
            if observed.job.devices or (observed.namespace in supplies.teams and not observed.kind):
                job = join(observed, supplies)
                if self._delivered.get(uid) != (digest := hash(job)):
                    self._delivered[uid] = digest
                    yield job
                ended = job.state in ENDED_JOBS
                if observed.separate and (over := tuple(p for p in observed.pods if p.ended)):
                    self._ended_pods.append((uid, over))
            if record.deleted and ended:
                records.forget(record)
                self._delivered.pop(uid, None)

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
        workload = workload_transform(self._pools)
        workload_kind = WatchedKind(WORKLOADS, f"{KUEUE}/workloads", WorkloadObject, workload)
        pod_kind = WatchedKind("pods", "/api/v1/pods", JobPodObject, pod_transform(self._pools))
        jobs = Informer(api, job_kind, timing=timing)
        workloads = Informer(api, workload_kind, timing=timing)
        pods = Informer(api, pod_kind, timing=timing)
        jobs.store.subscribe(self._records.on_job)
        workloads.store.subscribe(self._records.on_workload)
        pods.store.subscribe(self._records.on_pod)
        self._watched_api, self._pods = api, pods
        self._informers = (jobs, workloads, pods)
        if self._classes:
            claims = Informer(api, claims_kind(self._classes), timing=timing)
            claims.store.subscribe(self._records.on_claim)
            self._informers = (*self._informers, claims)
        for informer in self._informers:
            informer.start()
        return True

    async def _stop(self) -> None:
        informers, self._informers = self._informers, ()
        for informer in informers:
            await informer.stop()
        self._pods = None
        self._records.clear()
        self._delivered.clear()
        self._ended_pods.clear()

    def _notify(self) -> None:
        self._has_changes.set()
