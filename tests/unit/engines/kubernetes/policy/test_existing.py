"""GPU workloads from before Fairway: found, named in the plan, and left alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.policy import existing
from fairway.engines.kubernetes.policy.translate import translate
from fairway.files import parse_fleet
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.policy.objects import FoundObject, FoundPolicy, GpuWorkload, ObjectKey, Translation
from fairway.policy.plan import build_plan, compute_changes
from tests.unit.engines.kubernetes.policy.fleets import (
    FAMILY,
    HEAD,
    JOBS_ONLY,
    applied,
    fields_of,
    fleet,
    nothing,
)

CLOUD = ClusterName("cloud")
ANNOTATION = "metadata.annotations[fairway.dev/existing]"
NAMES = "spec.matchResources.namespaceSelector.matchExpressions[kubernetes.io/metadata.name].values"
CHAT = GpuWorkload("Deployment", "product", "chat", 2, 4, "2026-11-17T11:52:00Z")
DEBUG = GpuWorkload("Pod", "product", "debug", 1, 1, "2026-11-17T11:53:00Z")
TRAIN = GpuWorkload("Job", "product", "train", 8, 8, "2026-11-17T11:53:00Z")
INTERNS = GpuWorkload("Deployment", "interns", "notebook", 1, 1, "2026-11-16T08:00:00Z")


def used(*workloads: GpuWorkload) -> FoundPolicy:
    return replace(nothing(), workloads=workloads)


def notices(wanted: Translation) -> dict[str, str]:
    return {n.code: n.message for n in wanted.notices}


def test_workloads_from_before_are_left_alone_and_named() -> None:
    found = used(INTERNS, CHAT, DEBUG, TRAIN)
    wanted = translate(fleet(), CLOUD, found)
    assert fields_of(wanted, "Namespace", "product")[ANNOTATION] == (
        "Deployment/chat=2,Pod/debug=1,Job/train=8"
    )
    assert ANNOTATION not in fields_of(wanted, "Namespace", "nlp")
    binding = fields_of(wanted, "ValidatingAdmissionPolicyBinding", "fairway-strays")
    assert binding[NAMES] == ("kube-system", "interns")
    said = notices(wanted)
    assert "Deployment product/chat (4 GPUs since 2026-11-17 11:52)" in said["ExistingWorkloadsStay"]
    assert "Pod product/debug (1 GPU since" in said["ExistingWorkloadsStay"]
    assert "Job product/train (8 GPUs since" in said["ExistingWorkloadsStay"]
    assert "Deployment interns/notebook (1 GPU since 2026-11-16 08:00)" in said["NamespacesLeftAlone"]


def test_a_quota_of_pods_does_not_stop_what_is_left_alone() -> None:
    quota = ObjectKey("ResourceQuota", "product/fairway-ceiling")
    found = nothing(**JOBS_ONLY)
    assert quota in {o.key for o in translate(fleet(), CLOUD, found).objects}
    with_chat = translate(fleet(), CLOUD, replace(found, workloads=(CHAT,)))
    assert quota not in {o.key for o in with_chat.objects}


def test_what_was_left_alone_stays_so_and_nothing_is_added() -> None:
    first = translate(fleet(), CLOUD, used(INTERNS, CHAT))
    later = replace(applied(first), workloads=(INTERNS, replace(CHAT, name="sneaky")))
    again = translate(fleet(), CLOUD, later)
    assert not compute_changes(again, later)
    assert not notices(again).keys() & {"ExistingWorkloadsStay", "NamespacesLeftAlone"}


def test_a_namespace_that_becomes_a_teams_keeps_what_runs_there() -> None:
    first = applied(translate(fleet(), CLOUD, used(INTERNS)))
    later = replace(first, workloads=(INTERNS,))
    more = FAMILY + "  interns: { guarantee: { a100: 1 }, members: [dave] }\n"
    wanted = translate(fleet(more), CLOUD, later)
    assert fields_of(wanted, "Namespace", "interns")[ANNOTATION] == "Deployment/notebook=1"
    assert "ExistingWorkloadsStay" in notices(wanted)


def test_a_team_that_goes_leaves_its_workloads_alone() -> None:
    first = applied(translate(fleet(), CLOUD, used(CHAT)))
    wanted = translate(fleet(FAMILY.partition("  product:")[0]), CLOUD, first)
    assert fields_of(wanted, "ValidatingAdmissionPolicyBinding", "fairway-strays")[NAMES] == (
        "kube-system",
        "product",
    )


def test_the_fleet_file_can_refuse_them() -> None:
    head = HEAD.replace("kubeconfig: /nowhere", "kubeconfig: /nowhere, existing_workloads: refuse")
    wanted = translate(parse_fleet(head + FAMILY, "fleet.yaml"), CLOUD, used(INTERNS, CHAT))
    assert ANNOTATION not in fields_of(wanted, "Namespace", "product")
    assert fields_of(wanted, "ValidatingAdmissionPolicyBinding", "fairway-strays")[NAMES] == ("kube-system",)
    # Those of teams are queued from then on; outside teams nothing counts them.
    assert "product/chat" in notices(wanted)["ExistingWorkloadsQueued"]
    assert wanted.rejected is not None
    assert wanted.rejected.code == "ExistingWorkloadsRefused"
    assert "Deployment interns/notebook (1 GPU since 2026-11-16 08:00)" in wanted.rejected.message
    assert "product/chat" not in wanted.rejected.message
    plan = build_plan(CLOUD, EngineKind.KUBERNETES, wanted, nothing(), (), {})
    assert [(o.code, o.forceable) for o in plan.objections] == [("ExistingWorkloadsRefused", True)]
    again = translate(parse_fleet(head + FAMILY, "fleet.yaml"), CLOUD, applied(wanted))
    assert again.rejected is None


def test_what_kueue_cannot_queue_would_be_rejected_and_is_named_by_its_root() -> None:
    head = HEAD.replace("kubeconfig: /nowhere", "kubeconfig: /nowhere, existing_workloads: refuse")
    worker = GpuWorkload("ReplicaSet", "product", "v2-abc", 2, 2, "2026-11-17T11:52:00Z", ("Notebook", "v2"))
    other = replace(worker, name="v2-def", since="2026-11-17T11:51:00Z")
    found = replace(nothing(**{"kueue.integrations.frameworks": "batch/job"}), workloads=(worker, other))
    rejected = translate(parse_fleet(head + FAMILY, "fleet.yaml"), CLOUD, found).rejected
    assert rejected is not None
    assert rejected.message.endswith(": Notebook product/v2 (4 GPUs since 2026-11-17 11:51)")
    assert "kueue.x-k8s.io/queue-name: main" in rejected.hint


def test_a_namespace_with_a_queue_of_the_sites_is_left_alone() -> None:
    queue = FoundObject(ObjectKey("LocalQueue", "interns/main"), {"spec.clusterQueue": "x"}, ours=False)
    wanted = translate(fleet(), CLOUD, replace(nothing(), objects=(queue,)))
    assert fields_of(wanted, "ValidatingAdmissionPolicyBinding", "fairway-strays")[NAMES] == (
        "kube-system",
        "interns",
    )


def test_resource_claims_are_refused_where_they_can_be_for_gpus() -> None:
    policy = "ValidatingAdmissionPolicy"
    without = translate(fleet(), CLOUD, nothing())
    with_gpus = translate(fleet(), CLOUD, nothing(**{existing.GPU_CLAIMS: "yes"}))
    for name in ("fairway-jobs", "fairway-pods"):
        assert not any("resource claims" in f for f in fields_of(without, policy, name))
        assert any("resource claims" in f for f in fields_of(with_gpus, policy, name))
    assert "ClaimsRefused" in notices(with_gpus)


def test_a_job_from_before_keeps_its_resource_claims() -> None:
    claimed = replace(TRAIN, gpus_per_pod=0, gpus=0)
    wanted = translate(fleet(), CLOUD, used(claimed))
    assert fields_of(wanted, "Namespace", "product")[ANNOTATION] == "Job/train=0"


@pytest.mark.parametrize(("name", "gpus"), [("gpu.nvidia.com", True), ("rdma.example.com", False)])
def test_a_device_class_for_gpus_is_recognised(name: str, gpus: bool) -> None:
    assert existing.has_gpu_classes([{"metadata": {"name": name}, "spec": {}}]) is gpus


def pod(
    name: str, owner: Json | None = None, gpus: int = 2, phase: str = "Running", **labels: str
) -> existing._Pod:
    body = {
        "metadata": {
            "name": name,
            "namespace": "llm",
            "creationTimestamp": f"2026-11-17T11:5{len(name) % 10}:00Z",
            "labels": {k.replace("_", "-"): v for k, v in labels.items()},
            "ownerReferences": [owner | {"controller": True}] if owner else [],
        },
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, existing._Pod)


def test_pods_count_under_what_makes_them() -> None:
    chat = {"kind": "ReplicaSet", "name": "chat-7c4c449dcb"}
    pods = [
        pod("chat-7c4c449dcb-a", chat, pod_template_hash="7c4c449dcb"),
        pod("chat-7c4c449dcb-bc", chat, pod_template_hash="7c4c449dcb"),
        pod("loner-x", {"kind": "ReplicaSet", "name": "loner"}, 1),
        pod("embed-0", {"kind": "StatefulSet", "name": "embed"}, 1),
        pod("debug", None, 1),
        pod("done", None, 1, "Succeeded"),
        pod("cpu", None, 0),
    ]
    found = existing._collect(existing._of_pods([p for p in pods if p.asks((), False)], (), {}))
    assert [(w.kind, w.name, w.gpus_per_pod, w.gpus) for w in found] == [
        ("Deployment", "chat", 2, 4),
        ("Pod", "debug", 1, 1),
        ("ReplicaSet", "loner", 1, 1),
        ("StatefulSet", "embed", 1, 1),
        ("finished Pod", "done", 1, 0),
    ]
    assert found[0].since == min(p.metadata.creation_timestamp for p in pods[:2])


def test_what_a_queue_counts_is_not_in_the_way() -> None:
    queued = {"kueue.x-k8s.io/queue-name": "main"}
    waiting = {"metadata": {"name": "x"}, "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    running = {"metadata": {"name": "x", "annotations": {"kueue.x-k8s.io/workload": "job-x"}}}
    assert all(msgspec.convert(body, existing._Pod).counted for body in (waiting, running))
    assert not pod("debug").counted
    assert msgspec.convert({"metadata": {"name": "x", "labels": queued}}, existing._PodMaker).queued
    done = {"metadata": {"name": "x"}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert msgspec.convert(done, existing._PodMaker).ended


def test_the_annotation_is_read_back() -> None:
    workloads = (GpuWorkload("Deployment", "llm", "chat", 2), GpuWorkload("Pod", "llm", "debug", 1))
    assert existing.parse_annotation("llm", existing.annotation(workloads)) == workloads
    assert existing.parse_annotation("llm", "nonsense,Pod/x=many,=1") == ()
