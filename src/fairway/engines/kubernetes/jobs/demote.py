"""Make running jobs give way on Kubernetes: by the priority of their Workload, or by a place in the queue.

Kueue takes Workloads of the lowest priority first when it preempts within a ClusterQueue or reclaims what was
borrowed. A Job's own priority class cannot become a preemptible one, because the class goes with a queue, and
an admitted Workload does not change its queue. Its Workload's priority can change at any time, and stays.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from fairway.engines.kubernetes.api.kinds import FAIRWAY, KUEUE
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import OwnedMeta, moment
from fairway.engines.kubernetes.jobs.lookup import FoundWorkload, look_up_workload
from fairway.engines.kubernetes.jobs.objects import WorkloadObject
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import RequeueRequest
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import EngineId

RESUMES: Final = "fairway.dev/resumes"
"""The annotation of a native Job that can resume: "true"."""
REQUEUED: Final = "fairway.dev/requeued"
"""The annotation of a Workload that is inactive only until it is evicted."""
POLL_SECONDS: Final = 0.5
EVICTION_SECONDS: Final = 5.0
"""How long to wait for an eviction. Pods may save their state for longer: then the caller asks again."""


async def lower(requests: KubeRequests, engine_id: EngineId, fleet: Fleet) -> None:
    """Give a running job's Workload the value of the lowest priority."""
    found = await look_up_workload(requests, engine_id, pods=False)
    if found is None or found.job.finished:
        return
    _workload(found, engine_id)
    lowest = min(fleet.priorities, key=lambda p: p.rank)
    value = lowest.rank - fleet.default_priority.rank
    for workload in found.workloads:
        await requests.merge(_path(workload.metadata), WORKLOADS, {"spec": {"priority": value}}, FAIRWAY)


async def requeue(requests: KubeRequests, request: RequeueRequest, pools: tuple[Pool, ...]) -> bool:
    """Evict a running job and let it wait again. Returns False while it is not evicted yet: ask again.

    Its Workload is inactive meanwhile, with an annotation by which whoever comes next finishes it.
    """
    found = await look_up_workload(requests, request.engine_id, pods=False)
    if found is None or found.job.finished:
        return True
    workload = _workload(found, request.engine_id)
    begun = not workload.spec.active and REQUEUED in workload.metadata.annotations
    if not begun:
        if not request.begin or not _ran_before(workload, request.started_before):
            return True
        if not request.resumes and found.annotations.get(RESUMES) != "true":
            raise Refused(
                "NotResumable",
                f"Job {request.engine_id} does not say that it can resume",
                f'if it can, annotate it:  {RESUMES}: "true"',
            )
        mark = {"annotations": {REQUEUED: request.started_before.isoformat()}}
        patch = {"metadata": mark, "spec": {"active": False}}
        await requests.merge(_path(workload.metadata), WORKLOADS, patch, FAIRWAY)
    if not await _evicted(requests, request.engine_id, pools):
        return False
    patch = {"metadata": {"annotations": {REQUEUED: None}}, "spec": {"active": True}}
    await requests.merge(_path(workload.metadata), WORKLOADS, patch, FAIRWAY)
    return True


async def _evicted(requests: KubeRequests, engine_id: EngineId, pools: tuple[Pool, ...]) -> bool:
    """Wait until a job has neither a place nor pods.

    Kueue releases the place while pods still end. If the Job were resumed by then, a pod that ends with an
    error would count as its failure.
    """
    for _ in range(int(EVICTION_SECONDS / POLL_SECONDS)):
        found = await look_up_workload(requests, engine_id, pools)
        if found is None or found.workload is None:
            return True
        if found.workload.status.admission is None and not found.pods:
            return True
        await asyncio.sleep(POLL_SECONDS)
    return False


def _workload(found: FoundWorkload, engine_id: EngineId) -> WorkloadObject:
    if found.workload is None:
        raise Refused(
            "InNoQueue",
            f"Job {engine_id} is in no queue of Kueue: it has no priority, and nothing would restart it",
            "add it to its team's queue:  label kueue.x-k8s.io/queue-name",
        )
    return found.workload


def _ran_before(workload: WorkloadObject, at: datetime) -> bool:
    """Return whether it was admitted before, and still is."""
    if workload.status.admission is None:
        return False
    since = [c.last_transition_time for c in workload.status.conditions if c.type == "QuotaReserved"]
    admitted = moment(since[0]) if since else None
    return admitted is not None and admitted < at


def _path(meta: OwnedMeta) -> str:
    return f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
