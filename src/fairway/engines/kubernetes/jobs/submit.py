"""Submit orders to the API server, and cancel, hold, release, change, lower and requeue them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.api.connection import ApiConnection, lacks_right
from fairway.engines.kubernetes.api.errors import ApiCall, request_error
from fairway.engines.kubernetes.api.kinds import FAIRWAY, KUEUE, Json
from fairway.engines.kubernetes.api.requests import MERGE, METADATA, KubeRequests, concurrently
from fairway.engines.kubernetes.api.wire import ApiStatus, OwnedMeta, PartialObject
from fairway.engines.kubernetes.jobs import change, demote, gang
from fairway.engines.kubernetes.jobs.logs import read_log
from fairway.engines.kubernetes.jobs.lookup import JOBS, FoundWorkload, look_up_workload, parse_id
from fairway.engines.kubernetes.jobs.manifest import GATED_BY, claim_template, job_manifest
from fairway.engines.kubernetes.jobs.objects import HELD_WAITING, HOLD_GATE, JobObject, held_waiting
from fairway.engines.kubernetes.jobs.observed import ObservedJob
from fairway.engines.kubernetes.jobs.served_kinds import ServedKinds
from fairway.engines.kubernetes.jobs.user_manifest import REPLICAS, complete_manifest, kind_of
from fairway.engines.kubernetes.nodes.claims import RESOURCE_API
from fairway.engines.kubernetes.policy.admission_policies import JOB, NEEDS_QUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import LogPart, RequeueRequest, SubmitResult, Unreachable
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, format_job_id
from fairway.model.job_change import WaitingChange
from fairway.model.workload_kinds import (
    GROUP_KIND,
    JOB_SET,
    WORKLOAD_KINDS,
    HoldBy,
    WorkloadKind,
    workload_kind,
)
from fairway.model.workload_kinds import JOB as JOB_KIND

A = TypeVar("A")
B = TypeVar("B")

_TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"
_MAX_NAMES: Final = 50
"""How many Jobs one list searches for."""
_MAX_TRIES: Final = 5
"""How often a change that conflicts with other writers is tried."""


class _RetryLater(Unreachable):
    """A request that cannot be done yet, for this one job."""


class KubernetesRunner:
    """A runner of jobs on one cluster, over a separate connection."""

    def __init__(self, connection: ApiConnection, pools: tuple[Pool, ...]) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._pools = pools
        self.kinds = ServedKinds()

    async def never_fits(self, order: Order) -> Refused | None:
        """Return why an order can never be created: its kind is not installed. Returns None otherwise."""
        async with self._connection.requests(self._connection.timeout_seconds) as requests:
            if order.spec.manifest is None:
                if order.spec.nodes > 1:
                    await self.kinds.queues_job_sets(requests)  # for the next preview
                return None
            kind = kind_of(order)
            return None if await self.kinds.has(requests, kind) else kind_not_installed(kind)

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Submit sixteen orders at a time.

        Each request is bounded in time, and there are only so many orders.
        """

        async def create(requests: KubeRequests, order: Order) -> SubmitResult:
            try:
                return SubmitResult(order, await self._create(requests, order, fleet))
            except Refused as e:
                if e.code in _CLUSTER_REFUSALS or lacks_right(e):
                    raise
                return SubmitResult(order, None, e)

        async with aclosing(self._for_each(orders, create)) as all_sent:
            async for sent in all_sent:
                yield sent

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        wanted = sorted(names)
        parts = [wanted[i : i + _MAX_NAMES] for i in range(0, len(wanted), _MAX_NAMES)]
        found: dict[EngineName, EngineId] = {}
        for part in parts:
            job_ids = ",".join(sorted({name.split("-")[-2] for name in part if name.count("-") >= 2}))
            params = {"labelSelector": f"{JOB} in ({job_ids})"}
            async with self._connection.requests(self._connection.timeout_seconds) as requests:
                jobs: list[JobObject] = await requests.list_all(
                    "/apis/batch/v1/jobs", JOBS, params, JobObject
                )
            for job in jobs:
                if (name := EngineName(job.metadata.name)) in part:
                    found[name] = EngineId(f"{job.metadata.namespace}/{name}")
        return found

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._change(ids, self._cancel)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._change(ids, self._hold)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._change(ids, self._release)

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Return if a waiting job can be changed so. Pure. Raises Refused otherwise."""
        change.check_change(*(self._made(order, fleet) for order in (before, after)))

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        wanted = {one.engine_id: one for one in changes}

        async def change_one(requests: KubeRequests, engine_id: EngineId) -> None:
            one = wanted[engine_id]
            self.check_change(one.before, one.after, fleet)
            for _ in range(_MAX_TRIES):
                if await change.change(requests, engine_id, self._made(one.after, fleet)):
                    return
            raise _RetryLater("Conflict", f"{engine_id} keeps changing", "Fairway retries automatically")

        return await self._change(list(wanted), change_one)

    def _made(self, order: Order, fleet: Fleet) -> Json:
        return order_objects(order, fleet, self._cluster, job_sets=self.kinds.job_sets).body

    async def lower(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
        return await self._change(ids, lambda requests, one: demote.lower(requests, one, fleet))

    async def requeue(self, jobs: Sequence[RequeueRequest]) -> Mapping[EngineId, Refused]:
        by_id = {job.engine_id: job for job in jobs}

        async def requeue(requests: KubeRequests, engine_id: EngineId) -> None:
            if not await demote.requeue(requests, by_id[engine_id], self._pools):
                raise _RetryLater(
                    "NotYetEvicted", f"{engine_id} is still ending its pods", "Fairway retries automatically"
                )

        return await self._change(list(by_id), requeue)

    async def read_log(
        self,
        job: ObservedJob | None,
        engine_id: EngineId,
        attempt: int,
        offset: int,
        limit: int,
        node: int,
        replica: str,
    ) -> LogPart:
        """Read a log.

        `job` is what a mirror in the same process observed of it, with earlier attempts, but without replicas
        that ended and were stored.
        """
        forgotten = job is not None and replica and all(p.facts.name != replica for p in job.pods)
        async with self._connection.requests(self._connection.timeout_seconds) as requests:
            if job is None or forgotten:
                found = await look_up_workload(requests, engine_id, self._pools)
                if found is None:
                    raise Refused(
                        "LogGone",
                        f"Job {engine_id} is deleted, and the output of its pods with it",
                        "Kubernetes keeps no logs of deleted Jobs: collect them, or write to a shared "
                        "directory",
                    )
                job = found.observed()
            return await read_log(requests, job, attempt, offset, limit, node, replica)

    async def close(self) -> None:
        await self._connection.close()

    # one job

    async def _create(self, requests: KubeRequests, order: Order, fleet: Fleet) -> EngineId:
        job_sets = order.spec.nodes > 1 and await self.kinds.queues_job_sets(requests)
        made = order_objects(order, fleet, self._cluster, job_sets=job_sets)
        kind, engine_id = made.kind, EngineId(f"{order.team}/{order.engine_name}")
        if made.is_gang and await self._is_there(requests, JOB_KIND if kind is JOB_SET else JOB_SET, order):
            return engine_id
        if made.template is not None:
            await _create_template(requests, order, made.template)
        if made.is_gang and kind is JOB_KIND:
            await _create_service(requests, order)
        call = requests.call("create", kind.resource)
        path, params = kind.path(order.team), {"fieldManager": FAIRWAY}
        code, body = await requests.send(call, path, params=params, body=made.body)
        if code == 409:
            await _check_is_ours(requests, kind, order, body)
        elif not 200 <= code < 300:
            raise _create_error(code, body, call, kind, order)
        return engine_id

    async def _is_there(self, requests: KubeRequests, kind: WorkloadKind, order: Order) -> bool:
        """Return whether an order was sent as this kind, before JobSet was installed or taken away."""
        if not await self.kinds.has(requests, kind):
            return False
        try:
            path = kind.path(order.team, order.engine_name)
            found = await requests.get(path, kind.resource, PartialObject, METADATA)
        except Refused as e:
            if lacks_right(e):
                return False  # it could not have created one either
            raise
        return found is not None and found.metadata.labels.get(JOB, "") == format_job_id(order.job)

    async def _cancel(self, requests: KubeRequests, engine_id: EngineId) -> None:
        found = await look_up_workload(requests, engine_id, self._pools, workloads=False)
        if found is None:
            return
        if found.path:
            await requests.delete(found.path, found.resource, found.job.uid, accepted=_GONE)
            return
        # A pod group: Kueue keeps its pods, and their quota, until its Workload is deleted.
        for pod in found.pods:
            path = f"/api/v1/namespaces/{found.namespace}/pods/{pod.facts.name}"
            await requests.delete(path, "pods", pod.facts.uid, accepted=_GONE)
        path = _workload_path(found.metadata)
        await requests.delete(path, WORKLOADS, found.metadata.uid, accepted=_GONE)

    async def _hold(self, requests: KubeRequests, engine_id: EngineId) -> None:
        """Take a waiting job out of the queue. A running one goes on: making it inactive would end it.

        A service is stopped: its replicas come and go, and there is no other time to hold it.
        """
        for _ in range(_MAX_TRIES):
            found = await look_up_workload(requests, engine_id, self._pools)
            if found is None or found.job.finished:
                return
            match _hold_by(found, engine_id):
                case HoldBy.REPLICAS:
                    held = await _scale_to_0(requests, found)
                case HoldBy.SUSPEND:
                    await requests.merge(found.path, found.resource, {"spec": {"suspend": True}})
                    held = True
                case _:
                    held = await _deactivate(requests, found, engine_id)
            if held:
                return
        raise _RetryLater("Conflict", f"{engine_id} keeps changing", "Fairway retries automatically")

    async def _release(self, requests: KubeRequests, engine_id: EngineId) -> None:
        found = await look_up_workload(requests, engine_id, self._pools)
        if found is None or found.job.finished:
            return
        if GATED_BY in found.annotations and found.path:
            gates = [g for g in found.annotations[GATED_BY].split(",") if g != HOLD_GATE]
            patch: Json = {"metadata": {"annotations": {GATED_BY: ",".join(gates) or None}}}
            await requests.merge(found.path, found.resource, patch)
        if (replicas := found.annotations.get(REPLICAS, "")).isdigit():
            patch = {"metadata": {"annotations": {REPLICAS: None}}, "spec": {"replicas": int(replicas)}}
            await requests.merge(found.path, found.resource, patch)
        for workload in found.workloads:
            if not workload.spec.active:
                await _set_active(requests, workload.metadata, active=True)

    async def _change(
        self, ids: Sequence[EngineId], act: Callable[[KubeRequests, EngineId], Awaitable[None]]
    ) -> Mapping[EngineId, Refused]:
        refused: dict[EngineId, Refused] = {}
        later: list[Unreachable] = []

        async def change(requests: KubeRequests, engine_id: EngineId) -> None:
            try:
                await act(requests, engine_id)
            except _RetryLater as e:  # of this job, not of the cluster: the others go on
                later.append(e)
            except Refused as e:
                # Rights on kinds of other operators are for their administrators to give.
                if e.code in _CLUSTER_REFUSALS or (lacks_right(e) and not _is_unregistered(engine_id)):
                    raise
                refused[engine_id] = e

        async with aclosing(self._for_each(ids, change)) as done:
            async for _ in done:
                pass
        if later:
            raise later[0]
        return refused

    async def _for_each(
        self, items: Sequence[A], act: Callable[[KubeRequests, A], Awaitable[B]]
    ) -> AsyncGenerator[B, None]:
        """Yield the result of `act` for each item, over one connection."""
        try:
            async with (
                self._connection.requests() as requests,
                aclosing(concurrently(items, lambda item: act(requests, item))) as results,
            ):
                async for result in results:
                    self._connection.note_allowed()
                    yield result
        except FairwayError as e:
            raise self._connection.as_warm_up(e) from e


async def _create_service(requests: KubeRequests, order: Order) -> None:
    """Create the Service of a team's Jobs on several nodes, unless there is one."""
    call = requests.call("create", "services")
    path, body = f"/api/v1/namespaces/{order.team}/services", gang.service(order.team)
    code, reply = await requests.send(call, path, params={"fieldManager": FAIRWAY}, body=body)
    if code == 404:
        raise _create_error(code, reply, call, JOB_KIND, order)
    if code != 409 and not 200 <= code < 300:
        raise request_error(code, reply, call)


async def _create_template(requests: KubeRequests, order: Order, template: Json) -> None:
    """Create the template of a job's claims, before the job: Kueue reads it to count them."""
    call = requests.call("create", _TEMPLATES)
    path = f"{RESOURCE_API}/namespaces/{order.team}/resourceclaimtemplates"
    code, body = await requests.send(call, path, params={"fieldManager": FAIRWAY}, body=template)
    if code != 409 and not 200 <= code < 300:
        raise request_error(code, body, call)


@dataclass(frozen=True, slots=True)
class OrderObjects:
    """What is created for an order."""

    kind: WorkloadKind
    body: Json
    template: Json | None = None
    """The template of its claims, which is created before."""
    is_gang: bool = False
    """Whether it is a job of Fairway's own on several nodes: a JobSet, or a Job that needs a Service."""


def order_objects(order: Order, fleet: Fleet, cluster: Cluster, *, job_sets: bool = False) -> OrderObjects:
    """Return what to create for an order. Raises Refused for what could never run there.

    `job_sets`: whether jobs on several nodes are JobSets.
    """
    if order.spec.manifest is not None:
        return OrderObjects(kind_of(order), complete_manifest(order, fleet, cluster))
    in_set = job_sets and gang.fits_job_set(order)
    job, template = job_manifest(order, fleet, cluster, in_set=in_set), claim_template(order, fleet)
    if in_set:
        return OrderObjects(JOB_SET, gang.job_set(job), template, is_gang=True)
    return OrderObjects(JOB_KIND, job, template, is_gang=order.spec.nodes > 1)


def kind_not_installed(kind: WorkloadKind) -> Refused:
    """Return the error for a kind that a cluster does not have."""
    return Refused(
        "KindNotInstalled",
        f"the cluster has no kind {kind.kind} of {kind.api_version}",
        f"install its operator, or write a job file; check:  kubectl api-resources --api-group={kind.group}",
    )


async def _check_is_ours(requests: KubeRequests, kind: WorkloadKind, order: Order, reply: bytes) -> None:
    """Raise unless the object that has an order's name was created for this order."""
    name = order.engine_name
    found = await requests.get(kind.path(order.team, name), kind.resource, Json)
    if found is None:  # deleted since: the next try creates it
        raise Unreachable("Conflict", _message(reply), "Fairway retries automatically")
    if found["metadata"].get("labels", {}).get(JOB, "") != format_job_id(order.job):
        raise Refused(
            "NameTaken",
            f"a {kind.kind} {order.team}/{name} is there already, and it is not Fairway's",
            f"look at it, and remove it:  kubectl -n {order.team} get {kind.resource} {name} -o yaml",
        )


def _is_unregistered(engine_id: EngineId) -> bool:
    kind = parse_id(engine_id).kind
    return bool(kind) and kind not in _REGISTERED


_REGISTERED: Final = frozenset(kind.kind.lower() for kind in WORKLOAD_KINDS) | {GROUP_KIND.lower()}


def _hold_by(found: FoundWorkload, engine_id: EngineId) -> HoldBy:
    """Return how a workload is held. Raises Refused for one that would not come back.

    Of a kind that is not registered its Workload tells: what Kueue queues pod by pod, it also stops so.
    """
    if found.root is None:
        return HoldBy.WORKLOAD
    kind = workload_kind(found.root.api_version, found.root.kind)
    pod_by_pod = any(facts.owner.kind == "Pod" for facts in found.facts)
    hold = kind.hold if kind else HoldBy.NOTHING if pod_by_pod else HoldBy.WORKLOAD
    if found.root.kind == GROUP_KIND:
        hold = HoldBy.NOTHING
    if hold is HoldBy.NOTHING:
        raise Refused(
            "CannotBeHeld",
            f"{found.root.kind} {found.namespace}/{found.name} cannot be held: its pods would not come back",
            f"cancel it, and create it again later:  fairway cancel {engine_id}",
        )
    return hold


async def _scale_to_0(requests: KubeRequests, found: FoundWorkload) -> bool:
    """Set an object's replicas to 0 and store how many it had. Returns False if it has changed meanwhile."""
    replicas = found.object.spec.replicas if found.object else None
    if replicas == 0:
        return True
    patch = {
        "metadata": {
            "resourceVersion": found.metadata.resource_version,
            "annotations": {REPLICAS: str(replicas if isinstance(replicas, int) else 1)},
        },
        "spec": {"replicas": 0},
    }
    return await _patched(requests, found.path, found.resource, patch)


async def _deactivate(requests: KubeRequests, found: FoundWorkload, engine_id: EngineId) -> bool:
    """Take the Workloads of a job out of the queue. Returns False if one has changed meanwhile."""
    if not found.workloads:
        raise _RetryLater(
            "NotYetQueued",
            f"Kueue has not yet queued {engine_id} into its queue",
            "Fairway retries automatically",
        )
    service = found.observed().service
    done = True
    for workload in found.workloads:
        if workload.spec.active and (service or workload.status.admission is None):
            waiting = workload.status.admission is None
            done = await _set_active(requests, workload.metadata, active=False, count=waiting) and done
    return done


async def _set_active(requests: KubeRequests, meta: OwnedMeta, *, active: bool, count: bool = True) -> bool:
    """Set a Workload's `active`. Returns False if the Workload has changed meanwhile.

    `count` says that it waits: Kueue counts this as an eviction, and it is none.
    """
    patch: Json = {"spec": {"active": active}}
    if not active:
        patch["metadata"] = {"resourceVersion": meta.resource_version}
        if count:
            patch["metadata"]["annotations"] = {HELD_WAITING: str(held_waiting(meta) + 1)}
    return await _patched(requests, _workload_path(meta), WORKLOADS, patch)


async def _patched(requests: KubeRequests, path: str, resource: str, patch: Json) -> bool:
    """Merge-patch an object. Returns False if it is gone, or has changed meanwhile."""
    call = requests.call("patch", resource)
    code, body = await requests.send(call, path, params={"fieldManager": FAIRWAY}, body=patch, content=MERGE)
    if code in {404, 409}:
        return False
    if not 200 <= code < 300:
        raise request_error(code, body, call)
    return True


def _workload_path(meta: OwnedMeta) -> str:
    return f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"


_GONE: Final = frozenset({404, 409})
"""Statuses of a deletion of what is gone already, or has been replaced by another object of its name."""
_CLUSTER_REFUSALS: Final = frozenset(
    {"Unauthorized", "CredentialsFailed", "TlsFailed", "BadServerUrl", "BadKubeconfig", "Closed"}
)
"""Refusals of Fairway's own credentials and settings: they are not about the job in hand."""


def _create_error(code: int, body: bytes, call: ApiCall, kind: WorkloadKind, order: Order) -> Exception:
    """Return the error for an object that was not created."""
    message = _message(body)
    if code == 404 and "namespace" not in message:
        return kind_not_installed(kind)
    if code == 404:
        return Refused(
            "NoNamespace",
            f"team {order.team} has no namespace on this cluster: {message}",
            "apply the fleet's policy:  fairway plan, then fairway apply",
        )
    error = request_error(code, body, call)
    if lacks_right(error):
        return error
    if NEEDS_QUEUE in message:
        return Unreachable(
            "QueuesNotAssigned",
            f"the API server does not assign queues to jobs yet: {message}",
            "wait a few seconds after an apply; after that:  fairway get drift",
        )
    if code in {400, 403, 413, 422}:
        _, _, reason = message.partition("denied request: ")
        return Refused(
            "Forbidden" if code == 403 else "Invalid",
            reason or message,
            f"change the job, or the team's terms:  fairway describe team {order.team}",
        )
    return error


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=ApiStatus).message
    except msgspec.DecodeError:
        return body[:300].decode(errors="replace")
