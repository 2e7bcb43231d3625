"""Look up one job in the API server directly, for callers without a mirror that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairway.engines.kubernetes.api.kinds import KUEUE
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.join import ObservedJob, ObservedPod, count_forgotten_attempts
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    WorkloadObject,
    job_transform,
    pod_transform,
    workload_facts,
)
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.model.fleet import Pool
from fairway.model.job import EngineId

JOBS: Final = "jobs.batch"
_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A Job, its Workload and its pods as they are now."""

    namespace: str
    name: str
    job: JobFacts
    annotations: Mapping[str, str]
    workload: WorkloadObject | None
    pods: tuple[ObservedPod, ...] = ()

    def observed(self) -> ObservedJob:
        """Convert to what a mirror that has just started would have observed."""
        workload = workload_facts(self.workload) if self.workload else None
        evictions = (workload.evicted,) if workload and workload.evicted else ()
        job = ObservedJob(self.namespace, self.name, self.job, None, workload, self.pods, evictions)
        return count_forgotten_attempts(job)


def parse_id(engine_id: EngineId) -> tuple[str, str, str]:
    """Parse namespace, name, and the uid prefix of a job that is not Fairway's."""
    namespace, _, rest = engine_id.partition("/")
    name, _, uid = rest.partition("/")
    return namespace, name, uid


def parse_pod_id(engine_id: EngineId) -> tuple[str, str] | None:
    """Parse namespace and name of a pod that no Job created. Returns None if the id is a Job's."""
    match engine_id.split("/"):
        case [namespace, "pod", name, _]:
            return namespace, name
        case _:
            return None


def job_path(namespace: str, name: str) -> str:
    """Return the path of a Job."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


async def look_up_job(
    requests: KubeRequests, engine_id: EngineId, pools: tuple[Pool, ...] = (), *, pods: bool = True
) -> FoundJob | None:
    """Look up a Job. Returns None if it is gone, or if another Job has its name now."""
    namespace, name, uid = parse_id(engine_id)
    job = await requests.get(job_path(namespace, name), JOBS, JobObject)
    if job is None or not job.metadata.uid.startswith(uid):
        return None
    workloads: list[WorkloadObject] = await requests.list_all(
        f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS,
        {"labelSelector": f"{_JOB_UID}={job.metadata.uid}"}, WorkloadObject,
    )  # fmt: skip
    found: list[ObservedPod] = []
    if pods:
        transform = pod_transform(pools)
        listed: list[JobPodObject] = await requests.list_all(
            f"/api/v1/namespaces/{namespace}/pods", "pods",
            {"labelSelector": f"{_CONTROLLER_UID}={job.metadata.uid}"}, JobPodObject,
        )  # fmt: skip
        found = [ObservedPod(facts) for pod in listed if (facts := transform(pod)) is not None]
    return FoundJob(
        namespace,
        name,
        job_transform(pools)(job),
        job.metadata.annotations,
        workloads[0] if workloads else None,
        tuple(found),
    )
