"""Submit orders to the API server, and cancel, hold and release them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import Reconnecting, lacks_right
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import MERGE, KubeRequests
from fairway.engines.kubernetes.api.wire import ApiStatus
from fairway.engines.kubernetes.jobs.join import ObservedJob
from fairway.engines.kubernetes.jobs.logs import read_log
from fairway.engines.kubernetes.jobs.lookup import JOBS, job_path, look_at, parse_id, refusal
from fairway.engines.kubernetes.jobs.manifest import GATED_BY, HOLD_GATE, job_manifest, preview
from fairway.engines.kubernetes.jobs.objects import HELD_WAITING, JobMeta, JobObject, held_waiting
from fairway.engines.kubernetes.policy.admission_policies import JOB
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import LogPart, Refused, Sent, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, format_job_id

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE: Final = 16
_NAMES_A_LIST: Final = 50
_TRIES: Final = 5
"""Of a change that keeps conflicting with other writers."""


class _RetryLater(Unreachable):
    """A request that cannot be done yet, for this one job."""


class KubernetesRunner:
    """Runs jobs on one cluster, over a separate connection."""

    def __init__(self, connection: Reconnecting, pools: tuple[Pool, ...]) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._timeout_seconds = connection.timeout_seconds
        self._pools = pools

    def preview(self, order: Order, fleet: Fleet) -> str:
        return preview(job_manifest(order, fleet, self._cluster))

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Submit sixteen orders at a time.

        Each request is bounded in time, and there are only so many orders.
        """

        async def make(api: ApiServer, order: Order) -> Sent:
            try:
                return Sent(order, await self._make(api, order, fleet))
            except Refused as e:
                if e.code in _NOT_THE_ORDERS or lacks_right(e):
                    raise
                return Sent(order, None, e)

        async with aclosing(self._several(orders, make)) as all_sent:
            async for sent in all_sent:
                yield sent

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        wanted = sorted(names)
        parts = [wanted[i : i + _NAMES_A_LIST] for i in range(0, len(wanted), _NAMES_A_LIST)]
        found: dict[EngineName, EngineId] = {}
        for part in parts:
            words = ",".join(sorted({name.split("-")[-2] for name in part if name.count("-") >= 2}))
            params = {"labelSelector": f"{JOB} in ({words})"}
            async with self._connection.use(self._timeout_seconds) as api:
                requests = KubeRequests(api, self._timeout_seconds)
                jobs: list[JobObject] = await requests.every("/apis/batch/v1/jobs", JOBS, params, JobObject)
            for job in jobs:
                if (name := EngineName(job.metadata.name)) in part:
                    found[name] = EngineId(f"{job.metadata.namespace}/{name}")
        return found

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, self._cancel)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, self._hold)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, self._release)

    async def read_log(
        self, known: ObservedJob | None, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int
    ) -> LogPart:
        """Read a log.

        `known` is what a mirror in the same process knows of the job, of earlier attempts too.
        """
        async with self._connection.use(self._timeout_seconds) as api:
            requests = KubeRequests(api, self._timeout_seconds)
            if known is None:
                found = await look_at(requests, engine_id, self._pools)
                if found is None:
                    raise Refused(
                        "LogGone",
                        f"Job {engine_id} is gone, and so is what its pods printed",
                        "Kubernetes keeps no logs of deleted Jobs: collect them, or print to a shared folder",
                    )
                known = found.known()
            return await read_log(requests, known, attempt, offset, limit, node)

    async def close(self) -> None:
        await self._connection.close()

    # one at a time

    async def _make(self, api: ApiServer, order: Order, fleet: Fleet) -> EngineId:
        manifest = job_manifest(order, fleet, self._cluster)
        path = f"/apis/batch/v1/namespaces/{order.team}/jobs"
        call = ApiCall(api.server, "create", JOBS)
        code, said = await api.send(
            "POST", path, call,
            timeout_seconds=self._timeout_seconds, params={"fieldManager": FAIRWAY}, body=manifest,
        )  # fmt: skip
        engine_id = EngineId(f"{order.team}/{order.engine_name}")
        if code == 409:
            await self._is_ours(api, order, said)
        elif not 200 <= code < 300:
            raise _refusal(code, said, call, order)
        return engine_id

    async def _is_ours(self, api: ApiServer, order: Order, said: bytes) -> None:
        there = await KubeRequests(api, self._timeout_seconds).object(
            f"{job_path(order.team, order.engine_name)}", JOBS
        )
        if there is None:  # gone between the two: the next try makes it
            raise Unreachable("Conflict", _words(said), "Fairway tries again by itself")
        mark = there["metadata"].get("labels", {}).get(JOB, "")
        if mark != format_job_id(order.job):
            raise Refused(
                "NameTaken",
                f"a Job {order.team}/{order.engine_name} is there already, and it is not Fairway's",
                f"look at it, and remove it:  kubectl -n {order.team} get job {order.engine_name} -o yaml",
            )

    async def _cancel(self, api: ApiServer, engine_id: EngineId) -> None:
        requests = KubeRequests(api, self._timeout_seconds)
        found = await look_at(requests, engine_id, pods=False)
        if found is None:
            return
        namespace, name, _ = parse_id(engine_id)
        options = {
            "propagationPolicy": "Background",
            "preconditions": {"uid": found.job.uid},
        }
        call = ApiCall(api.server, "delete", JOBS)
        code, said = await api.send(
            "DELETE", job_path(namespace, name), call, timeout_seconds=self._timeout_seconds, body=options
        )
        if code not in {404, 409} and not 200 <= code < 300:
            raise refusal(code, said, call)

    async def _hold(self, api: ApiServer, engine_id: EngineId) -> None:
        """Take a waiting job out of the queue. A running one goes on: making it inactive would end it."""
        requests = KubeRequests(api, self._timeout_seconds)
        for _ in range(_TRIES):
            found = await look_at(requests, engine_id, pods=False)
            if found is None or found.job.finished:
                return
            workload = found.workload
            if workload is None:
                raise _RetryLater(
                    "NotYetQueued",
                    f"Kueue has not yet taken {engine_id} into its queue",
                    "Fairway tries again by itself",
                )
            if workload.status.admission is not None or not workload.spec.active:
                return
            if await self._set_active(api, workload.metadata, active=False):
                return
        raise _RetryLater("Conflict", f"{engine_id} changes all the time", "Fairway tries again by itself")

    async def _release(self, api: ApiServer, engine_id: EngineId) -> None:
        requests = KubeRequests(api, self._timeout_seconds)
        found = await look_at(requests, engine_id, pods=False)
        if found is None or found.job.finished:
            return
        if GATED_BY in found.annotations:
            namespace, name, _ = parse_id(engine_id)
            gates = [g for g in found.annotations[GATED_BY].split(",") if g != HOLD_GATE]
            patch = {"metadata": {"annotations": {GATED_BY: ",".join(gates) or None}}}
            await requests.merge(job_path(namespace, name), JOBS, patch)
        workload = found.workload
        if workload is not None and not workload.spec.active:
            await self._set_active(api, workload.metadata, active=True)

    async def _set_active(self, api: ApiServer, meta: JobMeta, *, active: bool) -> bool:
        """Set a Workload's `active`. Returns False if the Workload has changed meanwhile."""
        patch: Json = {"spec": {"active": active}}
        if not active:
            count = {HELD_WAITING: str(held_waiting(meta) + 1)}
            patch["metadata"] = {"resourceVersion": meta.resource_version, "annotations": count}
        call = ApiCall(api.server, "patch", WORKLOADS)
        path = f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
        code, said = await api.send(
            "PATCH", path, call,
            timeout_seconds=self._timeout_seconds,
            params={"fieldManager": FAIRWAY}, body=patch, content=MERGE,
        )  # fmt: skip
        if code in {404, 409}:
            return False
        if not 200 <= code < 300:
            raise refusal(code, said, call)
        return True

    async def _each(
        self, ids: Sequence[EngineId], act: Callable[[ApiServer, EngineId], Awaitable[None]]
    ) -> Mapping[EngineId, Refused]:
        refused: dict[EngineId, Refused] = {}
        later: list[Unreachable] = []

        async def one(api: ApiServer, engine_id: EngineId) -> None:
            try:
                await act(api, engine_id)
            except _RetryLater as e:  # of this job, not of the cluster: the others go on
                later.append(e)
            except Refused as e:
                if e.code in _NOT_THE_ORDERS or lacks_right(e):
                    raise
                refused[engine_id] = e

        async with aclosing(self._several(ids, one)) as done:
            async for _ in done:
                pass
        if later:
            raise later[0]
        return refused

    async def _several(
        self, things: Sequence[A], act: Callable[[ApiServer, A], Awaitable[B]]
    ) -> AsyncGenerator[B, None]:
        """Yield the result of `act` for each thing, over one connection."""
        try:
            async with (
                self._connection.use() as api,
                aclosing(_concurrently(things, lambda thing: act(api, thing))) as results,
            ):
                async for result in results:
                    self._connection.note_allowed()
                    yield result
        except FairwayError as e:
            raise self._connection.as_warm_up(e) from e


_NOT_THE_ORDERS: Final = frozenset(
    {"Unauthorized", "CredentialsFailed", "TlsFailed", "BadServerUrl", "BadKubeconfig", "Closed"}
)
"""Refusals of Fairway itself: they say nothing about the job in hand."""


def _refusal(code: int, said: bytes, call: ApiCall, order: Order) -> Exception:
    words = _words(said)
    if code == 404:
        return Refused(
            "NoNamespace",
            f"team {order.team} has no namespace on this cluster: {words}",
            "bring the fleet's policy there:  fairway plan, then fairway apply",
        )
    error = refusal(code, said, call)
    if lacks_right(error):
        return error
    if code in {400, 403, 413, 422}:
        _, _, why = words.partition("denied request: ")
        return Refused(
            "Forbidden" if code == 403 else "Invalid",
            why or words,
            f"change the job, or the team's terms:  fairway describe team {order.team}",
        )
    return error


def _words(said: bytes) -> str:
    try:
        return msgspec.json.decode(said, type=ApiStatus).message
    except msgspec.DecodeError:
        return said[:300].decode(errors="replace")


async def _concurrently(things: Sequence[A], act: Callable[[A], Awaitable[B]]) -> AsyncGenerator[B, None]:
    """Run `act` on sixteen things at a time; yield each result as it comes.

    At the first failure nothing new is started; what is under way is awaited and yielded, then it is raised.
    """
    waiting = iter(things)
    under_way: set[asyncio.Task[B]] = set()
    failure: BaseException | None = None

    def begin() -> None:
        while len(under_way) < AT_ONCE and (thing := next(waiting, None)) is not None:
            under_way.add(asyncio.ensure_future(act(thing)))

    try:
        begin()
        while under_way:
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            under_way -= done
            for task in done:
                if (error := task.exception()) is None:
                    yield task.result()
                else:
                    failure = failure or error
            if failure is None:
                begin()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if failure is not None:
        raise failure
