"""Jobs give way on Kubernetes: which patches are sent, in which order, and what a crash leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fairway.engines.kubernetes.jobs import demote
from fairway.engines.kubernetes.jobs.demote import REQUEUED, RESUMES, lower, requeue
from fairway.engines.kubernetes.jobs.objects import JobObject, WorkloadObject
from fairway.engines.port import NOT_RESUMABLE, RequeueRequest
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId

FLEET = Fleet("acme", "USD", (), ())
ADMITTED = datetime(2026, 11, 17, 12, tzinfo=UTC)
ID = EngineId("ml/train")


class Cluster:
    """One Job with its Workload; a place is released some looks after the Workload is inactive."""

    def __init__(self, *, looks: int = 1, annotations: dict[str, str] | None = None) -> None:
        self.annotations = annotations or {}
        self.looks = looks
        self.active = True
        self.admitted: datetime | None = ADMITTED
        self.marks: dict[str, str] = {}
        self.priority = 0
        self.queued = True
        self.patches: list[dict[str, Any]] = []

    async def get(self, path: str, resource: str, kind: type[Any], accept: str = "") -> Any:
        if not path.endswith("/train"):
            return None
        body = {
            "metadata": {"name": "train", "namespace": "ml", "uid": "u1", "annotations": self.annotations},
            "spec": {"template": {"spec": {"containers": []}}},
            "status": {},
        }
        return msgspec.convert(body, JobObject, strict=False)

    async def list_all(self, path: str, resource: str, params: Any = None, kind: Any = None) -> list[Any]:
        if path.endswith("/pods") or not self.queued:
            return []
        if not self.active and self.looks > 0:
            self.looks -= 1
        elif not self.active:
            self.admitted = None
        status: dict[str, Any] = {"conditions": []}
        if self.admitted is not None:
            at = self.admitted.strftime("%Y-%m-%dT%H:%M:%SZ")
            status["admission"] = {"clusterQueue": "ml"}
            status["conditions"] = [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": at}]
        owner = {"kind": "Job", "name": "train", "uid": "u1", "controller": True}
        meta: dict[str, Any] = {
            "name": "job-train", "namespace": "ml", "uid": "w1", "ownerReferences": [owner],
        }  # fmt: skip
        meta["annotations"] = dict(self.marks)
        body = {"metadata": meta, "spec": {"active": self.active}, "status": status}
        return [msgspec.convert(body, WorkloadObject, strict=False)]

    async def merge(self, path: str, resource: str, patch: dict[str, Any], manager: str) -> None:
        assert path.endswith("/namespaces/ml/workloads/job-train")
        self.patches.append(patch)
        self.active = patch["spec"].get("active", self.active)
        self.priority = patch["spec"].get("priority", self.priority)
        for name, value in patch.get("metadata", {}).get("annotations", {}).items():
            if value is None:
                self.marks.pop(name, None)
            else:
                self.marks[name] = value


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demote, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(demote, "EVICTION_SECONDS", 0.005)


def ask(*, resumes: bool = True, begin: bool = True, hours: float = 2) -> RequeueRequest:
    return RequeueRequest(ID, ADMITTED + timedelta(hours=hours), resumes=resumes, begin=begin)


async def send(cluster: Cluster, request: RequeueRequest) -> bool:
    return await requeue(cluster, request, ())  # type: ignore[arg-type]


async def test_a_running_job_gets_the_lowest_priority() -> None:
    cluster = Cluster()
    await lower(cluster, ID, FLEET)  # type: ignore[arg-type]
    await lower(cluster, EngineId("ml/gone"), FLEET)  # type: ignore[arg-type]
    assert (cluster.priority, len(cluster.patches)) == (-40, 1)


async def test_a_job_in_no_queue_is_refused() -> None:
    cluster = Cluster()
    cluster.queued = False
    with pytest.raises(Refused, match="in no queue"):
        await lower(cluster, ID, FLEET)  # type: ignore[arg-type]


async def test_a_job_is_evicted_and_then_queued_again() -> None:
    cluster = Cluster()
    assert await send(cluster, ask())
    assert [patch["spec"]["active"] for patch in cluster.patches] == [False, True]
    assert (cluster.active, cluster.marks) == (True, {})


async def test_pods_that_end_slowly_are_asked_about_again_and_a_crash_leaves_nobody_out() -> None:
    cluster = Cluster(looks=9)
    assert not await send(cluster, ask())
    assert (cluster.active, list(cluster.marks)) == (False, [REQUEUED])
    while not await send(cluster, ask(begin=False)):  # another process, which only completes it
        pass
    assert [patch["spec"]["active"] for patch in cluster.patches] == [False, True]
    assert cluster.active


@pytest.mark.parametrize("request_", [ask(hours=-1), ask(begin=False)])
async def test_a_run_that_began_later_is_left_alone(request_: RequeueRequest) -> None:
    cluster = Cluster()
    assert await send(cluster, request_)
    assert cluster.patches == []


async def test_a_job_that_its_owner_holds_stays_held() -> None:
    cluster = Cluster()
    cluster.active, cluster.admitted = False, None
    assert await send(cluster, ask())
    assert cluster.patches == []


async def test_a_job_must_say_that_it_can_resume() -> None:
    cluster = Cluster()
    with pytest.raises(Refused) as refused:
        await send(cluster, ask(resumes=False))
    assert refused.value.code == NOT_RESUMABLE
    assert cluster.patches == []
    assert await send(Cluster(annotations={RESUMES: "true"}), ask(resumes=False))
