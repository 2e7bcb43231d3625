"""Why a Job waits, from the API server's objects; messages as Kubernetes 1.36 and Kueue 0.19 gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.explain import explain
from fairway.explain.findings import WaitFacts
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId
from fairway.model.names import ClusterName

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOB = "/apis/batch/v1/namespaces/nlp/jobs/train"
QUEUES = f"{KUEUE}/namespaces/nlp/localqueues/main"
CLUSTER_QUEUE = f"{KUEUE}/clusterqueues/nlp"
QUOTA = 'Error creating: pods "x" is forbidden: exceeded quota: {}, requested: requests.nvidia.com/gpu=8'


class FakeRequests:
    """Answers from a table of paths, as far as the requested type has fields."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects

    async def get(self, path: str, resource: str, type_: Any) -> Any:
        found = self._objects.get(path)
        return None if found is None else msgspec.convert(found, type_)

    async def list_all(self, path: str, resource: str, params: Any = None, type_: Any = dict) -> list[Any]:
        return [msgspec.convert(item, type_) for item in self._objects.get(path, [])]


def job(**more: Any) -> dict[str, Any]:
    meta = {"name": "train", "namespace": "nlp", "uid": "u1", "creationTimestamp": "2026-11-17T12:00:00Z"}
    labels = {"kueue.x-k8s.io/queue-name": "main", "fairway.dev/job": "8f3k"}
    return {"metadata": {**meta, "labels": labels, **more.pop("metadata", {})}, "spec": more, "status": {}}


def workload(message: str = "", status: str = "False") -> list[dict[str, Any]]:
    owner = {"kind": "Job", "name": "train", "uid": "u1", "controller": True}
    condition = {"type": "QuotaReserved", "status": status, "reason": "Pending", "message": message}
    return [
        {
            "metadata": {"name": "w", "namespace": "nlp", "uid": "w1", "ownerReferences": [owner]},
            "spec": {"active": True},
            "status": {"conditions": [condition]},
        }
    ]


def refused(message: str) -> list[dict[str, Any]]:
    return [{"reason": "FailedCreate", "message": message, "lastTimestamp": "2026-11-17T12:01:00Z"}]


async def found(objects: Mapping[str, Any]) -> WaitFacts:
    requests = cast("KubeRequests", FakeRequests(objects))
    fleet = Fleet("f", "USD", (), ())
    facts = await explain(requests, EngineId("nlp/train"), fleet, ClusterName("k8s"), ())
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("quota", "code"), [("fairway-ceiling", "TeamAtCeiling"), ("compute-resources", "NamespaceQuota")]
)
async def test_a_quota_that_refuses_pods_is_known_as_ours_or_the_sites(quota: str, code: str) -> None:
    events = refused(QUOTA.format(quota))
    objects = {
        JOB: job(suspend=False),
        f"{KUEUE}/namespaces/nlp/workloads": workload(status="True"),
        "/api/v1/namespaces/nlp/events": events,
    }
    facts = await found(objects)
    assert facts.code == code and quota in facts.findings[0].text


def queue(stop: str = "None", manager: str = "kubectl-patch", **status: Any) -> dict[str, Any]:
    fields = {
        "manager": manager,
        "time": "2026-11-17T12:00:30Z",
        "fieldsV1": {"f:spec": {"f:stopPolicy": {}}},
    }
    return {
        "metadata": {"name": "nlp", "managedFields": [fields]},
        "spec": {"stopPolicy": stop, "clusterQueue": "nlp"},
        "status": status,
    }


MISSING = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "no flavor a100"}


@pytest.mark.parametrize(
    ("local", "cluster", "code", "text"),
    [
        (queue(), queue("Hold"), "QueueStopped", "by kubectl-patch at 2026-11-17T12:00:30Z"),
        (queue(), queue(conditions=[MISSING]), "QueueBroken", "FlavorNotFound: no flavor a100"),
        (queue("Hold", "fairway"), queue(), "TeamHeld", ""),
        (queue(), None, "QueueBroken", "ClusterQueue nlp does not exist"),
    ],
)
async def test_an_inactive_queue_has_its_real_cause(local: Any, cluster: Any, code: str, text: str) -> None:
    objects = {
        JOB: job(suspend=True),
        f"{KUEUE}/namespaces/nlp/workloads": workload("ClusterQueue nlp is inactive"),
        QUEUES: local,
        **({CLUSTER_QUEUE: cluster} if cluster else {}),
    }
    facts = await found(objects)
    assert facts.code == code and any(text in f.text for f in facts.findings) == bool(text)


async def test_a_child_of_a_jobset_waits_for_its_owner() -> None:
    owner = {"kind": "JobSet", "name": "gang", "uid": "s1", "controller": True}
    facts = await found({JOB: job(suspend=True, metadata={"labels": {}, "ownerReferences": [owner]})})
    assert (facts.code, facts.findings[0].text) == ("OwnerHoldsIt", "JobSet/gang made it")


async def test_a_job_without_a_queue_is_in_none() -> None:
    denied = "pods is forbidden: ValidatingAdmissionPolicy 'fairway-strays' denied request"
    objects = {
        JOB: job(suspend=False, metadata={"labels": {}}),
        "/api/v1/namespaces/nlp/events": refused(denied),
    }
    facts = await found(objects)
    assert facts.code == "NotQueued" and "has no label kueue.x-k8s.io/queue-name" in facts.findings[-1].text
