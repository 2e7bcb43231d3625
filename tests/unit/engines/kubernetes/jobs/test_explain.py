"""Why a Job waits, from the API server's objects; messages as Kubernetes 1.36 and Kueue 0.19 gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.explain import explain
from fairway.explain.findings import WaitFacts
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId
from fairway.model.names import ClusterName

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOB = "/apis/batch/v1/namespaces/nlp/jobs/train"
QUEUES = f"{KUEUE}/namespaces/nlp/localqueues/main"
CLUSTER_QUEUE = f"{KUEUE}/clusterqueues/nlp"
QUOTA = (
    'Error creating: pods "x" is forbidden: exceeded quota: {}, requested: requests.nvidia.com/gpu=8, '
    "used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=8"
)


class FakeRequests:
    """Answers from a table of paths, as far as the requested type has fields."""

    def __init__(self, objects: Mapping[str, Any], *refused: str) -> None:
        self._objects = objects
        self._refused = refused

    async def get(self, path: str, resource: str, type_: Any, accept: str = "") -> Any:
        found = self._objects.get(path)
        return None if found is None else msgspec.convert(found, type_)

    async def list_all(
        self, path: str, resource: str, params: Any = None, type_: Any = dict, accept: str = ""
    ) -> list[Any]:
        if path in self._refused:
            raise Refused("Forbidden", f"may not list {resource}", "")
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


async def found(objects: Mapping[str, Any], *refused_paths: str) -> WaitFacts:
    requests = cast("KubeRequests", FakeRequests(objects, *refused_paths))
    fleet = Fleet("f", "USD", (), ())
    facts = await explain(requests, EngineId("nlp/train"), fleet, ClusterName("k8s"), ())
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("quota", "code", "text"),
    [
        (
            "fairway-ceiling",
            "TeamAtCeiling",
            "The team's pods, ending ones included, use 4 of 8 GPUs, and the next needs 8",
        ),
        ("compute-resources", "NamespaceQuota", "exceeded quota: compute-resources, requested: "),
    ],
)
async def test_a_quota_that_refuses_pods_is_known_as_ours_or_the_sites(
    quota: str, code: str, text: str
) -> None:
    events = refused(QUOTA.format(quota))
    objects = {
        JOB: job(suspend=False),
        f"{KUEUE}/namespaces/nlp/workloads": workload(status="True"),
        "/api/v1/namespaces/nlp/events": events,
    }
    facts = await found(objects)
    assert facts.code == code and facts.findings[0].text.startswith(text)


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


def queued(name: str, gpus: int, message: str = "", created: str = "2026-11-17T11:00:00Z") -> dict[str, Any]:
    (own,) = workload(message)
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod_set = {"count": 1, "template": {"spec": {"containers": [{"resources": limits}]}}}
    owner = {"kind": "Job", "name": name, "uid": "u1" if name == "train" else name, "controller": True}
    meta = {"name": name, "uid": f"w-{name}", "creationTimestamp": created, "ownerReferences": [owner]}
    conditions = own["status"]["conditions"] if message else []
    return {
        "metadata": {**own["metadata"], **meta},
        "spec": {"active": True, "queueName": "main", "podSets": [pod_set]},
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize(
    ("gpus", "code", "same_as", "ahead"),
    [(8, "QuotaInUse", "nlp/first", ()), (4, "NotItsTurn", "", ("nlp/first",))],
)
async def test_a_job_that_kueue_never_tried_waits_as_its_like_or_behind_others(
    gpus: int, code: str, same_as: str, ahead: tuple[str, ...]
) -> None:
    """Kueue 0.19 sets a Workload aside, without any condition, while one that asks for the same waits."""
    own = queued("train", 8, created="2026-11-17T12:00:00Z")
    first = queued(
        "first", gpus, "insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed"
    )
    objects = {
        JOB: job(suspend=True),
        JOB.replace("train", "first"): job(suspend=True, metadata={"name": "first"}),
        f"{KUEUE}/namespaces/nlp/workloads": [own, first],
    }
    facts = await found(objects)
    assert (facts.code, facts.same_as, facts.ahead) == (code, same_as, ahead)


async def test_a_job_without_a_queue_is_in_none() -> None:
    denied = "pods is forbidden: ValidatingAdmissionPolicy 'fairway-strays' denied request"
    objects = {
        JOB: job(suspend=False, metadata={"labels": {}}),
        "/api/v1/namespaces/nlp/events": refused(denied),
    }
    facts = await found(objects)
    assert facts.code == "NotQueued" and "has no label kueue.x-k8s.io/queue-name" in facts.findings[-1].text


async def test_without_the_right_to_read_events_the_answer_says_so() -> None:
    objects = {JOB: job(suspend=False), f"{KUEUE}/namespaces/nlp/workloads": workload(status="True")}
    facts = await found(objects, "/api/v1/namespaces/nlp/events")
    assert not facts.code and "may not list events" in facts.hidden_by


@pytest.mark.parametrize(("asked", "code"), [(16, "NoNodeFits"), (8, "NotEnoughFree")])
async def test_more_than_any_node_has_never_starts_though_kueue_speaks_of_room(asked: int, code: str) -> None:
    message = (
        'topology "a100" doesn\'t allow to fit any of 1 pod(s). Total nodes: 4; excluded: resource "x": 4'
    )
    pod = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(asked)}}}]}
    objects = {
        JOB: job(suspend=True, template={"spec": pod}),
        f"{KUEUE}/namespaces/nlp/workloads": workload(message),
        "/api/v1/nodes": [a100_node("n")],
    }
    assert (await found(objects)).code == code


def a100_node(name: str, **more: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    capacity = {"nvidia.com/gpu": "8"}
    return {"metadata": {"name": name}, "status": {"capacity": capacity, "conditions": [ready]}, **more}


@pytest.mark.parametrize(
    "message",
    [
        'topology "a100" doesn\'t allow to fit any of 2 pod(s). Total nodes: 0',
        'topology "a100" doesn\'t allow to fit any of 2 pod(s). Total nodes: 2; excluded: '
        'taint "node.kubernetes.io/unschedulable:NoSchedule": 2',
    ],
)
async def test_cordoned_nodes_are_named_whatever_kueue_says_of_them(message: str) -> None:
    """It leaves them out, or excludes them by their taint, as nodes that never fit."""
    pod = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}

    async def why(*nodes: dict[str, Any], selector: dict[str, str] | None = None) -> WaitFacts:
        template = {"spec": {**pod, "nodeSelector": selector or {}}}
        return await found(
            {
                JOB: job(suspend=True, parallelism=2, completions=2, template=template),
                f"{KUEUE}/namespaces/nlp/workloads": workload(message),
                "/api/v1/nodes": list(nodes),
            }
        )

    cordoned = {"spec": {"unschedulable": True}}
    facts = await why(a100_node("n1", **cordoned), a100_node("n2"))
    assert facts.code == "NodesUnavailable"
    assert facts.findings[0].text == "Unavailable: n1 (cordoned)"
    facts = await why(a100_node("n1", **cordoned), selector={"kubernetes.io/hostname": "n1"})
    assert facts.findings[0].text == "The job requires a specific node: n1 (cordoned)"
    facts = await why(a100_node("n1", **cordoned), a100_node("n2"), a100_node("n3"))
    assert facts.code != "NodesUnavailable", "the other two could hold it"


# other kinds

DEPLOYMENT = "/apis/apps/v1/namespaces/nlp/deployments/chat"
WORKLOADS = f"{KUEUE}/namespaces/nlp/workloads"
PODS = "/api/v1/namespaces/nlp/pods"
APPS = {"/apis/apps/v1": {"resources": [
    {"name": "deployments", "kind": "Deployment", "namespaced": True},
    {"name": "replicasets", "kind": "ReplicaSet", "namespaced": True},
]}, "/api/v1": {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}]}}  # fmt: skip
OLD = "2026-11-17T12:00:00Z"


def owned(kind: str, name: str, owner: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "nlp", "uid": f"uid-{name}", "creationTimestamp": OLD}
    return {
        "metadata": {**meta, "ownerReferences": [owner] if owner else [], **more.pop("metadata", {})},
        **more,
    }


def to(api_version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def replica(**spec: Any) -> dict[str, Any]:
    """A pod of the Deployment `chat` that Kueue holds back."""
    gate = [{"name": "kueue.x-k8s.io/admission"}]
    limits = {"requests": {"nvidia.com/gpu": "2"}}
    body = {"schedulingGates": gate, "containers": [{"name": "m", "resources": limits}], **spec}
    return owned(
        "Pod", "chat-1-a", to("apps/v1", "ReplicaSet", "chat-1"), spec=body, status={"phase": "Pending"}
    )


def of_replica(*conditions: dict[str, Any]) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    pod_set = {"count": 1, "template": {"spec": {"containers": [{"name": "m", "resources": limits}]}}}
    return owned(
        "Workload", "w", to("v1", "Pod", "chat-1-a"), metadata={"uid": "w1"},
        spec={"active": True, "queueName": "main", "podSets": [pod_set]},
        status={"conditions": list(conditions)},
    )  # fmt: skip


async def why_chat(objects: dict[str, Any]) -> WaitFacts:
    served = {
        **APPS,
        DEPLOYMENT: owned("Deployment", "chat", spec={"replicas": 1}),
        "/apis/apps/v1/namespaces/nlp/replicasets/chat-1": owned(
            "ReplicaSet", "chat-1", to("apps/v1", "Deployment", "chat")
        ),
        "/api/v1/namespaces/nlp/pods/chat-1-a": replica(),
        **objects,
    }
    requests = cast("KubeRequests", FakeRequests(served))
    fleet = Fleet("f", "USD", (), ())
    facts = await explain(requests, EngineId("nlp/deployment/chat/uid-chat"), fleet, ClusterName("k8s"), ())
    assert facts is not None
    return facts


async def test_a_replica_waits_for_what_kueue_says_of_it() -> None:
    message = "insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed"
    waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    facts = await why_chat({PODS: [replica()], WORKLOADS: [of_replica(waits)]})
    assert (facts.code, facts.reason) == ("QuotaInUse", message)


async def test_a_workload_on_which_kueue_does_not_decide_is_a_finding() -> None:
    facts = await why_chat({PODS: [replica()], WORKLOADS: [of_replica()]})
    assert facts.code == "NotConsidered"
    assert (
        "Workload w, which Kueue has neither admitted nor refused since 2026-11-17" in facts.findings[0].text
    )
    assert len(facts.findings) == 1
    (gang,) = [of_replica()]
    gang["metadata"]["ownerReferences"] = [to("apps/v1", "Deployment", "chat")]
    facts = await why_chat({PODS: [], WORKLOADS: [gang]})
    assert "IgnoreUndeclared" in facts.findings[1].text


async def test_a_pod_that_kueue_holds_back_without_a_workload_is_a_finding() -> None:
    facts = await why_chat({PODS: [replica()], WORKLOADS: []})
    assert facts.code == "NotConsidered"
    assert "pod chat-1-a, which has no Workload" in facts.findings[0].text


async def test_pods_that_are_refused_to_a_controller_of_the_workload() -> None:
    """The ReplicaSet has the event, not the Deployment; that of another workload is not told."""
    involved = {**to("apps/v1", "ReplicaSet", "chat-1")}
    other = {**to("apps/v1", "ReplicaSet", "other"), "uid": "elsewhere"}
    events = [{**refused(QUOTA.format("fairway-ceiling"))[0], "involvedObject": involved}]
    events += [{**refused("no")[0], "involvedObject": other, "lastTimestamp": "2026-11-17T13:00:00Z"}]
    facts = await why_chat({PODS: [], WORKLOADS: [], "/api/v1/namespaces/nlp/events": events})
    assert facts.code == "TeamAtCeiling"
