"""Submit orders to the API server, and cancel, hold, release, lower and requeue them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.api.connection import ApiConnection, lacks_right
from fairway.engines.kubernetes.api.errors import ApiCall, request_error
from fairway.engines.kubernetes.api.kinds import FAIRWAY, KUEUE, Json
from fairway.engines.kubernetes.api.requests import MERGE, KubeRequests, concurrently
from fairway.engines.kubernetes.api.wire import ApiStatus, OwnedMeta
from fairway.engines.kubernetes.jobs import demote
from fairway.engines.kubernetes.jobs.join import ObservedJob
from fairway.engines.kubernetes.jobs.logs import read_log
from fairway.engines.kubernetes.jobs.lookup import JOBS, job_path, look_up_job, parse_pod_id
from fairway.engines.kubernetes.jobs.manifest import GATED_BY, HOLD_GATE, job_manifest
from fairway.engines.kubernetes.jobs.objects import HELD_WAITING, JobObject, held_waiting
from fairway.engines.kubernetes.policy.admission_policies import JOB, NEEDS_QUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import LogPart, Refused, RequeueRequest, SubmitResult, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, format_job_id

A = TypeVar("A")
B = TypeVar("B")

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
        self, job: ObservedJob | None, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int
    ) -> LogPart:
        """Read a log.

        `job` is what a mirror in the same process observed of it, with earlier attempts.
        """
        async with self._connection.requests(self._connection.timeout_seconds) as requests:
            if job is None:
                found = await look_up_job(requests, engine_id, self._pools)
                if found is None:
                    raise Refused(
                        "LogGone",
                        f"Job {engine_id} is deleted, and the output of its pods with it",
                        "Kubernetes keeps no logs of deleted Jobs: collect them, or write to a shared "
                        "directory",
                    )
                job = found.observed()
            return await read_log(requests, job, attempt, offset, limit, node)

    async def close(self) -> None:
        await self._connection.close()

    # one job

    async def _create(self, requests: KubeRequests, order: Order, fleet: Fleet) -> EngineId:
        manifest = job_manifest(order, fleet, self._cluster)
        path = f"/apis/batch/v1/namespaces/{order.team}/jobs"
        call = requests.call("create", JOBS)
        code, body = await requests.send(call, path, params={"fieldManager": FAIRWAY}, body=manifest)
        if code == 409:
            await _check_is_ours(requests, order, body)
        elif not 200 <= code < 300:
            raise _create_error(code, body, call, order)
        return EngineId(f"{order.team}/{order.engine_name}")

    async def _cancel(self, requests: KubeRequests, engine_id: EngineId) -> None:
        found = await look_up_job(requests, engine_id, pods=False)
        if found is not None:
            path = job_path(found.namespace, found.name)
            await requests.delete(path, JOBS, found.job.uid, accepted=frozenset({404, 409}))

    async def _hold(self, requests: KubeRequests, engine_id: EngineId) -> None:
        """Take a waiting job out of the queue. A running one goes on: making it inactive would end it."""
        for _ in range(_MAX_TRIES):
            found = await look_up_job(requests, engine_id, pods=False)
            if found is None or found.job.finished:
                return
            workload = found.workload
            if workload is None:
                raise _RetryLater(
                    "NotYetQueued",
                    f"Kueue has not yet queued {engine_id} into its queue",
                    "Fairway retries automatically",
                )
            if workload.status.admission is not None or not workload.spec.active:
                return
            if await _set_active(requests, workload.metadata, active=False):
                return
        raise _RetryLater("Conflict", f"{engine_id} keeps changing", "Fairway retries automatically")

    async def _release(self, requests: KubeRequests, engine_id: EngineId) -> None:
        found = await look_up_job(requests, engine_id, pods=False)
        if found is None or found.job.finished:
            return
        if GATED_BY in found.annotations:
            gates = [g for g in found.annotations[GATED_BY].split(",") if g != HOLD_GATE]
            patch = {"metadata": {"annotations": {GATED_BY: ",".join(gates) or None}}}
            await requests.merge(job_path(found.namespace, found.name), JOBS, patch)
        workload = found.workload
        if workload is not None and not workload.spec.active:
            await _set_active(requests, workload.metadata, active=True)

    async def _change(
        self, ids: Sequence[EngineId], act: Callable[[KubeRequests, EngineId], Awaitable[None]]
    ) -> Mapping[EngineId, Refused]:
        refused: dict[EngineId, Refused] = {}
        later: list[Unreachable] = []

        async def change(requests: KubeRequests, engine_id: EngineId) -> None:
            try:
                _refuse_pods(engine_id)
                await act(requests, engine_id)
            except _RetryLater as e:  # of this job, not of the cluster: the others go on
                later.append(e)
            except Refused as e:
                if e.code in _CLUSTER_REFUSALS or lacks_right(e):
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


async def _check_is_ours(requests: KubeRequests, order: Order, reply: bytes) -> None:
    """Raise unless the Job that has an order's name was created for this order."""
    job = await requests.get(job_path(order.team, order.engine_name), JOBS, Json)
    if job is None:  # deleted since: the next try creates it
        raise Unreachable("Conflict", _message(reply), "Fairway retries automatically")
    if job["metadata"].get("labels", {}).get(JOB, "") != format_job_id(order.job):
        raise Refused(
            "NameTaken",
            f"a Job {order.team}/{order.engine_name} is there already, and it is not Fairway's",
            f"look at it, and remove it:  kubectl -n {order.team} get job {order.engine_name} -o yaml",
        )


def _refuse_pods(engine_id: EngineId) -> None:
    """Raise Refused for a pod that no Job created: what made it would make another."""
    if (pod := parse_pod_id(engine_id)) is not None:
        namespace, name = pod
        raise Refused(
            "PodWithoutJob",
            f"pod {name} in {namespace} belongs to no Job: Fairway counts its GPUs, but does not govern it",
            f"check what created it, and change that:  kubectl describe pod --namespace {namespace} {name}",
        )


async def _set_active(requests: KubeRequests, meta: OwnedMeta, *, active: bool) -> bool:
    """Set a Workload's `active`. Returns False if the Workload has changed meanwhile."""
    patch: Json = {"spec": {"active": active}}
    if not active:
        count = {HELD_WAITING: str(held_waiting(meta) + 1)}
        patch["metadata"] = {"resourceVersion": meta.resource_version, "annotations": count}
    call = requests.call("patch", WORKLOADS)
    path = f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
    params = {"fieldManager": FAIRWAY}
    code, body = await requests.send(call, path, params=params, body=patch, content=MERGE)
    if code in {404, 409}:
        return False
    if not 200 <= code < 300:
        raise request_error(code, body, call)
    return True


_CLUSTER_REFUSALS: Final = frozenset(
    {"Unauthorized", "CredentialsFailed", "TlsFailed", "BadServerUrl", "BadKubeconfig", "Closed"}
)
"""Refusals of Fairway's own credentials and settings: they are not about the job in hand."""


def _create_error(code: int, body: bytes, call: ApiCall, order: Order) -> Exception:
    """Return the error for a Job that was not created."""
    message = _message(body)
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
