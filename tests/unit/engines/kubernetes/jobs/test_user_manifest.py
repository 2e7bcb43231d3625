"""Manifests of every kind as they are created: in the team's namespace, queue, priority and pool."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml

from fairway.engines.kubernetes.jobs.manifest import preview
from fairway.engines.kubernetes.jobs.submit import order_objects
from fairway.model.errors import Refused
from fairway.model.job import Order, Tolerates, format_job_id
from fairway.model.manifest import pod_sets_of, read_manifest
from fairway.wire.jobs import JobSpec
from tests.kinds import manifests
from tests.kinds.manifests import Json
from tests.unit.engines.kubernetes.jobs import test_manifest as plain
from tests.unit.model.test_manifest import SAMPLES, put

JOB = "fairway.dev/job"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"


def deployment(**spec: Any) -> Json:
    """A Deployment of a user who says nothing about nodes."""
    (body,) = manifests.deployment("chat", 2, 3)
    del body["spec"]["template"]["spec"]["nodeSelector"]
    body["spec"]["template"]["spec"] |= spec
    return body


def order(body: Json, **more: Any) -> Order:
    spec = JobSpec(name=body["metadata"]["name"], manifest=copy.deepcopy(body)).to_model()
    return plain.order(replace(spec, **more.pop("spec", {})), **more)


def made(body: Json, **more: Any) -> Json:
    return order_objects(order(body, **more), plain.FLEET, plain.CLUSTER).body


def refusal(body: Json, **more: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        made(body, **more)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_kind_belongs_to_its_team(kind: str) -> None:
    body = SAMPLES[kind][0]
    done = made(body)
    meta = done["metadata"]
    assert meta["name"] == plain.order(replace(plain.SPEC, name=body["metadata"]["name"])).engine_name
    assert meta["namespace"] == "research"
    assert meta["labels"][JOB] == format_job_id(123456)
    assert meta["labels"][PRIORITY] == "normal"
    assert QUEUE not in meta["labels"], "the cluster puts it into its queue"
    assert meta["annotations"]["fairway.dev/user"] == "alice"
    assert done == made(body), "the same order is the same object"
    found, _ = read_manifest(body)
    assert found is not None
    assert (LIMIT in meta["labels"]) == (not found.kind.service), "services do not end"


@pytest.mark.parametrize("kind", SAMPLES)
def test_pods_with_gpus_stay_in_the_pool(kind: str) -> None:
    body = SAMPLES[kind][0]
    found, _ = read_manifest(body)
    assert found is not None
    for before, after in zip(pod_sets_of(found.kind, body), pod_sets_of(found.kind, made(body)), strict=True):
        assert (after.pods, after.devices) == (before.pods, before.devices)
        if after.template is None or not after.devices:
            assert after.template == before.template, "what needs no GPUs may run anywhere"
            continue
        spec = after.template["spec"]
        assert spec["nodeSelector"] == {"type": "kwok", **plain.FLEET.pools[0].place.node_labels}  # type: ignore[union-attr]
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"][0]["key"] == "fairway/capacity"


def test_what_the_user_wrote_stays() -> None:
    own = {"key": "a", "operator": "Exists"}
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    body = deployment(
        imagePullSecrets=[{"name": "registry"}],
        tolerations=[own],
        affinity={"nodeAffinity": required, "podAffinity": {"kept": True}},
    )
    body["metadata"] |= {"labels": {"app": "chat", "app.kubernetes.io/managed-by": "Helm"}}
    spot = made(body, pool="spot", team="spotters", spec={"tolerates": frozenset({Tolerates.SPOT})})
    assert spot["metadata"]["labels"]["app"] == "chat"
    assert spot["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    spec = spot["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"][0] == own
    assert spec["tolerations"][1]["key"] == "fairway/spot"
    affinity = made(body)["spec"]["template"]["spec"]["affinity"]
    assert affinity["podAffinity"] == {"kept": True}
    zones = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [len(zone["matchExpressions"]) for zone in zones] == [2, 2], "each of them has to exclude others"


def test_nodes_that_failed_are_avoided() -> None:
    spec = made(deployment(), avoid=("bad-1",))["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][-1]["values"] == ["bad-1"]


def test_queue_and_priority() -> None:
    assert made(deployment(), priority="low")["metadata"]["labels"][QUEUE] == "low"
    body = deployment()
    body["metadata"]["labels"] = {QUEUE: "main"}
    assert made(body)["metadata"]["labels"][QUEUE] == "main"
    assert refusal(body, priority="low").code == "OtherQueue"
    body["metadata"]["labels"] = {QUEUE: "somebody-elses"}
    assert refusal(body).code == "OtherQueue"


def test_a_manifest_cannot_name_gpus_that_pods_claim() -> None:
    with pytest.raises(Refused) as refused:
        order_objects(order(deployment()), plain.claimed(), plain.CLUSTER)
    assert refused.value.code == "ResourceNotInPool"
    assert "template of claims" in refused.value.hint


def test_what_does_not_fit_a_pool() -> None:
    labels = plain.FLEET.pools[0].place.node_labels  # type: ignore[union-attr]
    key = next(iter(labels))
    assert refusal(deployment(nodeSelector={key: "another"})).code == "OtherNodes"
    assert refusal(deployment(), pool="mig", slice_="1g.10gb").code == "ResourceNotInPool"
    assert refusal(deployment(), pool="spot", team="spotters").code == "SpotNotTolerated"
    assert refusal(deployment(), team="nobodys").code == "NoGrant"


@pytest.mark.parametrize("field", ["nodeSelector", "affinity", "tolerations"])
def test_fields_of_a_wrong_type_are_refused(field: str) -> None:
    assert refusal(deployment(**{field: "text"})).code == "InvalidManifest"


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_metadata_of_a_wrong_type_is_refused(field: str) -> None:
    assert refusal(put(deployment(), f"metadata/{field}", "text")).code == "InvalidManifest"


def test_a_long_manifest_is_shown_as_json() -> None:
    body = put(deployment(), "metadata/annotations", {"a": "x" * 100_000})
    text = preview(made(body), made(deployment()))
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["Deployment"] * 2
    assert text.startswith("{")


def test_time_limits() -> None:
    (body,) = manifests.job_set("train", 2, 2)
    assert made(body)["metadata"]["labels"][LIMIT] == "3600", "the team's"
    assert made(body, spec={"time_seconds": 60})["metadata"]["labels"][LIMIT] == "60"


def test_created_held() -> None:
    held = made(deployment(), hold=True)
    assert held["spec"]["replicas"] == 0
    assert held["metadata"]["annotations"]["fairway.dev/replicas"] == "3"
    (body,) = manifests.job_set("train", 2, 2)
    gate = made(body, hold=True)["metadata"]["annotations"]["kueue.x-k8s.io/admission-gated-by"]
    assert gate == "fairway.dev/hold"


def test_the_path_is_that_of_the_manifests_version() -> None:
    body = {**manifests.ray_cluster("a", 1, 1)[0], "apiVersion": "ray.io/v1alpha1"}
    kind = order_objects(order(body), plain.FLEET, plain.CLUSTER).kind
    assert kind.path("research") == "/apis/ray.io/v1alpha1/namespaces/research/rayclusters"
