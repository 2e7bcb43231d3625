"""Kubernetes behind the engine port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from fairway.engines.kubernetes.client import ApiServer, connect, connection_of
from fairway.engines.kubernetes.facts import NodeFacts, PodHold, node_keeper, pod_keeper
from fairway.engines.kubernetes.gpu_resources import PRODUCT
from fairway.engines.kubernetes.informer import Informer, Kind, Pace
from fairway.engines.kubernetes.jobs.mirroring import Mirror
from fairway.engines.kubernetes.jobs.running import Runner
from fairway.engines.kubernetes.policy.governor import Governor
from fairway.engines.kubernetes.policy.importing import import_policy
from fairway.engines.kubernetes.policy.translate import translate
from fairway.engines.kubernetes.refusals import Asked
from fairway.engines.kubernetes.view import Overlap, view
from fairway.engines.kubernetes.wire import NodeObject, PodObject, Version
from fairway.engines.port import Batch, Imported, LogPart, Refused, Sent, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.observation import Observation
from fairway.policy.objects import Activity, Change, FoundPolicy, Nudge, ObjectKey, Translation

_log = structlog.get_logger(__name__)

_FRESH_SECONDS: Final = 2.0
"""A watch that has been silent for longer is asked for a sign of life before an answer is given."""
_VERSION_SECONDS: Final = 300.0
"""How long an answer of /version is believed: clusters are upgraded while we watch."""

# Only what is bound and unfinished can hold a device; the API server drops the rest before it is sent.
_BOUND_AND_UNFINISHED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class _Link:
    """A connection to the API server and the informers that run on it from the first look."""

    api: ApiServer
    nodes: Informer[NodeObject, NodeFacts]
    pods: Informer[PodObject, PodHold]
    version: str = ""
    version_at: float = float("-inf")

    async def close(self) -> None:
        await self.nodes.stop()
        await self.pods.stop()
        await self.api.close()


class KubernetesEngine:
    """Observes a Kubernetes cluster from memory that informers keep true, and governs it through Kueue.

    Nothing is opened before the first `observe`. GPUs given out by dynamic resource allocation
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
        self._link: _Link | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._noted: frozenset[Overlap] = frozenset()
        self._governor = Governor(cluster, self._pools, timeout_seconds)
        self._runner = Runner(cluster, self._pools, timeout_seconds)
        self._mirror = Mirror(cluster, self._pools, timeout_seconds, clock)

    async def observe(self) -> Observation:
        """One look at the cluster: from memory, after proof that the memory is current."""
        try:
            async with asyncio.timeout(self._timeout_seconds), self._turn:
                return await self._observe()
        except TimeoutError as e:
            raise self._too_slow() from e

    async def find_policy(self) -> FoundPolicy:
        """Every object of the governed kinds, ours or not, and what Kueue runs with."""
        return await self._governor.find_policy()

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """What `fleet` means on this cluster. Pure."""
        return translate(fleet, self._cluster.name, found)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Jobs that run and wait under each of these objects."""
        return await self._governor.activity(keys)

    def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, sixteen at a time, by server-side apply."""
        return self._governor.write(changes)

    async def nudge(self, fleet: Fleet) -> tuple[Nudge, ...]:
        """Help Kueue keep what it falls short of: places in one piece, order of arrival, past use."""
        return await self._governor.nudge(fleet)

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> Imported:
        """What people made by hand, in the fleet's words, and pools of GPUs that no queue counts."""
        products: dict[str, list[str]] = {}
        for facts in self._link.nodes.store.values() if self._link else ():
            if product := dict(facts.labels).get(PRODUCT):
                products.setdefault(product, []).extend(name for name, _ in facts.capacity)
        return import_policy(fleet, found, products)

    unique_names: bool = True
    """The API server takes a name once; asked again it says so, and whose the one that is there is."""

    def preview(self, order: Order, fleet: Fleet) -> str:
        """The Job that would be made, as YAML. Pure."""
        return self._runner.preview(order, fleet)

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Make Jobs, sixteen at a time; yields each as it is made, found made, or refused."""
        return self._runner.submit(orders, fleet)

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        """Those Jobs of these names that are there, over or not."""
        return await self._runner.find(names)

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Delete Jobs, their pods with them."""
        return await self._runner.cancel(ids)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Take waiting Jobs out of the line; what runs goes on."""
        return await self._runner.hold(ids)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Put held Jobs back into the line."""
        return await self._runner.release(ids)

    async def read_log(
        self, order: Order, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        """What the pod of an attempt printed, as long as it is there."""
        known = self._mirror.known(engine_id)
        return await self._runner.read_log(known, engine_id, attempt, offset, limit, node)

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """Jobs that changed since the batch with this mark; any other mark gets all of them."""
        return await self._mirror.changes(mark, fleet)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Jobs that are there, over or not. Of one that was deleted Kubernetes has no records."""
        return await self._mirror.look_up(ids, fleet)

    async def close(self) -> None:
        """End the informers and all connections."""
        self._closed = True
        await self._governor.close()
        await self._runner.close()
        await self._mirror.close()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _observe(self) -> Observation:
        if self._closed:
            raise self._is_closed()
        try:
            link = await self._linked()
            version = await self._version(link)  # before the informers: one of them takes its connection over
            link.nodes.start()
            link.pods.start()
            await asyncio.gather(link.nodes.fresh(_FRESH_SECONDS), link.pods.fresh(_FRESH_SECONDS))
            return self._seen(link, version)
        except FairwayError as e:
            await self._start_over_after(e)
            raise
        except Exception as e:
            _log.exception("observing failed in an unexpected way", cluster=self._cluster.name)
            raise Unreachable(
                "ObserveFailed",
                f"observing {self._cluster.name} failed: {type(e).__name__}: {e}",
                "this should not happen; please report it with the server's log",
            ) from e

    def _seen(self, link: _Link, version: str) -> Observation:
        seen = view(
            {name: held.value for (_, name), held in link.nodes.store.items()},
            link.pods.store.values(),
            self._pools,
        )
        self._note(seen.overlaps)
        return Observation(self._cluster.name, version, seen.nodes)

    async def _linked(self) -> _Link:
        if self._link is None:
            api = await connect(connection_of(self._cluster))
            if self._closed:  # meanwhile
                await api.close()
                raise self._is_closed()
            pace = Pace(request_seconds=self._timeout_seconds)
            nodes = Kind("nodes", "/api/v1/nodes", NodeObject, node_keeper(self._pools))
            pods = Kind(
                "pods",
                "/api/v1/pods",
                PodObject,
                pod_keeper(self._pools),
                {"fieldSelector": _BOUND_AND_UNFINISHED},
            )
            self._link = _Link(
                api,
                Informer(api, nodes, pace=pace, clock=self._clock),
                Informer(api, pods, pace=pace, clock=self._clock),
            )
        return self._link

    async def _version(self, link: _Link) -> str:
        if self._clock() - link.version_at > _VERSION_SECONDS:
            asked = Asked(link.api.server, "get")
            try:
                answer = await link.api.get(
                    "/version", {}, Version, asked, timeout_seconds=self._timeout_seconds
                )
                link.version = f"kubernetes {answer.git_version}"
            except Refused:  # may see nodes but not /version: no reason to show nothing
                link.version = "kubernetes"
            link.version_at = self._clock()
        return link.version

    async def _start_over_after(self, error: FairwayError) -> None:
        """A refusal may be cured by new credentials in the file, and a dead informer by a new one."""
        link = self._link
        if link is not None and (isinstance(error, Refused) or not (link.nodes.alive and link.pods.alive)):
            self._link = None
            await link.close()

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

    def _is_closed(self) -> Refused:
        return Refused("Closed", f"the engine of {self._cluster.name} was closed", "make a new one")

    def _too_slow(self) -> Unreachable:
        server = self._link.api.server if self._link else self._cluster.name
        return Unreachable(
            "TimedOut",
            f"{server} did not answer within {self._timeout_seconds:g} s",
            f"is it overloaded or frozen? try: curl -k -m 5 {server}/readyz",
        )
