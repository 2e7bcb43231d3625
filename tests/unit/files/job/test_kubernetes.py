"""Kubernetes Jobs: what has a word is translated, every other field is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairway.files import JobReport, check_job_file, check_jobs, given_by_flags
from fairway.model.job import GpuRequest, Retries
from fairway.model.names import SliceName

EXAMPLE = Path(__file__).parents[4] / "examples/jobs/kubernetes-job.yaml"
TREE: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
Edit = Callable[[dict[str, Any]], object]


def pod(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tree["spec"]["template"]["spec"]
    return found


def box(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod(tree)["containers"][0]
    return found


def _with(edit: Edit) -> dict[str, Any]:
    tree = deepcopy(TREE)
    edit(tree)
    return tree


def edited(edit: Edit) -> JobReport:
    return check_jobs(json.dumps(_with(edit), indent=1), "job.yaml")


def test_the_example() -> None:
    report = check_job_file(EXAMPLE)
    (job,) = report.jobs or ()
    assert report.faults == ()
    assert (job.name, job.team, job.priority) == ("train-llm", "research", "urgent")
    assert (job.gpus, job.nodes, job.cpus, job.memory_gb) == (GpuRequest(8, "A100-80GB"), 2, 64, 512)
    assert (job.time_seconds, job.retries) == (129600, Retries(3))
    assert (job.image, job.workdir) == ("ghcr.io/acme/train:1.4", "/work")
    assert (job.command, job.env) == (("torchrun", "train.py"), {"WANDB_MODE": "offline"})


FITTING: list[tuple[Edit, str, Any]] = [
    (lambda t: t["spec"].update(parallelism=1, completions=1), "nodes", 1),
    (lambda t: (t["spec"].pop("parallelism"), t["spec"].pop("completions")), "nodes", 1),
    (lambda t: box(t)["resources"].update(limits={"nvidia.com/mig-1g.10gb": 2}), "gpus",
     GpuRequest(2, slice=SliceName("1g.10gb"))),
    (lambda t: box(t)["resources"].update(limits={"nvidia.com/mig-1g.10gb.me": 1}), "gpus",
     GpuRequest(1, slice=SliceName("1g.10gb+me"))),
    (lambda t: pod(t).pop("nodeSelector"), "gpus", GpuRequest(8)),
    (lambda t: box(t)["resources"].update(requests={"cpu": "500m", "memory": "1000M"}), "cpus", 64),
    (lambda t: box(t)["resources"]["limits"].update(cpu="1500m"), "cpus", 2),
    (lambda t: box(t)["resources"]["limits"].update(memory="1500Mi"), "memory_gb", 2),
    (lambda t: box(t).update(args=["a"], command=["b"]), "command", ("b", "a")),
    (lambda t: box(t)["env"].append({"name": "EMPTY"}), "env", {"WANDB_MODE": "offline", "EMPTY": ""}),
    (lambda t: t["metadata"].update(creationTimestamp=None), "name", "train-llm"),
    (lambda t: t.update(status={}), "name", "train-llm"),
    (lambda t: t["metadata"].update(name=None, generateName="train-"), "name", "train"),
    (lambda t: t["spec"].pop("backoffLimit"), "retries", Retries()),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "field", "value"), FITTING, ids=range(len(FITTING)))
def test_what_has_a_word_is_translated(edit: Edit, field: str, value: Any) -> None:
    report = edited(edit)
    assert report.faults == () and report.jobs
    assert getattr(report.jobs[0], field) == value


REFUSED: list[tuple[Edit, str, str]] = [
    (lambda t: box(t).pop("resources"), "MissingKey", ""),
    (
        lambda t: box(t)["resources"]["limits"].update(cpu="many"),
        "WrongType",
        "spec.template.spec.containers[0].resources.limits.cpu",
    ),
    (lambda t: t["spec"].update(parallelism="x"), "WrongType", "spec.parallelism"),
    (lambda t: t.update(kind="CronJob"), "BadManifest", "kind"),
    (lambda t: t["metadata"].update(namespace="Research"), "BadName", "team"),
]
AS_WRITTEN: list[tuple[Edit, str]] = [
    (lambda t: (box(t).pop("command"), box(t).pop("args")), ""),
    (lambda t: pod(t).update(volumes=[]), "spec.template.spec.volumes"),
    (lambda t: pod(t).update(serviceAccountName="x"), "spec.template.spec.serviceAccountName"),
    (lambda t: pod(t).update(initContainers=[]), "spec.template.spec.initContainers"),
    (lambda t: pod(t)["containers"].append({}), "spec.template.spec.containers"),
    (lambda t: box(t).update(envFrom=[]), "spec.template.spec.containers[0].envFrom"),
    (
        lambda t: box(t)["env"].append({"name": "A", "valueFrom": {}}),
        "spec.template.spec.containers[0].env[1].valueFrom",
    ),
    (lambda t: box(t).pop("command"), "spec.template.spec.containers[0].args"),
    (
        lambda t: box(t)["resources"]["limits"].update({"example.org/fpga": 1}),
        'spec.template.spec.containers[0].resources.limits."example.org/fpga"',
    ),
    (lambda t: t["spec"].update(completions=100), "spec.completions"),
    (lambda t: pod(t)["nodeSelector"].update(zone="a"), "spec.template.spec.nodeSelector.zone"),
    (
        lambda t: pod(t)["nodeSelector"].update({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80G"}),
        'spec.template.spec.nodeSelector."nvidia.com/gpu.product"',
    ),
]


@pytest.mark.parametrize(("edit", "code", "path"), REFUSED, ids=[path or code for _, code, path in REFUSED])
def test_what_is_refused_is_named(edit: Edit, code: str, path: str) -> None:
    report = edited(edit)
    assert report.jobs is None
    assert (code, path) in [(f.code.value, f.path) for f in report.faults]
    assert all(f.hint for f in report.faults)


@pytest.mark.parametrize(("edit", "path"), AS_WRITTEN, ids=[path for _, path in AS_WRITTEN])
def test_what_a_job_file_cannot_say_is_submitted_as_it_is(edit: Edit, path: str) -> None:
    report = edited(edit)
    (job,) = report.jobs or ()
    ((code, where),) = [(f.code.value, f.path) for f in report.faults]
    assert (code, where) == ("AsWritten", path)
    assert report.faults[0].severity == "warning"
    tree = deepcopy(TREE)
    edit(tree)
    body = json.loads(job.manifest or "")
    assert body["spec"] == tree["spec"], "nothing of it is left out"
    assert (job.name, job.team, job.priority, job.gpus.count) == ("train-llm", "research", "urgent", 8)


def test_flags_that_only_a_job_file_can_have_say_what_is_wrong() -> None:
    tree = deepcopy(TREE)
    pod(tree).update(volumes=[])
    report = check_jobs(json.dumps(tree), "job.yaml", given_by_flags({"gpus": "H100:4"}))
    assert report.jobs is None
    assert [f.code.value for f in report.faults] == ["NoWordForIt"]


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (
            lambda t: t["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}),
            'metadata.labels."kueue.x-k8s.io/queue-name"',
        ),
        (lambda t: t["metadata"].update(annotations={"a": "b"}), "metadata.annotations"),
        (lambda t: t["metadata"].update(namespace="default"), "metadata.namespace"),
        (lambda t: t["spec"].update(ttlSecondsAfterFinished=5), "spec.ttlSecondsAfterFinished"),
        (lambda t: box(t).update(args=["$(A)"]), "spec.template.spec.containers[0].args[0]"),
        (lambda t: pod(t).update(tolerations=[]), "spec.template.spec.tolerations"),
    ],
)
def test_what_is_left_out_is_said(edit: Edit, path: str) -> None:
    report = edited(edit)
    assert report.jobs and [(f.code.value, f.path) for f in report.faults] == [("LeftOut", path)]


def test_every_field_without_a_word_at_once() -> None:
    def edit(tree: dict[str, Any]) -> None:
        pod(tree).update(volumes=[], affinity={}, hostNetwork=True)

    report = check_jobs(json.dumps(_with(edit)), "job.yaml", given_by_flags({"gpus": "1"}))
    assert len(report.faults) == 3


def test_flags_count_before_the_manifest() -> None:
    given = given_by_flags({"gpus": "H100:4", "team": "product"})
    (job,) = check_jobs(EXAMPLE.read_text(), "x", given).jobs or ()
    assert (job.gpus, job.team) == (GpuRequest(4, "H100"), "product")
