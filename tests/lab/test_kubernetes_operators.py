"""The operators that `--with` adds: each is the real one, makes pods that run, and heals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.instance import find, obtain
from lab.kubernetes import Cluster
from lab.kubernetes.kwok import RUN_FOR
from lab.kubernetes.operators import OPERATORS, chosen
from tests.lab.kubernetes_jobs import PODS, holds, status_of, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    options = {"nodes": 2, **dict.fromkeys(chosen(["lws", "trainer", "kuberay"]), 1)}
    instance = obtain("kubernetes", f"test-{os.getpid()}-operators", None, options)
    try:
        instance.up()
        yield Cluster(instance)
    finally:
        instance.wipe()


def _template(gpus: int, run_for: str = "") -> Manifest:
    devices = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    annotations = {"annotations": {RUN_FOR: run_for}} if run_for else {}
    return {"metadata": annotations, "spec": {"containers": [{"name": "main", "image": "none", **devices}]}}


def _batch(gpus: int, run_for: str) -> Manifest:
    template = _template(gpus, run_for)
    template["spec"]["restartPolicy"] = "Never"
    return {"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}}


def a_jobset(name: str, run_for: str = "600s") -> Manifest:
    jobs = [
        {"name": "driver", "replicas": 1, "template": _batch(0, run_for)},
        {"name": "workers", "replicas": 2, "template": _batch(1, run_for)},
    ]
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": jobs})


def a_leader_worker_set(name: str) -> Manifest:
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 3, "workerTemplate": _template(1)}}
    return _object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec)


def a_train_job(name: str) -> Manifest:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
    trainer["env"] = [{"name": "LAB_RUN_FOR", "value": "600s"}]
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec)


def a_ray_cluster(name: str) -> Manifest:
    head = {"rayStartParams": {}, "template": _template(0)}
    workers = {"groupName": "gpu", "replicas": 2, "minReplicas": 1, "maxReplicas": 4, "rayStartParams": {}}
    spec = {"headGroupSpec": head, "workerGroupSpecs": [{**workers, "template": _template(1)}]}
    return _object("ray.io/v1", "RayCluster", name, spec)


def _object(version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (a_jobset, "jobset.sigs.k8s.io/jobset-name"),
        (a_leader_worker_set, "leaderworkerset.sigs.k8s.io/name"),
        (a_train_job, "jobset.sigs.k8s.io/jobset-name"),
        (a_ray_cluster, "ray.io/cluster"),
    ],
)
def test_pods_of_each_kind_run(cluster: Cluster, make: Callable[[str], Manifest], label: str) -> None:
    name = make.__name__.replace("_", "-")
    wanted = make(name)
    pods = 2 if make is a_train_job else 3
    cluster.api.apply(wanted)
    running = f"{PODS}?labelSelector={label}={name}&fieldSelector=status.phase=Running"
    until(f"{pods} pods of {name} run", lambda: len(cluster.api.get(running)["items"]) == pods)
    cluster.api.delete(cluster.api.path_of(wanted), propagationPolicy="Background")


def test_an_operator_is_killed_and_started_again(cluster: Cluster) -> None:
    assert set(OPERATORS) <= set(cluster.instance.alive)
    cluster.instance.kill("jobset")
    assert cluster.instance.dead == ["jobset"]
    refused = status_of(lambda: cluster.api.apply(a_jobset("early", "1s")))
    assert refused == 500  # its webhooks fail closed, as out in the world
    cluster.instance.start("jobset")
    wanted = a_jobset("late", "1s")
    cluster.api.apply(wanted)
    until("it completes", lambda: holds(cluster.api, cluster.api.path_of(wanted), "Completed"))


def test_each_acts_as_its_service_account(cluster: Cluster) -> None:
    for name, operator in OPERATORS.items():
        words = ("kubectl", f"--kubeconfig={cluster.pki.kubeconfig(name)}", "auth", "whoami", "-o", "yaml")
        assert operator.user in cluster.instance.run(*words).stdout


def test_down_and_up_keeps_them(cluster: Cluster) -> None:
    cluster.instance.down()
    known = find(cluster.instance.name)
    assert known is not None
    known.up()
    assert set(OPERATORS) <= set(known.alive)
