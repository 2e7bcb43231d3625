"""Cancel, hold and release workloads of every kind: which requests that makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairway.engines.kubernetes.api.wire import Owner
from fairway.engines.kubernetes.jobs.submit import KubernetesRunner
from fairway.model.errors import Refused
from fairway.model.job import EngineId
from tests.unit.engines.kubernetes.api.connections import Connections, connection
from tests.unit.engines.kubernetes.jobs.cluster_events import FLEET, GPU, Events, ref
from tests.unit.engines.kubernetes.jobs.objects_served import ObjectsServed

KUEUE = "kueue.x-k8s.io/v1beta2"
TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "2"}}}]}}
POD = {"containers": [{"name": "main", "resources": {"requests": {GPU: "2"}}}]}


@pytest.fixture
def served() -> ObjectsServed:
    return ObjectsServed()


@pytest.fixture
def runner(served: ObjectsServed, monkeypatch: pytest.MonkeyPatch) -> KubernetesRunner:
    made = Connections()
    monkeypatch.setattr(made, "answer", served.answer)
    return KubernetesRunner(connection(made), FLEET.pools)


def id_of(owner: Owner, kind: str = "") -> EngineId:
    return EngineId(f"research/{kind or owner.kind.lower()}/{owner.name}/{owner.uid[:8]}")


def workload(served: ObjectsServed, owner: Owner | None, name: str = "w", **spec: Any) -> None:
    body = {"active": True, "podSets": [{"count": 1, "template": TEMPLATE}], **spec}
    served.add(KUEUE, "Workload", name, owner, uid=f"uid-w-{name}", spec=body)


async def test_the_log_of_a_replica_that_the_mirror_has_forgotten(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    """It ended, was stored, and still exists."""
    events = Events()
    owner = events.known(ref("Deployment", "chat"))
    events.pod("chat-1", owner, started=5)
    (job,) = [events.records.observed(record) for record in events.records.by_uid.values()]
    chat = served.add("apps/v1", "Deployment", "chat")
    served.add("v1", "Pod", "chat-0", chat, spec=POD, status={"phase": "Succeeded"})
    served.objects[served.path("v1", "Pod", "chat-0") + "/log"] = {"line": 1}
    part = await runner.read_log(job, id_of(chat), 1, 0, 100, 0, "chat-0")
    assert json.loads(part.data) == {"line": 1}
    with pytest.raises(Refused, match="chat-9 is deleted"):
        await runner.read_log(job, id_of(chat), 1, 0, 100, 0, "chat-9")


async def test_cancel_deletes_the_root_by_its_uid(served: ObjectsServed, runner: KubernetesRunner) -> None:
    chat = served.add("apps/v1", "Deployment", "chat")
    assert await runner.cancel([id_of(chat)]) == {}
    ((method, path, body),) = served.sent
    assert (method, path) == ("DELETE", served.path("apps/v1", "Deployment", "chat"))
    options = json.loads(body)
    assert options == {"preconditions": {"uid": chat.uid}, "propagationPolicy": "Background"}


async def test_cancel_leaves_another_object_of_the_same_name(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    served.add("apps/v1", "Deployment", "chat", uid="another")
    assert await runner.cancel([EngineId("research/deployment/chat/1a2b3c4d")]) == {}
    assert served.sent == []


async def test_cancel_of_an_unknown_kind(served: ObjectsServed, runner: KubernetesRunner) -> None:
    thing = served.add("acme.io/v1", "Thing", "t")
    assert await runner.cancel([id_of(thing)]) == {}
    assert served.sent[0][:2] == ("DELETE", served.path("acme.io/v1", "Thing", "t"))


async def test_a_right_that_is_missing_on_another_operators_kind_stops_nothing_else(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    thing, chat = served.add("acme.io/v1", "Thing", "t"), served.add("apps/v1", "Deployment", "chat")
    served.forbidden.add(("DELETE", served.path("acme.io/v1", "Thing", "t")))
    refused = await runner.cancel([id_of(thing), id_of(chat)])
    assert [e.code for e in refused.values()] == ["Forbidden"]
    assert ("DELETE", served.path("apps/v1", "Deployment", "chat")) in [s[:2] for s in served.sent]


async def test_cancel_of_a_pod_group_ends_its_pods_and_its_workload(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    """Kueue keeps the quota of deleted pods until the Workload is deleted."""
    labels = {"kueue.x-k8s.io/pod-group-name": "batch"}
    pods = [served.add("v1", "Pod", f"p{i}", labels=labels, spec=POD) for i in (0, 1)]
    workload(served, Owner("Pod", "p0", pods[0].uid, controller=False, api_version="v1"), "batch")
    assert await runner.cancel([EngineId("research/podgroup/batch/uid-w-ba")]) == {}
    assert [s[:2] for s in served.sent] == [
        ("DELETE", served.path("v1", "Pod", "p0")),
        ("DELETE", served.path("v1", "Pod", "p1")),
        ("DELETE", served.path(KUEUE, "Workload", "batch")),
    ]


async def test_hold_scales_a_deployment_to_0_and_release_back(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    chat = served.add("apps/v1", "Deployment", "chat", spec={"replicas": 3}, resourceVersion="7")
    assert await runner.hold([id_of(chat)]) == {}
    ((method, path, body),) = served.sent
    assert (method, path) == ("PATCH", served.path("apps/v1", "Deployment", "chat"))
    assert json.loads(body) == {
        "metadata": {"resourceVersion": "7", "annotations": {"fairway.dev/replicas": "3"}},
        "spec": {"replicas": 0},
    }
    served.sent.clear()
    served.add(
        "apps/v1", "Deployment", "chat", spec={"replicas": 0}, annotations={"fairway.dev/replicas": "3"}
    )
    assert await runner.hold([id_of(chat)]) == {}
    assert served.sent == [], "it is held"
    assert await runner.release([id_of(chat)]) == {}
    assert json.loads(served.sent[0][2]) == {
        "metadata": {"annotations": {"fairway.dev/replicas": None}},
        "spec": {"replicas": 3},
    }


async def test_hold_stops_every_replica_of_a_service(served: ObjectsServed, runner: KubernetesRunner) -> None:
    lws = served.add("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm")
    for name in ("w0", "w1"):
        workload(served, lws, name)
    workload(served, served.add("apps/v1", "StatefulSet", "other"), "w2")
    assert await runner.hold([id_of(lws)]) == {}
    assert [s[:2] for s in served.sent] == [
        ("PATCH", served.path(KUEUE, "Workload", name)) for name in ("w0", "w1")
    ]
    assert all(json.loads(body)["spec"] == {"active": False} for _, _, body in served.sent)


async def test_release_makes_every_workload_active(served: ObjectsServed, runner: KubernetesRunner) -> None:
    gang = served.add("jobset.x-k8s.io/v1alpha2", "JobSet", "gang")
    workload(served, gang, active=False)
    assert await runner.release([id_of(gang)]) == {}
    assert json.loads(served.sent[0][2]) == {"spec": {"active": True}}


async def test_a_bare_pod_cannot_be_held(served: ObjectsServed, runner: KubernetesRunner) -> None:
    pod = served.add("v1", "Pod", "debug", spec=POD)
    refused: dict[EngineId, Refused] = dict(await runner.hold([id_of(pod)]))
    assert refused[id_of(pod)].code == "CannotBeHeld"
    assert f"fairway cancel {id_of(pod)}" in refused[id_of(pod)].hint
    assert served.sent == []


async def test_what_kueue_queues_pod_by_pod_cannot_be_held(
    served: ObjectsServed, runner: KubernetesRunner
) -> None:
    thing = served.add("acme.io/v1", "Thing", "t")
    pod = served.add("v1", "Pod", "t-0", thing, spec=POD)
    workload(served, pod)
    refused = await runner.hold([id_of(thing)])
    assert refused[id_of(thing)].code == "CannotBeHeld"
