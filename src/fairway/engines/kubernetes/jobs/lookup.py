"""Look up one job in the API server directly, for callers that do not follow all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_status
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.join import ObservedJob, ObservedPod, with_forgotten
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    WorkloadObject,
    job_keeper,
    keep_workload,
    pod_keeper,
)
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.port import Unreachable
from fairway.model.fleet import Pool
from fairway.model.job import EngineId

JOBS: Final = "jobs.batch"
_OF_JOB: Final = "kueue.x-k8s.io/job-uid"
_OF_CONTROLLER: Final = "batch.kubernetes.io/controller-uid"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A Job, its Workload and its pods as they are now."""

    namespace: str
    name: str
    job: JobFacts
    annotations: Mapping[str, str]
    workload: WorkloadObject | None
    pods: tuple[ObservedPod, ...] = ()

    def known(self) -> ObservedJob:
        """Convert to what a mirror knows that has just started."""
        workload = keep_workload(self.workload) if self.workload else None
        evictions = (workload.evicted,) if workload and workload.evicted else ()
        known = ObservedJob(self.namespace, self.name, self.job, None, workload, self.pods, evictions)
        return with_forgotten(known)


def parse_id(engine_id: EngineId) -> tuple[str, str, str]:
    """Parse namespace, name, and the uid prefix of a job that is not Fairway's."""
    namespace, _, rest = engine_id.partition("/")
    name, _, uid = rest.partition("/")
    return namespace, name, uid


def job_path(namespace: str, name: str) -> str:
    """Return the path of a Job."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


async def look_at(
    requests: KubeRequests, engine_id: EngineId, pools: tuple[Pool, ...] = (), *, pods: bool = True
) -> FoundJob | None:
    """Look up a Job. Returns None if it is gone, or if another one has its name by now."""
    namespace, name, uid = parse_id(engine_id)
    job = await get_typed(requests, job_path(namespace, name), JOBS, JobObject)
    if job is None or not job.metadata.uid.startswith(uid):
        return None
    workloads: list[WorkloadObject] = await requests.every(
        f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS,
        {"labelSelector": f"{_OF_JOB}={job.metadata.uid}"}, WorkloadObject,
    )  # fmt: skip
    found: list[ObservedPod] = []
    if pods:
        keep = pod_keeper(pools)
        seen: list[JobPodObject] = await requests.every(
            f"/api/v1/namespaces/{namespace}/pods", "pods",
            {"labelSelector": f"{_OF_CONTROLLER}={job.metadata.uid}"}, JobPodObject,
        )  # fmt: skip
        found = [ObservedPod(facts) for pod in seen if (facts := keep(pod)) is not None]
    return FoundJob(
        namespace,
        name,
        job_keeper(pools)(job),
        job.metadata.annotations,
        workloads[0] if workloads else None,
        tuple(found),
    )


async def get_typed(requests: KubeRequests, path: str, resource: str, type_: type[T]) -> T | None:
    """Get one object's few fields. Returns None if it does not exist."""
    call = ApiCall(requests.api.server, "get", resource)
    code, said = await requests.api.send("GET", path, call, timeout_seconds=requests.timeout_seconds)
    if code == 404:
        return None
    if code != 200:
        raise refusal(code, said, call)
    return msgspec.json.decode(said, type=type_)


def refusal(code: int, said: bytes, call: ApiCall) -> Exception:
    """Return the error for a reply that is not a success."""
    error = from_status(code, said, call)
    if isinstance(error, Expired):
        return Unreachable("Expired", f"{call.server}: {error}", "Fairway tries again by itself")
    return error
