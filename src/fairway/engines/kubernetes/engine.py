"""Implement the engine protocols with informers, Kueue and Jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.wire import BOUND_AND_UNFINISHED, ListPage, NodeObject, PodObject, Version
from fairway.engines.kubernetes.jobs.explain import explain
from fairway.engines.kubernetes.jobs.manifest import preview
from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.engines.kubernetes.jobs.recover import LostNodeRecovery
from fairway.engines.kubernetes.jobs.roots import find_roots
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner, order_objects
from fairway.engines.kubernetes.nodes import cordon
from fairway.engines.kubernetes.nodes.claims import RESOURCE_API, ClaimFacts, ClaimObject, claims_kind
from fairway.engines.kubernetes.nodes.devices import device_classes
from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices, node_transform, pod_transform
from fairway.engines.kubernetes.nodes.observe import Overlap, observe_nodes
from fairway.engines.kubernetes.nodes.slices import (
    CLASSES,
    SLICES,
    DeviceClasses,
    DeviceClassObject,
    SliceFacts,
    SliceObject,
    device_classes_of,
    slice_transform,
)
from fairway.engines.kubernetes.policy import restore, webhook
from fairway.engines.kubernetes.policy.flavor_nodes import UNCOUNTED
from fairway.engines.kubernetes.policy.import_ import import_policy
from fairway.engines.kubernetes.policy.intervention.intervene import KubernetesIntervener
from fairway.engines.kubernetes.policy.read import KUEUE_SETTING, NOT_INSTALLED, find_policy
from fairway.engines.kubernetes.policy.translate import translate
from fairway.engines.kubernetes.policy.workloads import activity
from fairway.engines.kubernetes.policy.write import write
from fairway.engines.port import (
    CordonOutcome,
    ImportedPolicy,
    LogPart,
    MirrorBatch,
    RequeueRequest,
    SubmitResult,
)
from fairway.explain.findings import WaitFacts
from fairway.model.condition import Condition, ConditionType
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.job_change import WaitingChange
from fairway.model.names import NodeName
from fairway.model.observation import Observation
from fairway.policy.leave import Leaving
from fairway.policy.objects import (
    Activity,
    Change,
    FoundPolicy,
    Intervention,
    Notice,
    ObjectKey,
    Record,
    SavedObject,
    Translation,
)

_log = structlog.get_logger(__name__)

_FRESH_SECONDS: Final = 2.0
"""A watch that has been silent for longer is probed before an answer is given."""
_READ_SECONDS: Final = 120.0
"""Reading the policy of thousands of teams takes a dozen lists, each in pages."""
_VERSION_SECONDS: Final = 300.0
"""How long a reply of /version, and the DeviceClasses, are cached: both change while a cluster runs."""


@dataclass(slots=True)
class _NodeWatch:
    """The informers that run on one connection, and the version of its API server."""

    api: ApiServer
    nodes: Informer[NodeObject, NodeFacts]
    pods: Informer[PodObject, PodDevices]
    classes: DeviceClasses
    slices: Informer[SliceObject, SliceFacts] | None = None
    claims: Informer[ClaimObject, ClaimFacts] | None = None
    """None: no pool names a DeviceClass."""
    version: str = ""
    version_at: float = float("-inf")

    @property
    def informers(self) -> tuple[Informer[Any, Any], ...]:
        return tuple(i for i in (self.nodes, self.pods, self.slices, self.claims) if i is not None)

    @property
    def alive(self) -> bool:
        return all(informer.alive for informer in self.informers)

    def start(self) -> None:
        for informer in self.informers:
            informer.start()

    async def stop(self) -> None:
        for informer in self.informers:
            await informer.stop()


class KubernetesEngine:
    """An engine that observes a cluster with informers, governs it through Kueue and runs jobs on it.

    Nothing is opened before the first `observe`. ResourceSlices and ResourceClaims are followed where a
    pool names a DeviceClass.
    """

    diagnosed: tuple[ConditionType, ...] = (ConditionType.QUEUES_DOWN,)

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        *,
        timeout_seconds: float = 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pools = tuple(p for p in pools if p.cluster == cluster.name)
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._connection = ApiConnection(cluster, timeout_seconds)
        self._classes = device_classes(self._pools)
        self._classes_at = float("-inf")
        self._watch: _NodeWatch | None = None
        self._lock = asyncio.Lock()
        self._logged_overlaps: frozenset[Overlap] = frozenset()
        self._policy_connection = ApiConnection(cluster, timeout_seconds)
        self._intervener = KubernetesIntervener(cluster.name)
        self._recovery = LostNodeRecovery(time.monotonic)
        self._runner = KubernetesRunner(ApiConnection(cluster, timeout_seconds), self._pools)
        self._mirror = KubernetesMirror(ApiConnection(cluster, timeout_seconds), self._pools, clock)

    async def observe(self) -> Observation:
        """Observe the cluster from the informers' stores, after proof that they are current."""
        async with self._connection.use(self._timeout_seconds) as api, self._lock:
            return await self._observe(api)

    async def find_policy(self) -> FoundPolicy:
        """Return every object of the governed kinds, ours or not, and Kueue's configuration."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return await find_policy(requests, self._pools, find_roots)

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Translate `fleet` to this cluster's objects. Pure."""
        if found.settings.get(KUEUE_SETTING) == NOT_INSTALLED:
            return Translation((), (_no_kueue(self._cluster.name),))
        return translate(fleet, self._cluster.name, found)

    async def diagnose(self) -> tuple[Condition, ...]:
        """Return whether Kueue answers."""
        async with self._policy_connection.requests(self._timeout_seconds) as requests:
            return await webhook.diagnose(requests)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Count running and waiting jobs under each of these objects."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return await activity(requests, keys)

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, sixteen at a time, by server-side apply."""
        # Each request is bounded in time, and so are all: their number is that of the changes.
        async with self._policy_connection.requests() as requests:
            async for change in write(requests, changes):
                yield change

    async def read_records(self, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Record]:
        """Return these objects as a whole, without what the API server writes itself."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return await restore.read_records(requests, keys)

    def leaving(
        self, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
    ) -> Leaving:
        """Return what leaving means: objects to write back, and what people do afterwards."""
        return restore.leaving(self._cluster.name, found, saved, now)

    def guards(self, found: FoundPolicy) -> tuple[Change, ...]:
        """Return the changes that unbind admission policies and start stopped queues."""
        return restore.guards(found)

    async def requeue_waiting(self, keys: Collection[ObjectKey]) -> None:
        """Do nothing: queues with waiting jobs stay until these have run."""

    async def intervene(self, fleet: Fleet) -> tuple[Intervention, ...]:
        """Help Kueue with what it falls short of: contiguous placement, order of arrival, past usage."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            interventions = await self._intervener.intervene(requests, fleet)
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return (*interventions, *await self._recovery.recover(requests))

    async def cordon(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, CordonOutcome]:
        """Cordon nodes, two requests for each."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return await cordon.cordon(requests, nodes)

    async def uncordon(self, nodes: Collection[NodeName]) -> Mapping[NodeName, CordonOutcome]:
        """Uncordon nodes that have Fairway's annotation."""
        async with self._policy_connection.requests(_READ_SECONDS) as requests:
            return await cordon.uncordon(requests, nodes)

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> ImportedPolicy:
        """Convert a hand-made policy to a fleet, with pools of GPUs that no queue counts."""
        products = {
            key.removeprefix(UNCOUNTED): names.split(",")
            for key, names in found.settings.items()
            if key.startswith(UNCOUNTED)
        }
        return import_policy(fleet, found, products)

    unique_names: bool = True
    """The API server accepts a name once; a second create answers with a conflict."""

    def preview(self, order: Order, fleet: Fleet) -> str:
        """Return the object that would be created, and the template of its claims, as YAML. Pure."""
        made = order_objects(order, fleet, self._cluster, job_sets=self._runner.kinds.job_sets)
        return preview(*filter(None, (made.template, made.body)))

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Create Jobs, sixteen at a time; yield each once it is created, found to exist, or refused."""
        return self._runner.submit(orders, fleet)

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        """Return the Jobs of these names that exist, ended or not."""
        return await self._runner.find(names)

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Delete Jobs and their pods."""
        return await self._runner.cancel(ids)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Take waiting Jobs out of the queue; running ones go on."""
        return await self._runner.hold(ids)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Put held Jobs back into the queue."""
        return await self._runner.release(ids)

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Raise Refused for what Kubernetes does not let change in a suspended Job. Pure."""
        self._runner.check_change(before, after, fleet)

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Patch Jobs that are suspended; Kueue updates their Workloads."""
        return await self._runner.change(changes, fleet)

    async def lower(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Give the Workloads of running Jobs the lowest priority: Kueue preempts these first."""
        return await self._runner.lower(ids, fleet)

    async def requeue(self, jobs: Sequence[RequeueRequest], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Evict running Jobs that can resume, and let them wait in their queues again."""
        return await self._runner.requeue(jobs)

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
        """Read the log of an attempt's pod, as long as the pod exists."""
        job = self._mirror.observed(engine_id)
        return await self._runner.read_log(job, engine_id, attempt, offset, limit, node, replica)

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Return Jobs that changed since the batch with this mark; any other mark gets all of them."""
        return await self._mirror.changes(mark, fleet)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Look up Jobs that exist, ended or not. Kubernetes has no records of a deleted one."""
        return await self._mirror.look_up(ids, fleet)

    async def explain(self, engine_id: EngineId, fleet: Fleet) -> WaitFacts | None:
        """Read the Job, its pods, its events and, if its queue is inactive, that queue."""
        async with self._policy_connection.requests(self._timeout_seconds) as requests:
            return await explain(requests, engine_id, fleet, self._cluster.name, self._pools)

    async def never_fits(self, order: Order, fleet: Fleet) -> Refused | None:
        """Return why, if the cluster lacks a manifest's kind. Placement compares quota and nodes before."""
        return await self._runner.never_fits(order)

    async def close(self) -> None:
        """Stop the informers and close all connections."""
        await self._connection.close()
        await self._policy_connection.close()
        await self._runner.close()
        await self._mirror.close()
        await self._stop_watching()

    async def _observe(self, api: ApiServer) -> Observation:
        watch = await self._watch_on(api)
        try:
            # Before the informers start: one of them takes its connection over.
            version = await self._version(watch)
            self._connection.raise_if_closed()
            watch.start()
            await asyncio.gather(*(i.ensure_fresh(_FRESH_SECONDS) for i in watch.informers))
            return self._observation(watch, version)
        except FairwayError as e:
            # New credentials in the file may resolve a refusal, and a new informer a dead one.
            if isinstance(e, Refused) or not watch.alive:
                await self._stop_watching()
            if isinstance(e, Refused):
                await self._connection.discard(api)
            raise

    def _observation(self, watch: _NodeWatch, version: str) -> Observation:
        nodes = {name: stored.value for (_, name), stored in watch.nodes.store.items()}
        slices = watch.slices.store.values() if watch.slices else ()
        claims = watch.claims.store.values() if watch.claims else ()
        observed = observe_nodes(nodes, watch.pods.store.values(), self._pools, slices, claims)
        self._log_overlaps(observed.overlaps)
        return Observation(self._cluster.name, version, observed.nodes)

    async def _watch_on(self, api: ApiServer) -> _NodeWatch:
        classes = self._watch.classes if self._watch else DeviceClasses()
        if self._classes and self._clock() - self._classes_at > _VERSION_SECONDS:
            classes = await self._read_classes(api)
        if self._watch is None or self._watch.api is not api or self._watch.classes != classes:
            await self._stop_watching()
            timing = InformerTiming(request_seconds=self._timeout_seconds)
            nodes = WatchedKind("nodes", "/api/v1/nodes", NodeObject, node_transform(self._pools))
            selector = {"fieldSelector": BOUND_AND_UNFINISHED}
            pods = WatchedKind("pods", "/api/v1/pods", PodObject, pod_transform(self._pools), selector)
            self._watch = _NodeWatch(
                api,
                Informer(api, nodes, timing=timing, clock=self._clock),
                Informer(api, pods, timing=timing, clock=self._clock),
                classes,
            )
            if self._classes:
                slices = WatchedKind(
                    SLICES, f"{RESOURCE_API}/resourceslices", SliceObject, slice_transform(classes)
                )
                self._watch.slices = Informer(api, slices, timing=timing, clock=self._clock)
                claims = claims_kind(self._classes)
                self._watch.claims = Informer(api, claims, timing=timing, clock=self._clock)
        return self._watch

    async def _read_classes(self, api: ApiServer) -> DeviceClasses:
        """Read what the DeviceClasses of the pools select, which changes rarely if ever."""
        call = ApiCall(api.server, "list", CLASSES)
        path, timeout = f"{RESOURCE_API}/deviceclasses", self._timeout_seconds
        found = await api.get(path, {}, ListPage[DeviceClassObject], call, timeout_seconds=timeout)
        self._classes_at = self._clock()
        return device_classes_of(found.items or (), self._classes)

    async def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()

    async def _version(self, watch: _NodeWatch) -> str:
        if self._clock() - watch.version_at > _VERSION_SECONDS:
            call = ApiCall(watch.api.server, "get")
            try:
                timeout = self._timeout_seconds
                version = await watch.api.get("/version", {}, Version, call, timeout_seconds=timeout)
                watch.version = f"kubernetes {version.git_version}"
            except Refused:  # nodes can be observed without the permission to read /version
                watch.version = "kubernetes"
            watch.version_at = self._clock()
        return watch.version

    def _log_overlaps(self, overlaps: frozenset[Overlap]) -> None:
        for overlap in overlaps - self._logged_overlaps:
            _log.warning(
                "two pools claim the same devices; the first in the fleet file gets them",
                cluster=self._cluster.name,
                resource=overlap.resource,
                gets=overlap.gets,
                misses=overlap.misses,
            )
        self._logged_overlaps |= overlaps


def _no_kueue(cluster: str) -> Notice:
    return Notice(
        "NoKueue",
        f"cluster {cluster} has no Kueue, which Fairway governs GPUs with: nothing of the policy is written, "
        "and its pods run as before",
        "install Kueue, then plan again:  docs/guides/kubernetes.md",
        promise="guarantee",
    )
