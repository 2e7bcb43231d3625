"""The Kubernetes engine: the engine protocols, implemented with informers, Kueue and Jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import Reconnecting
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.wire import NodeObject, PodObject, Version
from fairway.engines.kubernetes.governor import Governor
from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner
from fairway.engines.kubernetes.nodes.devices import PRODUCT
from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices, node_keeper, pod_keeper
from fairway.engines.kubernetes.nodes.observe import Overlap, observe_nodes
from fairway.engines.kubernetes.policy.import_ import import_policy
from fairway.engines.kubernetes.policy.translate import translate
from fairway.engines.port import Batch, Imported, LogPart, Refused, Sent
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.observation import Observation
from fairway.policy.objects import Activity, Change, FoundPolicy, Nudge, ObjectKey, Translation

_log = structlog.get_logger(__name__)

_FRESH_SECONDS: Final = 2.0
"""A watch that has been silent for longer is probed before an answer is given."""
_VERSION_SECONDS: Final = 300.0
"""How long a reply of /version is cached: clusters are upgraded while we watch."""

# Only what is bound and unfinished can hold a device; the API server drops the rest before it is sent.
_BOUND_AND_UNFINISHED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class _NodeWatch:
    """The informers that run on one connection, and the version of its API server."""

    api: ApiServer
    nodes: Informer[NodeObject, NodeFacts]
    pods: Informer[PodObject, PodDevices]
    version: str = ""
    version_at: float = float("-inf")

    @property
    def alive(self) -> bool:
        return self.nodes.alive and self.pods.alive

    def start(self) -> None:
        self.nodes.start()
        self.pods.start()

    async def stop(self) -> None:
        await self.nodes.stop()
        await self.pods.stop()


class KubernetesEngine:
    """Observes a Kubernetes cluster from memory that informers keep up to date, and governs it through Kueue.

    Nothing is opened before the first `observe`. GPUs allocated by dynamic resource allocation
    (ResourceClaims) are not extended resources and are not seen.
    """

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
        self._connection = Reconnecting(cluster, timeout_seconds)
        self._watch: _NodeWatch | None = None
        self._turn = asyncio.Lock()
        self._noted: frozenset[Overlap] = frozenset()
        self._governor = Governor(Reconnecting(cluster, timeout_seconds), self._pools)
        self._runner = KubernetesRunner(Reconnecting(cluster, timeout_seconds), self._pools)
        self._mirror = KubernetesMirror(Reconnecting(cluster, timeout_seconds), self._pools, clock)

    async def observe(self) -> Observation:
        """Observe the cluster from memory, after proof that the memory is current."""
        async with self._connection.use(self._timeout_seconds) as api, self._turn:
            return await self._observe(api)

    async def find_policy(self) -> FoundPolicy:
        """Return every object of the governed kinds, ours or not, and Kueue's configuration."""
        return await self._governor.find_policy()

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Translate `fleet` to this cluster's objects. Pure."""
        return translate(fleet, self._cluster.name, found)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Count running and waiting jobs under each of these objects."""
        return await self._governor.activity(keys)

    def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, sixteen at a time, by server-side apply."""
        return self._governor.write(changes)

    async def nudge(self, fleet: Fleet) -> tuple[Nudge, ...]:
        """Help Kueue with what it falls short of: contiguous placement, order of arrival, past usage."""
        return await self._governor.nudge(fleet)

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> Imported:
        """Convert a hand-made policy to a fleet, with pools of GPUs that no queue counts."""
        products: dict[str, list[str]] = {}
        for facts in self._watch.nodes.store.values() if self._watch else ():
            if product := dict(facts.labels).get(PRODUCT):
                products.setdefault(product, []).extend(name for name, _ in facts.capacity)
        return import_policy(fleet, found, products)

    unique_names: bool = True
    """The API server accepts a name once; a second create answers with a conflict."""

    def preview(self, order: Order, fleet: Fleet) -> str:
        """Return the Job that would be created, as YAML. Pure."""
        return self._runner.preview(order, fleet)

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
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

    async def read_log(
        self, order: Order, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        """Read the log of an attempt's pod, as long as the pod exists."""
        known = self._mirror.known(engine_id)
        return await self._runner.read_log(known, engine_id, attempt, offset, limit, node)

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """Return Jobs that changed since the batch with this mark; any other mark gets all of them."""
        return await self._mirror.changes(mark, fleet)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Look up Jobs that exist, ended or not. Kubernetes has no records of a deleted one."""
        return await self._mirror.look_up(ids, fleet)

    async def close(self) -> None:
        """Stop the informers and close all connections."""
        await self._connection.close()
        await self._governor.close()
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
            await asyncio.gather(watch.nodes.fresh(_FRESH_SECONDS), watch.pods.fresh(_FRESH_SECONDS))
            return self._seen(watch, version)
        except FairwayError as e:
            # A refusal may be cured by new credentials in the file, and a dead informer by a new one.
            if isinstance(e, Refused) or not watch.alive:
                await self._stop_watching()
            if isinstance(e, Refused):
                await self._connection.discard(api)
            raise

    def _seen(self, watch: _NodeWatch, version: str) -> Observation:
        seen = observe_nodes(
            {name: held.value for (_, name), held in watch.nodes.store.items()},
            watch.pods.store.values(),
            self._pools,
        )
        self._note(seen.overlaps)
        return Observation(self._cluster.name, version, seen.nodes)

    async def _watch_on(self, api: ApiServer) -> _NodeWatch:
        if self._watch is None or self._watch.api is not api:
            await self._stop_watching()
            pace = InformerTiming(request_seconds=self._timeout_seconds)
            nodes = WatchedKind("nodes", "/api/v1/nodes", NodeObject, node_keeper(self._pools))
            pods = WatchedKind(
                "pods",
                "/api/v1/pods",
                PodObject,
                pod_keeper(self._pools),
                {"fieldSelector": _BOUND_AND_UNFINISHED},
            )
            self._watch = _NodeWatch(
                api,
                Informer(api, nodes, pace=pace, clock=self._clock),
                Informer(api, pods, pace=pace, clock=self._clock),
            )
        return self._watch

    async def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()

    async def _version(self, watch: _NodeWatch) -> str:
        if self._clock() - watch.version_at > _VERSION_SECONDS:
            call = ApiCall(watch.api.server, "get")
            try:
                answer = await watch.api.get(
                    "/version", {}, Version, call, timeout_seconds=self._timeout_seconds
                )
                watch.version = f"kubernetes {answer.git_version}"
            except Refused:  # may see nodes but not /version: no reason to show nothing
                watch.version = "kubernetes"
            watch.version_at = self._clock()
        return watch.version

    def _note(self, overlaps: frozenset[Overlap]) -> None:
        for overlap in overlaps - self._noted:
            _log.warning(
                "two pools claim the same devices; the first in the fleet file gets them",
                cluster=self._cluster.name,
                resource=overlap.resource,
                gets=overlap.gets,
                misses=overlap.misses,
            )
        self._noted |= overlaps
