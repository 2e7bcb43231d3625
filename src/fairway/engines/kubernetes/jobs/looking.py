"""One job by the API server's own records, for those who do not follow all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from fairway.engines.kubernetes.jobs.joining import Known, Pods, with_forgotten
from fairway.engines.kubernetes.jobs.objects import (
    JobFacts,
    JobObject,
    JobPodObject,
    WorkloadObject,
    job_keeper,
    keep_workload,
    pod_keeper,
)
from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.workloads import PATH as KUEUE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS
from fairway.engines.kubernetes.refusals import Asked, Expired, from_status
from fairway.engines.port import Unreachable
from fairway.model.fleet import Pool
from fairway.model.job import EngineId

JOBS: Final = "jobs.batch"
_OF_JOB: Final = "kueue.x-k8s.io/job-uid"
_OF_CONTROLLER: Final = "batch.kubernetes.io/controller-uid"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A Job, its Workload and its pods as they are now."""

    namespace: str
    name: str
    job: JobFacts
    annotations: Mapping[str, str]
    workload: WorkloadObject | None
    pods: tuple[Pods, ...] = ()

    def known(self) -> Known:
        """The same as a mirror knows it that has just begun to look."""
        workload = keep_workload(self.workload) if self.workload else None
        evictions = (workload.evicted,) if workload and workload.evicted else ()
        known = Known(self.namespace, self.name, self.job, None, workload, self.pods, evictions)
        return with_forgotten(known)


def parse_id(engine_id: EngineId) -> tuple[str, str, str]:
    """Namespace, name, and the beginning of the uid of one that is not ours."""
    namespace, _, rest = engine_id.partition("/")
    name, _, uid = rest.partition("/")
    return namespace, name, uid


def job_path(namespace: str, name: str) -> str:
    """Where a Job lives."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


async def look_at(
    access: Access, engine_id: EngineId, pools: tuple[Pool, ...] = (), *, pods: bool = True
) -> Found | None:
    """That very Job; None: it is gone, or another one has its name by now."""
    namespace, name, uid = parse_id(engine_id)
    job = await get_typed(access, job_path(namespace, name), JOBS, JobObject)
    if job is None or not job.metadata.uid.startswith(uid):
        return None
    workloads: list[WorkloadObject] = await access.every(
        f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS,
        {"labelSelector": f"{_OF_JOB}={job.metadata.uid}"}, WorkloadObject,
    )  # fmt: skip
    found: list[Pods] = []
    if pods:
        keep = pod_keeper(pools)
        seen: list[JobPodObject] = await access.every(
            f"/api/v1/namespaces/{namespace}/pods", "pods",
            {"labelSelector": f"{_OF_CONTROLLER}={job.metadata.uid}"}, JobPodObject,
        )  # fmt: skip
        found = [Pods(facts) for pod in seen if (facts := keep(pod)) is not None]
    return Found(
        namespace,
        name,
        job_keeper(pools)(job),
        job.metadata.annotations,
        workloads[0] if workloads else None,
        tuple(found),
    )


async def get_typed(access: Access, path: str, resource: str, type_: type[T]) -> T | None:
    """One object's few fields; None: there is none."""
    asked = Asked(access.api.server, "get", resource)
    code, said = await access.api.send("GET", path, asked, timeout_seconds=access.timeout_seconds)
    if code == 404:
        return None
    if code != 200:
        raise refusal(code, said, asked)
    return msgspec.json.decode(said, type=type_)


def refusal(code: int, said: bytes, asked: Asked) -> Exception:
    """What an answer other than yes means, as an error to be raised."""
    error = from_status(code, said, asked)
    if isinstance(error, Expired):
        return Unreachable("Expired", f"{asked.server}: {error}", "Fairway tries again by itself")
    return error
