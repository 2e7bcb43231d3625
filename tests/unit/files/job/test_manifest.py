"""Manifests as files: what they come to with flags, where their faults are, and that they read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fairway.files.job.load import check_jobs, given_by_flags, is_job_text
from fairway.files.job.schema import job_schema
from fairway.files.job.write import compose_job
from fairway.model.job import JobSpec
from fairway.model.manifest import MAX_MANIFEST_BYTES
from fairway.wire import jobs as wire
from tests.kinds import manifests
from tests.kinds.manifests import Json
from tests.unit.model.test_manifest import SAMPLES, put

EXAMPLES = Path(__file__).parents[4] / "examples/jobs"


def read(body: Json | str, **flags: Any) -> JobSpec:
    text = body if isinstance(body, str) else yaml.safe_dump(body, sort_keys=False)
    report = check_jobs(text, "chat.yaml", given_by_flags(flags))
    assert report.jobs is not None, report.faults
    (job,) = report.jobs
    return job


def faults(text: str, **flags: Any) -> list[tuple[str, str, int]]:
    report = check_jobs(text, "chat.yaml", given_by_flags(flags))
    assert report.jobs is None
    assert all(fault.hint for fault in report.faults)
    return [(fault.code.value, fault.path, fault.line) for fault in report.faults]


@pytest.mark.parametrize("kind", sorted(set(SAMPLES) - {"Job"}))
def test_every_kind_is_a_job_that_reads_back(kind: str) -> None:
    body, (each, pods, devices) = SAMPLES[kind]
    job = read(body, team="research", pool="a100")
    assert (job.gpus.count, job.nodes, job.devices) == (each, pods, devices)
    assert json.loads(job.manifest or "") == body
    text = compose_job(job)
    assert read(text) == job
    assert wire.JobSpec.from_model(job).to_model() == job
    jsonschema.validate(yaml.safe_load(text), job_schema())
    assert read(json.dumps(body), team="research", pool="a100") == job, "JSON is YAML"


def test_flags_override_the_manifest() -> None:
    (body,) = manifests.job_set("train", 2, 2)
    body["metadata"] |= {"namespace": "product", "labels": {"kueue.x-k8s.io/priority-class": "low"}}
    own = read(body)
    assert (own.name, own.team, own.priority) == ("train", "product", "low")
    more = {"retries": "2", "time": "2h", "after": ["8f3k"], "tolerates": ["spot"]}
    given = read(body, name="other", team="research", priority="urgent", **more)
    assert (given.name, given.team, given.priority) == ("other", "research", "urgent")
    assert (given.retries.count, given.time_seconds, len(given.after)) == (2, 7200, 1)
    assert own.manifest == given.manifest, "neither is in the manifest any more"


@pytest.mark.parametrize("flag", ["gpus", "nodes", "image", "array", "env", "workdir", "together"])
def test_flags_that_a_manifest_says_itself(flag: str) -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    value: Any = {"env": {"A": "1"}, "together": "rack", "workdir": "/data", "image": "a/b:1"}.get(flag, "1")
    assert ("UnknownKey", flag) in [f[:2] for f in faults(yaml.safe_dump(body), **{flag: value})]


@pytest.mark.parametrize(("flag", "value"), [("retries", "2"), ("time", "2h")])
def test_a_service_has_no_retries_and_no_time(flag: str, value: str) -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    assert [f[:2] for f in faults(yaml.safe_dump(body), **{flag: value})] == [("NoWordForIt", flag)]
    (batch,) = manifests.job_set("train", 2, 3)
    assert read(batch, **{flag: value}).manifest


def test_a_stored_manifest_is_shown_even_if_it_would_be_refused_now() -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    old = replace(read(body), manifest=json.dumps({**body, "kind": "Gone"}))
    shown = wire.JobSpec.from_model(old)
    assert shown.manifest is not None
    assert shown.model_dump()["manifest"]["kind"] == "Gone"
    with pytest.raises(ValueError, match="is not a kind of workload"):
        wire.JobSpec.model_validate(shown.model_dump())


def test_faults_have_their_line() -> None:
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: chat\n  uid: 1-2-3\n"
        "spec:\n  replicas: 1\n  template:\n    metadata:\n      labels: { fairway.dev/job: abcd }\n"
        "    spec:\n      containers:\n      - { name: a, resources: { limits: { nvidia.com/gpu: 1 } } }\n"
    )
    assert faults(text) == [
        ("BadManifest", "metadata.uid", 5),
        ("BadManifest", 'spec.template.metadata.labels."fairway.dev/job"', 10),
    ]


def test_faults_in_a_job_file_have_the_path_there() -> None:
    body = json.dumps(SAMPLES["Deployment"][0] | {"status": {"x": 1}})
    text = f"apiVersion: fairway/v1alpha1\nkind: Job\nname: chat\nmanifest:\n  {body}\n"
    assert faults(text) == [("BadManifest", "manifest.status", 5)]


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_a_manifest_is_known_from_a_fleet(kind: str) -> None:
    assert is_job_text(yaml.safe_dump(SAMPLES[kind][0]).encode())


def test_long_names_are_shortened() -> None:
    (body,) = manifests.deployment("a" * 60, 1, 1)
    assert read(body).name == "a" * 30
    assert len(read(body, name="b" * 40).name) == 30


@pytest.mark.parametrize(
    ("name", "devices"), [("deployment", 4), ("jobset", 32), ("pytorchjob", 32), ("rayjob", 8)]
)
def test_the_examples(name: str, devices: int) -> None:
    assert read((EXAMPLES / f"{name}.yaml").read_text()).devices == devices


# --- attacks ----------------------------------------------------------------------------------------------


def test_a_bomb_of_anchors_is_refused() -> None:
    levels = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: a }\n" + "\n".join(levels)
    assert [code for code, _, _ in faults(text)] == ["TooManyValues"]


def test_a_giant_is_refused() -> None:
    (body,) = manifests.deployment("a", 1, 1)
    text = yaml.safe_dump(put(body, "metadata/annotations", {"a": "x" * MAX_MANIFEST_BYTES}))
    assert [code for code, _, _ in faults(text)] == ["BadManifest"]


def test_deep_nesting_is_refused() -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: " + "[" * 5000
    assert [code for code, _, _ in faults(text)] == ["TooDeep"]


def test_the_server_reads_the_manifest_itself() -> None:
    """Whatever a client says of the GPUs, the manifest's own count."""
    (body,) = manifests.deployment("chat", 2, 3)
    spec = wire.JobSpec(name="chat", gpus=wire.GpuRequest(count=1), nodes=1, manifest=body).to_model()
    assert (spec.gpus.count, spec.nodes, spec.devices) == (2, 3, 6)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"command": ["x"]}, "command cannot be set beside a manifest"),
        ({"array": [1, 2]}, "array cannot be set"),
        ({"team": "product"}, "the manifest is of team research, and the request of team product"),
        ({"priority": "urgent"}, "of priority low"),
        ({"retries": {"count": 1}}, "a Deployment does not"),
        ({"time_seconds": 60}, "a Deployment does not"),
    ],
)
def test_requests_that_contradict_the_manifest(more: Json, says: str) -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    body["metadata"] |= {"namespace": "research", "labels": {"kueue.x-k8s.io/priority-class": "low"}}
    with pytest.raises(ValueError, match=says):
        wire.JobSpec.model_validate({"name": "chat", "manifest": body, **more})


def test_the_manifests_of_one_request_are_few() -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    jobs = [{"name": "chat", "manifest": body}] * wire.MAX_MANIFESTS
    assert len(wire.SubmitRequest.model_validate({"jobs": jobs}).jobs) == wire.MAX_MANIFESTS
    plain = {"name": "other", "command": ["true"], "manifest": None}
    wire.SubmitRequest.model_validate({"jobs": [*jobs, plain]})
    with pytest.raises(ValueError, match="at most 20 manifests"):
        wire.SubmitRequest.model_validate({"jobs": [*jobs, jobs[0]]})
    wrongs: list[Any] = [None, [], {"jobs": 3}, {"jobs": [1, None]}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="validation error"):
            wire.SubmitRequest.model_validate(wrong)


def test_problems_are_named_with_their_path() -> None:
    (body,) = manifests.deployment("chat", 2, 3)
    with pytest.raises(ValueError, match=r"metadata.finalizers: finalizers is written by the cluster"):
        wire.JobSpec(name="chat", manifest=put(body, "metadata/finalizers", ["x"]))
