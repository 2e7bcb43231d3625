"""What a manifest of any kind requests, and what it may not set."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
    without_placement,
)
from fairway.model.workload_kinds import WORKLOAD_KINDS, HoldBy
from tests.kinds import manifests
from tests.kinds.manifests import Json, pod_spec


def accepted(body: Json) -> Manifest:
    found, problems = read_manifest(body)
    assert found is not None, problems
    return found


def refused(body: Json) -> str:
    found, problems = read_manifest(body)
    assert found is None
    assert all(problem.hint for problem in problems)
    return "; ".join(f"{'.'.join(map(str, p.path))}: {p.message}" for p in problems)


def kubeflow(kind: str, key: str, version: str = "v1") -> Json:
    replicas = {
        "Master": {"replicas": 1, "template": {"spec": pod_spec(8)}},
        "Worker": {"replicas": 3, "template": {"spec": pod_spec(8)}},
    }
    return {
        "apiVersion": f"kubeflow.org/{version}", "kind": kind, "metadata": {"name": "train"},
        "spec": {key: replicas},
    }  # fmt: skip


def app_wrapper(*components: Json) -> Json:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "wrapped"},
        "spec": {"components": [{"template": component} for component in components]},
    }  # fmt: skip


def ray_service() -> Json:
    (cluster,) = manifests.ray_cluster("serve", 2, 3)
    spec = {"rayClusterConfig": cluster["spec"]}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "serve"}, "spec": spec}


SAMPLES: dict[str, tuple[Json, tuple[int, int, int]]] = {
    "Job": (manifests.job("a", 2, 3)[0], (2, 3, 6)),
    "JobSet": (manifests.job_set("a", 2, 3)[0], (2, 3, 6)),
    "TrainJob": (manifests.train_job("a", 2, 3)[0], (2, 3, 6)),
    "RayJob": (manifests.ray_job("a", 2, 3)[0], (2, 3, 6)),
    "RayCluster": (manifests.ray_cluster("a", 2, 3)[0], (2, 3, 6)),
    "RayService": (ray_service(), (2, 3, 6)),
    "LeaderWorkerSet": (manifests.leader_worker_set("a", 2, 3)[0], (2, 3, 6)),
    "StatefulSet": (manifests.stateful_set("a", 2, 3)[0], (2, 3, 6)),
    "Deployment": (manifests.deployment("a", 2, 3)[0], (2, 3, 6)),
    "Pod": (manifests.pod("a", 2, 3)[0], (6, 1, 6)),
    "PyTorchJob": (kubeflow("PyTorchJob", "pytorchReplicaSpecs"), (8, 4, 32)),
    "TFJob": (kubeflow("TFJob", "tfReplicaSpecs"), (8, 4, 32)),
    "XGBoostJob": (kubeflow("XGBoostJob", "xgbReplicaSpecs"), (8, 4, 32)),
    "PaddleJob": (kubeflow("PaddleJob", "paddleReplicaSpecs"), (8, 4, 32)),
    "JAXJob": (kubeflow("JAXJob", "jaxReplicaSpecs"), (8, 4, 32)),
    "MPIJob": (kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1"), (8, 4, 32)),
    "AppWrapper": (
        app_wrapper(manifests.job("a", 2, 3)[0], manifests.deployment("b", 4, 1)[0]),
        (4, 4, 10),
    ),
}
"""A manifest of each kind: GPUs of its largest pod, pods with GPUs, and GPUs of all."""


def test_every_kind_that_can_be_submitted_has_a_sample() -> None:
    assert set(SAMPLES) == {k.kind for k in WORKLOAD_KINDS if k.hold is not HoldBy.SUSPEND}


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_each_kind_requests(kind: str) -> None:
    body, (each, pods, devices) = SAMPLES[kind]
    found = accepted(body)
    assert (found.kind.kind, found.resource) == (kind, "nvidia.com/gpu")
    assert (found.gpus.count, found.pods, found.devices) == (each, pods, devices)
    assert decode_manifest(encode_manifest(body)) == body


def test_a_leader_takes_the_place_of_a_worker() -> None:
    (body,) = manifests.leader_worker_set("a", 2, 4)
    body["spec"]["replicas"] = 3
    body["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": pod_spec(1)}
    found = accepted(body)
    assert (found.pods, found.devices) == (12, 3 * (1 + 3 * 2))
    body["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": pod_spec(0, cpu=True)}
    assert (accepted(body).pods, accepted(body).devices) == (9, 18)


def test_a_job_does_not_run_more_pods_than_it_completes() -> None:
    (body,) = manifests.job("a", 2, 8)
    body["spec"]["completions"] = 3
    assert accepted(body).pods == 3


def test_hosts_of_a_ray_group_count() -> None:
    (body,) = manifests.ray_cluster("a", 2, 3)
    body["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 4
    assert accepted(body).devices == 2 * 3 * 4


def test_init_containers_and_sidecars_count_as_the_scheduler_counts() -> None:
    (body,) = manifests.deployment("a", 2, 1)
    spec = body["spec"]["template"]["spec"]
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 3}}}
    spec["initContainers"] = [{"name": "warm", **gpus}]
    assert accepted(body).devices == 3
    spec["initContainers"] = [{"name": "side", "restartPolicy": "Always", **gpus}]
    assert accepted(body).devices == 5


def test_slices() -> None:
    (body,) = manifests.deployment("a", 1, 2)
    limits = {"nvidia.com/mig-1g.10gb.me": "2"}
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    found = accepted(body)
    assert (found.gpus.slice, found.gpus.count) == ("1g.10gb+me", 2)


def test_network_devices_are_no_gpus() -> None:
    (body,) = manifests.deployment("a", 2, 1)
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = "1"
    assert accepted(body).resource == "nvidia.com/gpu"


def test_where_it_says_it_belongs() -> None:
    (body,) = manifests.deployment("chat", 2, 1)
    body["metadata"] |= {"namespace": "research", "labels": {"kueue.x-k8s.io/priority-class": "high"}}
    found = accepted(body)
    assert (found.name, found.namespace, found.priority) == ("chat", "research", "high")
    stored = without_placement({**body, "status": {}})
    assert stored["metadata"] == {"name": "chat", "labels": {}}
    assert "status" not in stored
    assert body["metadata"]["namespace"] == "research", "the manifest itself is as it was"


def put(body: Json, path: str, value: Any) -> Json:
    made = copy.deepcopy(body)
    *parents, last = path.split("/")
    node: Any = made
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
    node[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("status", {"replicas": 3}, "status is written by the cluster"),
        ("metadata/ownerReferences", [{"controller": True}], "ownerReferences is written by the cluster"),
        ("metadata/finalizers", ["a/b"], "finalizers is written by the cluster"),
        ("metadata/managedFields", [{}], "managedFields is written by the cluster"),
        ("metadata/uid", "1-2-3", "uid is written by the cluster"),
        ("metadata/resourceVersion", "7", "resourceVersion is written by the cluster"),
        ("metadata/labels", {"fairway.dev/job": "8f3k"}, "fairway.dev/job is for Fairway to set"),
        ("metadata/annotations", {"fairway.dev/user": "bob"}, "fairway.dev/user is for Fairway to set"),
        ("metadata/labels", {"kueue.x-k8s.io/managed": "true"}, "managed is for Kueue to set"),
        ("metadata/annotations", {"kueue.x-k8s.io/queue-name": "main"}, "queue-name is for Kueue to set"),
        (
            "spec/template/metadata",
            {"annotations": {"kueue.x-k8s.io/workload": "another"}},
            "spec.template.metadata.annotations.kueue.x-k8s.io/workload",
        ),
        (
            "spec/template/metadata",
            {"labels": {"kueue.x-k8s.io/pod-group-name": "another"}},
            "pod-group-name is for Kueue to set",
        ),
        ("spec/template/metadata", {"labels": {"kueue.x-k8s.io/queue-name": "other"}}, "is for Kueue to set"),
        ("spec/template/spec/resourceClaims", [{"name": "gpu"}], "resource claims"),
        ("spec/replicas", 0, "its replicas are 0"),
        ("spec/replicas", 100_000, "too many"),
        ("metadata/name", "", "the manifest has no name"),
        ("kind", "Pod", "is not a kind of workload"),
        ("apiVersion", "apps/v1/namespaces/kube-system/secrets?x=", "is not a kind of workload"),
        ("apiVersion", "apps/..", "apps/.. is no API version"),
        ("items", [], "this is a list of objects"),
    ],
)
def test_what_is_refused(path: str, value: Any, says: str) -> None:
    (body,) = manifests.deployment("a", 2, 3)
    assert says in refused(put(body, path, value))


def test_other_kinds_are_refused_with_those_that_are_not() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
    found, (problem,) = read_manifest(secret)
    assert found is None
    assert "Deployment" in problem.hint
    (cron,) = manifests.cron_job("a", 1, 1)
    assert "creates a job at each of its times" in refused(cron)


def test_no_gpus_or_several_kinds_of_them() -> None:
    (body,) = manifests.deployment("a", 2, 1)
    limits = body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/mig-1g.10gb"] = "1"
    assert "several kinds: nvidia.com/gpu, nvidia.com/mig-1g.10gb" in refused(body)
    limits.clear()
    assert "does not say how many GPUs" in refused(body)
    body["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "two"}]
    assert "claims its devices" in refused(body)


def test_what_an_app_wrapper_may_not_smuggle() -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "me"}}
    (job,) = manifests.job("a", 1, 1)
    assert "RoleBinding within a AppWrapper" in refused(app_wrapper(job, role))
    assert "in another namespace, others" in refused(app_wrapper(put(job, "metadata/namespace", "others")))
    assert "is not a kind of workload" in refused(app_wrapper(app_wrapper(job)))
    assert "is for Kueue to set" in refused(
        app_wrapper(put(job, "metadata/labels", {"kueue.x-k8s.io/prebuilt-workload-name": "x"}))
    )


def test_size_and_depth_are_bounded() -> None:
    (body,) = manifests.deployment("a", 1, 1)
    assert "bytes as JSON" in refused(put(body, "metadata/annotations", {"a": "x" * MAX_MANIFEST_BYTES}))
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]
    assert "nested more than" in refused(put(body, "spec/template/spec/deep", deep))
    assert "a number that JSON cannot have" in refused(put(body, "spec/minReadySeconds", float("inf")))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_paths = ("metadata", "spec", "spec/template", "spec/template/spec", "spec/template/spec/containers")


@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.tuples(st.sampled_from(_paths), _json), max_size=3))
def test_a_manifest_of_any_shape_is_read_or_refused(kind: str, changes: list[tuple[str, Any]]) -> None:
    body = SAMPLES[kind][0]
    for path, value in changes:
        try:
            body = put(body, path, value)
        except (TypeError, AttributeError, ValueError):
            continue  # an earlier change put something else where the path leads
    found, problems = read_manifest(body)
    assert (found is None) == bool(problems)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 6)),
        min_size=1,
        max_size=5,
    )
)
def test_a_job_set_requests_the_sum_of_its_jobs(parts: list[tuple[int, int, int, int | None]]) -> None:
    jobs = []
    for i, (gpus, replicas, parallelism, completions) in enumerate(parts):
        job: Json = {"parallelism": parallelism, "template": {"spec": pod_spec(gpus, cpu=gpus == 0)}}
        if completions is not None:
            job["completions"] = completions
        jobs.append({"name": f"part{i}", "replicas": replicas, "template": {"spec": job}})
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"},
        "spec": {"replicatedJobs": jobs},
    }  # fmt: skip
    pods = [r * min(p, p if c is None else c) for _, r, p, c in parts]
    wanted = sum(g * n for (g, *_), n in zip(parts, pods, strict=True))
    found, _ = read_manifest(body)
    assert (found.devices if found else 0) == wanted
    assert found is None or found.pods == sum(n for (g, *_), n in zip(parts, pods, strict=True) if g)
