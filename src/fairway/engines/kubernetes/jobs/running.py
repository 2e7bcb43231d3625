"""Orders onto the API server, and what people want done with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.client import ApiServer
from fairway.engines.kubernetes.jobs.joining import Known
from fairway.engines.kubernetes.jobs.logs import read_log
from fairway.engines.kubernetes.jobs.looking import JOBS, job_path, look_at, parse_id, refusal
from fairway.engines.kubernetes.jobs.objects import HELD_WAITING, JobMeta, JobObject, held_waiting
from fairway.engines.kubernetes.jobs.orders import GATED_BY, HOLD_GATE, job_manifest, preview
from fairway.engines.kubernetes.line import Line, lacks_right
from fairway.engines.kubernetes.policy.access import MERGE, Access
from fairway.engines.kubernetes.policy.fields import Json
from fairway.engines.kubernetes.policy.guards import JOB
from fairway.engines.kubernetes.policy.kinds import FAIRWAY
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.kubernetes.refusals import Asked
from fairway.engines.kubernetes.wire import Status
from fairway.engines.port import LogPart, Refused, Sent, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId, EngineName, Order, job_word

AT_ONCE: Final = 16
_NAMES_A_LIST: Final = 50
_TRIES: Final = 5
"""Of a change that somebody else's change keeps getting ahead of."""


class _Later(Unreachable):
    """Not now, for this one job."""


class Runner:
    """Runs jobs on one cluster, over a connection of its own."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...], timeout_seconds: float) -> None:
        self._cluster = cluster
        self._pools = pools
        self._timeout_seconds = timeout_seconds
        self._line = Line(cluster)

    def preview(self, order: Order, fleet: Fleet) -> str:
        return preview(job_manifest(order, fleet, self._cluster))

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Sixteen at a time. Each request is bounded in time, and there are only so many orders."""
        api = await self._line.bounded(self._timeout_seconds, _itself)

        async def make(order: Order) -> Sent:
            try:
                return Sent(order, await self._make(api, order, fleet))
            except Refused as e:
                if e.code in _NOT_THE_ORDERS or lacks_right(e):
                    raise
                return Sent(order, None, e)

        try:
            async with aclosing(_several(orders, make)) as all_sent:
                async for sent in all_sent:
                    self._line.worked()
                    yield sent
        except FairwayError as e:
            await self._line.start_over_after(e)
            raise self._line.softened(e) from e
        except Exception as e:
            raise self._line.unexpected(e) from e

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        wanted = sorted(names)
        parts = [wanted[i : i + _NAMES_A_LIST] for i in range(0, len(wanted), _NAMES_A_LIST)]
        found: dict[EngineName, EngineId] = {}
        for part in parts:
            words = ",".join(sorted({name.split("-")[-2] for name in part if name.count("-") >= 2}))
            params = {"labelSelector": f"{JOB} in ({words})"}

            async def look(api: ApiServer, params: Mapping[str, str] = params) -> list[JobObject]:
                access = Access(api, self._timeout_seconds)
                jobs: list[JobObject] = await access.every("/apis/batch/v1/jobs", JOBS, params, JobObject)
                return jobs

            for job in await self._line.bounded(self._timeout_seconds, look):
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
        self, known: Known | None, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int
    ) -> LogPart:
        """`known`: what a mirror in the same process knows of it, of earlier attempts too."""

        async def read(api: ApiServer) -> LogPart:
            access = Access(api, self._timeout_seconds)
            job = known
            if job is None:
                found = await look_at(access, engine_id, self._pools)
                if found is None:
                    raise Refused(
                        "LogGone",
                        f"Job {engine_id} is gone, and so is what its pods printed",
                        "Kubernetes keeps no logs of deleted Jobs: collect them, or print to a shared folder",
                    )
                job = found.known()
            return await read_log(access, job, attempt, offset, limit, node)

        return await self._line.bounded(self._timeout_seconds, read)

    async def close(self) -> None:
        await self._line.close()

    # one at a time

    async def _make(self, api: ApiServer, order: Order, fleet: Fleet) -> EngineId:
        manifest = job_manifest(order, fleet, self._cluster)
        path = f"/apis/batch/v1/namespaces/{order.team}/jobs"
        asked = Asked(api.server, "create", JOBS)
        code, said = await api.send(
            "POST", path, asked,
            timeout_seconds=self._timeout_seconds, params={"fieldManager": FAIRWAY}, body=manifest,
        )  # fmt: skip
        engine_id = EngineId(f"{order.team}/{order.engine_name}")
        if code == 409:
            await self._is_ours(api, order, said)
        elif not 200 <= code < 300:
            raise _refusal(code, said, asked, order)
        return engine_id

    async def _is_ours(self, api: ApiServer, order: Order, said: bytes) -> None:
        there = await Access(api, self._timeout_seconds).object(
            f"{job_path(order.team, order.engine_name)}", JOBS
        )
        if there is None:  # gone between the two: the next try makes it
            raise Unreachable("Conflict", _words(said), "Fairway tries again by itself")
        mark = there["metadata"].get("labels", {}).get(JOB, "")
        if mark != job_word(order.job):
            raise Refused(
                "NameTaken",
                f"a Job {order.team}/{order.engine_name} is there already, and it is not Fairway's",
                f"look at it, and remove it:  kubectl -n {order.team} get job {order.engine_name} -o yaml",
            )

    async def _cancel(self, api: ApiServer, engine_id: EngineId) -> None:
        access = Access(api, self._timeout_seconds)
        found = await look_at(access, engine_id, pods=False)
        if found is None:
            return
        namespace, name, _ = parse_id(engine_id)
        options = {
            "propagationPolicy": "Background",
            "preconditions": {"uid": found.job.uid},
        }
        asked = Asked(api.server, "delete", JOBS)
        code, said = await api.send(
            "DELETE", job_path(namespace, name), asked, timeout_seconds=self._timeout_seconds, body=options
        )
        if code not in {404, 409} and not 200 <= code < 300:
            raise refusal(code, said, asked)

    async def _hold(self, api: ApiServer, engine_id: EngineId) -> None:
        """What waits is taken out of the line. What runs goes on: making it inactive would end it."""
        access = Access(api, self._timeout_seconds)
        for _ in range(_TRIES):
            found = await look_at(access, engine_id, pods=False)
            if found is None or found.job.finished:
                return
            workload = found.workload
            if workload is None:
                raise _Later(
                    "NotYetQueued",
                    f"Kueue has not yet taken {engine_id} into its queue",
                    "Fairway tries again by itself",
                )
            if workload.status.admission is not None or not workload.spec.active:
                return
            if await self._set_active(api, workload.metadata, active=False):
                return
        raise _Later("Conflict", f"{engine_id} changes all the time", "Fairway tries again by itself")

    async def _release(self, api: ApiServer, engine_id: EngineId) -> None:
        access = Access(api, self._timeout_seconds)
        found = await look_at(access, engine_id, pods=False)
        if found is None or found.job.finished:
            return
        if GATED_BY in found.annotations:
            namespace, name, _ = parse_id(engine_id)
            gates = [g for g in found.annotations[GATED_BY].split(",") if g != HOLD_GATE]
            patch = {"metadata": {"annotations": {GATED_BY: ",".join(gates) or None}}}
            await access.merge(job_path(namespace, name), JOBS, patch)
        workload = found.workload
        if workload is not None and not workload.spec.active:
            await self._set_active(api, workload.metadata, active=True)

    async def _set_active(self, api: ApiServer, meta: JobMeta, *, active: bool) -> bool:
        """Whether it was done; not if the Workload has changed meanwhile."""
        patch: Json = {"spec": {"active": active}}
        if not active:
            count = {HELD_WAITING: str(held_waiting(meta) + 1)}
            patch["metadata"] = {"resourceVersion": meta.resource_version, "annotations": count}
        asked = Asked(api.server, "patch", WORKLOADS)
        path = f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
        code, said = await api.send(
            "PATCH", path, asked,
            timeout_seconds=self._timeout_seconds,
            params={"fieldManager": FAIRWAY}, body=patch, content=MERGE,
        )  # fmt: skip
        if code in {404, 409}:
            return False
        if not 200 <= code < 300:
            raise refusal(code, said, asked)
        return True

    async def _each(
        self, ids: Sequence[EngineId], act: Callable[[ApiServer, EngineId], Awaitable[None]]
    ) -> Mapping[EngineId, Refused]:
        api = await self._line.bounded(self._timeout_seconds, _itself)
        refused: dict[EngineId, Refused] = {}
        later: list[Unreachable] = []

        async def one(engine_id: EngineId) -> None:
            try:
                await act(api, engine_id)
            except _Later as e:  # of this job, not of the cluster: the others go on
                later.append(e)
            except Refused as e:
                if e.code in _NOT_THE_ORDERS or lacks_right(e):
                    raise
                refused[engine_id] = e

        try:
            async with aclosing(_several(ids, one)) as done:
                async for _ in done:
                    self._line.worked()
        except FairwayError as e:
            await self._line.start_over_after(e)
            raise self._line.softened(e) from e
        except Exception as e:
            raise self._line.unexpected(e) from e
        if later:
            raise later[0]
        return refused


_NOT_THE_ORDERS: Final = frozenset(
    {"Unauthorized", "CredentialsFailed", "TlsFailed", "BadServerUrl", "BadKubeconfig", "Closed"}
)
"""Refusals of Fairway itself: nothing is said about the job in hand."""


def _refusal(code: int, said: bytes, asked: Asked, order: Order) -> Exception:
    words = _words(said)
    if code == 404:
        return Refused(
            "NoNamespace",
            f"team {order.team} has no namespace on this cluster: {words}",
            "bring the fleet's policy there:  fairway plan, then fairway apply",
        )
    error = refusal(code, said, asked)
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
        return msgspec.json.decode(said, type=Status).message
    except msgspec.DecodeError:
        return said[:300].decode(errors="replace")


async def _itself(api: ApiServer) -> ApiServer:
    return api


A = TypeVar("A")
B = TypeVar("B")


async def _several(things: Sequence[A], act: Callable[[A], Awaitable[B]]) -> AsyncGenerator[B, None]:
    """Sixteen at a time; gives each result as it comes. At the first failure nothing new is begun, what is
    under way ends and is given, then it is raised."""
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
