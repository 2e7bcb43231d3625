"""Orders as Jobs: pure, the same again and again, and nothing that could never run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.kubernetes.jobs.manifest import claim_template, job_manifest, preview
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, Fleet, Folders, KubernetesPlace
from fairway.model.job import GpuRequest, JobId, JobSpec, Order, Tolerates, engine_name, format_job_id
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from tests.unit.engines.kubernetes.policy.fleets import FAMILY, fleet

FLEET = fleet(FAMILY + "  spotters: { borrow: { spot: 8 } }\n")
CLUSTER = FLEET.clusters[0]
SPEC = JobSpec("train llm", GpuRequest(4), command=("python", "train.py"), image="acme/train:1")


def order(spec: JobSpec = SPEC, pool: str = "a100", slice_: str | None = None, **more: Any) -> Order:
    number = JobId(123456)
    return Order(
        job=number,
        submission=2,
        engine_name=engine_name("mark", number, 2, spec.name),
        spec=spec,
        user=UserName("alice"),
        team=TeamName(more.pop("team", "research")),
        priority=PriorityName(more.pop("priority", "normal")),
        supply=Supply(PoolName(pool), SliceName(slice_) if slice_ else None),
        **more,
    )


def made(*args: Any, cluster: Cluster = CLUSTER, **more: Any) -> dict[str, Any]:
    return job_manifest(order(*args, **more), FLEET, cluster)


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def variables(job: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container(job)["env"] if "value" in e}


def test_project_and_labels_are_on_the_job_and_its_pods() -> None:
    job = made(replace(SPEC, project="llm", labels={"experiment": "e1"}))
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["fairway.dev/project"] == "llm"
        assert labels["experiment"] == "e1"
        assert labels["fairway.dev/job"] == format_job_id(123456)
    assert "fairway.dev/project" not in made()["metadata"]["labels"]


def test_who_where_and_what() -> None:
    job = made()
    assert job["metadata"]["name"] == f"train-llm-fwmark-{format_job_id(123456)}-2"
    assert job["metadata"]["namespace"] == "research"
    assert job["metadata"]["labels"]["fairway.dev/job"] == format_job_id(123456)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "normal"
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"], "the cluster puts it into its queue"
    assert job["metadata"]["annotations"] == {"fairway.dev/user": "alice"}
    assert job["spec"]["suspend"] is True
    assert container(job)["command"] == ["python", "train.py"], "no shell where none is needed"
    assert container(job)["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_what_ends_a_pod_from_outside_does_not_end_the_job() -> None:
    lost, terminated, failed = made()["spec"]["podFailurePolicy"]["rules"]
    assert (lost["action"], terminated["action"], failed["action"]) == ("Ignore", "Count", "FailJob")
    assert terminated["onExitCodes"] == {"operator": "In", "values": [143]}  # SIGTERM


def test_the_same_order_is_the_same_job() -> None:
    assert made() == made()
    assert yaml.safe_load(preview(made())) == made()


def test_a_preemptible_one_names_its_queue() -> None:
    assert made(priority="low")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "low"


def test_made_held() -> None:
    gate = made(hold=True)["metadata"]["annotations"]["kueue.x-k8s.io/admission-gated-by"]
    assert gate == "fairway.dev/hold"


def test_the_time_limit_is_the_teams_unless_said() -> None:
    assert made()["spec"]["activeDeadlineSeconds"] == 3600
    assert made(replace(SPEC, time_seconds=60))["spec"]["activeDeadlineSeconds"] == 60


def test_slices_and_spot() -> None:
    mig = made(pool="mig", slice_="1g.10gb")
    assert container(mig)["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "4"}
    spot = made(replace(SPEC, tolerates=frozenset({Tolerates.SPOT})), pool="spot", team="spotters")
    tolerations = spot["spec"]["template"]["spec"]["tolerations"]
    assert tolerations[0] == {
        "key": "fairway/spot", "operator": "Equal", "value": "true", "effect": "NoSchedule",
    }  # fmt: skip


def test_other_pools_are_ruled_out_by_their_own_labels() -> None:
    affinity = made()["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "fairway/capacity", "operator": "NotIn", "values": ["spot"]}]


def test_together_is_the_narrowest_level() -> None:
    job = made(replace(SPEC, nodes=2, together=True))
    notes = job["spec"]["template"]["metadata"]["annotations"]
    assert notes["kueue.x-k8s.io/podset-required-topology"] == "topology.fairway/rack"
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)


def test_the_environment() -> None:
    own = replace(SPEC, env={"A": "1", "FAIRWAY_TEAM": "forged"})
    told = variables(made(own, array=JobId(123450), array_index=6, attempts_before=3))
    assert told["A"] == "1"
    assert told["FAIRWAY_TEAM"] == "research"
    assert told["FAIRWAY_ATTEMPT"] == "4"
    assert (told["FAIRWAY_ARRAY_ID"], told["FAIRWAY_ARRAY_INDEX"]) == (format_job_id(123450), "6")
    assert "FAIRWAY_CHECKPOINT_DIR" not in told


@pytest.mark.parametrize(
    ("folder", "volume"),
    [
        ("pvc/shared", {"persistentVolumeClaim": {"claimName": "shared"}}),
        ("/mnt/checkpoints", {"hostPath": {"path": "/mnt/checkpoints", "type": "DirectoryOrCreate"}}),
    ],
)
def test_the_checkpoint_folder_is_the_jobs_own(folder: str, volume: dict[str, Any]) -> None:
    job = made(cluster=replace(CLUSTER, folders=Folders(checkpoints=folder)))
    assert job["spec"]["template"]["spec"]["volumes"] == [{"name": "checkpoints", **volume}]
    (mount,) = container(job)["volumeMounts"]
    assert mount["subPath"] == f"research/{format_job_id(123456)}"
    assert variables(job)["FAIRWAY_CHECKPOINT_DIR"] == mount["mountPath"]


@pytest.mark.parametrize("folder", [None, "pvc/shared", "/mnt/checkpoints"])
def test_jobs_are_baseline_unless_checkpoints_are_a_host_path(folder: str | None) -> None:
    """The level baseline of the Pod Security Standards, which an admin may enforce on a team's namespace."""
    job = made(cluster=replace(CLUSTER, folders=Folders(checkpoints=folder)))
    pod = job["spec"]["template"]["spec"]
    assert any("hostPath" in volume for volume in pod.get("volumes", ())) == (folder == "/mnt/checkpoints")
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container(job)["securityContext"] == {"allowPrivilegeEscalation": False}
    assert "ports" not in container(job)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (replace(SPEC, image=None), "NoImage"),
        (replace(SPEC, command=()), "NoCommand"),
        (replace(SPEC, command=(), script="#!/bin/sh\n" + "x" * 100_001), "ScriptTooLong"),
    ],
)
def test_what_could_never_run_is_refused(spec: JobSpec, code: str) -> None:
    with pytest.raises(Refused) as refused:
        made(spec)
    assert refused.value.code == code
    assert refused.value.hint


def test_more_that_could_never_run() -> None:
    for spec, pool, team, code in (
        (SPEC, "spot", "spotters", "SpotNotTolerated"),
        (SPEC, "spot", "research", "NoGrant"),
        (SPEC, "a100", "nobody", "NoGrant"),
        (replace(SPEC, together=True), "mig", "research", "NoGrant"),
    ):
        with pytest.raises(Refused) as refused:
            made(spec, pool=pool, team=team)
        assert refused.value.code == code


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=60))
def test_nothing_a_person_writes_is_taken_for_a_variable(text: str) -> None:
    """What Kubernetes makes of it, by its own rules, is what was written."""
    job = made(replace(SPEC, command=("echo", text), env={"A": text}))
    assert expanded(container(job)["command"][1]) == text
    assert expanded(variables(job)["A"]) == text


def expanded(value: str) -> str:
    """Kubernetes' expansion: $$ is $, $(NAME) is a variable if there is one."""
    out, i = "", 0
    while i < len(value):
        if value[i] == "$" and i + 1 < len(value):
            assert value[i + 1] != "(", "a reference"
            if value[i + 1] == "$":
                i += 1
        out += value[i]
        i += 1
    return out


def run(job: dict[str, Any], folder: Path, **more: str) -> str:
    """The command in a shell of this machine, as the container would run it."""
    env = {k: expanded(v) for k, v in variables(job).items()} | {
        "PATH": "/usr/bin:/bin", "FAIRWAY_NODE_INDEX": "0", "FAIRWAY_POD": "p", **more,
    }  # fmt: skip
    env["FAIRWAY_CHECKPOINT_DIR"] = str(folder)
    command = [expanded(word) for word in container(job)["command"]]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=True).stdout


def test_attempts_are_counted_in_the_checkpoint_folder(tmp_path: Path) -> None:
    cluster = replace(CLUSTER, folders=Folders(checkpoints="/mnt"))
    job = made(replace(SPEC, command=("sh", "-c", "echo $FAIRWAY_ATTEMPT")), cluster=cluster)
    assert [run(job, tmp_path) for _ in range(3)] == ["1\n", "2\n", "3\n"]
    later = made(
        replace(SPEC, command=("sh", "-c", "echo $FAIRWAY_ATTEMPT")), cluster=cluster, attempts_before=7
    )
    assert run(later, tmp_path) == "8\n", "never fewer than Fairway knows of"
    assert run(job, Path("/proc/no")) == "1\n", "no folder, no count, but it runs"


def test_a_script_runs_by_its_own_first_line(tmp_path: Path) -> None:
    words = "print('$HOME $(x) $$', environ['B'], 'FAIRWAY_SCRIPT' in environ)"
    script = f"#!/usr/bin/env python3\nfrom os import environ\n{words}"
    job = made(replace(SPEC, command=(), script=script, setup="export B=2"))
    assert run(job, tmp_path) == "$HOME $(x) $$ 2 False\n"
    plain = made(replace(SPEC, command=(), script="#!/bin/bash\n[[ 1 == 1 ]] && echo yes"))
    assert run(plain, tmp_path) == "yes\n"


def claimed() -> Fleet:
    """The family's fleet with a100 by a DeviceClass, and the slices by one each."""
    pools = []
    for pool in FLEET.pools:
        place = pool.place
        assert isinstance(place, KubernetesPlace)
        if pool.slices:
            by_slice = {s: f"{s.replace('.', '-')}.example.com" for s in pool.slices}
            pools.append(replace(pool, place=replace(place, slice_classes=by_slice)))
        else:
            named = replace(place, device_class="gpu.example.com", resource="gpu.example.com/gpu")
            pools.append(replace(pool, place=named))
    return replace(FLEET, pools=tuple(pools))


def test_a_job_on_a_pool_with_a_device_class_claims_its_gpus() -> None:
    job = job_manifest(order(), claimed(), CLUSTER)
    pod = job["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": "fairway-4-gpu.example.com"}
    ]
    assert container(job)["resources"] == {"requests": {}, "limits": {}, "claims": [{"name": "gpus"}]}
    template = claim_template(order(), claimed())
    assert template is not None
    assert template["metadata"] == {
        "name": "fairway-4-gpu.example.com",
        "namespace": "research",
        "labels": {"app.kubernetes.io/managed-by": "fairway"},
    }
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 4
    }  # fmt: skip


def test_all_else_of_a_job_is_the_same_with_claims() -> None:
    plain, by_claim = made(), job_manifest(order(), claimed(), CLUSTER)
    del by_claim["spec"]["template"]["spec"]["resourceClaims"]
    container(by_claim)["resources"] = container(plain)["resources"]
    assert by_claim == plain
    assert claim_template(order(), FLEET) is None


def test_a_preview_shows_the_template_of_a_jobs_claims() -> None:
    template = claim_template(order(), claimed())
    assert template is not None
    job = job_manifest(order(), claimed(), CLUSTER)
    assert list(yaml.safe_load_all(preview(template, job))) == [template, job]
