"""GPU workloads from before Fairway: found, named in the plan, and left alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.policy import existing
from fairway.engines.kubernetes.policy.translate import translate
from fairway.files import parse_fleet
from fairway.model.names import ClusterName
from fairway.policy.objects import FoundObject, FoundPolicy, GpuWorkload, ObjectKey, Translation
from fairway.policy.plan import compute_changes
from tests.unit.engines.kubernetes.policy.fleets import FAMILY, HEAD, applied, fields_of, fleet, nothing

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
    assert fields_of(wanted, "Namespace", "product")[ANNOTATION] == "Deployment/chat=2,Pod/debug=1"
    assert ANNOTATION not in fields_of(wanted, "Namespace", "nlp")
    binding = fields_of(wanted, "ValidatingAdmissionPolicyBinding", "fairway-strays")
    assert binding[NAMES] == ("kube-system", "interns")
    said = notices(wanted)
    assert "Deployment product/chat (4 GPUs since 2026-11-17 11:52)" in said["ExistingWorkloadsStay"]
    assert "Pod product/debug (1 GPU since" in said["ExistingWorkloadsStay"]
    assert "Job" not in said["ExistingWorkloadsStay"].replace("no Jobs", "")
    assert "Deployment interns/notebook (1 GPU since 2026-11-16 08:00)" in said["NamespacesLeftAlone"]


def test_a_quota_of_pods_does_not_stop_what_is_left_alone() -> None:
    quota = ObjectKey("ResourceQuota", "product/fairway-ceiling")
    assert quota in {o.key for o in translate(fleet(), CLOUD, nothing()).objects}
    assert quota not in {o.key for o in translate(fleet(), CLOUD, used(CHAT)).objects}


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
    said = notices(wanted)["ExistingWorkloadsRefused"]
    assert "product/chat" in said
    assert "interns/notebook" in said


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


def pod(name: str, owner: Json | None = None, gpus: int = 2, phase: str = "Running", **labels: str) -> object:
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
    found = existing._collect(existing._of_pods(pods, (), False))  # type: ignore[arg-type]
    assert [(w.kind, w.name, w.gpus_per_pod, w.gpus) for w in found] == [
        ("Deployment", "chat", 2, 4),
        ("Pod", "debug", 1, 1),
        ("ReplicaSet", "loner", 1, 1),
        ("StatefulSet", "embed", 1, 1),
        ("finished Pod", "done", 1, 0),
    ]
    assert found[0].since == min(p.metadata.creation_timestamp for p in pods[:2])  # type: ignore[attr-defined]


def test_the_annotation_is_read_back() -> None:
    workloads = (GpuWorkload("Deployment", "llm", "chat", 2), GpuWorkload("Pod", "llm", "debug", 1))
    assert existing.parse_annotation("llm", existing.annotation(workloads)) == workloads
    assert existing.parse_annotation("llm", "nonsense,Pod/x=many,=1") == ()
