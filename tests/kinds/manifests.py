"""Workloads of every kind as people write them: without a queue, a priority or anything of Fairway's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lab.kubernetes import kwok

Json = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
RUNTIME: Final = "fairway-tests"
"""The training runtime that TrainJobs refer to."""
UNKNOWN_GROUP: Final = "example.com"
UNKNOWN_KIND: Final = "Cruncher"


def pod_spec(gpus: int, *, batch: bool = True, cpu: bool = False) -> Json:
    """A pod on the nodes of KWOK. One that is batch work does not restart."""
    limits = {"cpu": "1"} if cpu else {GPU: str(gpus)}
    return {
        **({"restartPolicy": "Never"} if batch else {}),
        "nodeSelector": {"type": "kwok"},
        "containers": [{"name": "main", "image": "some/image:1", "resources": {"limits": limits}}],
    }


def _template(gpus: int, seconds: int | None, *, batch: bool = True, labels: Json | None = None) -> Json:
    meta: Json = {"labels": labels} if labels else {}
    if seconds is not None:
        meta["annotations"] = {kwok.RUN_FOR: f"{seconds}s"}
    elif batch:
        meta["annotations"] = {kwok.RUN_FOR: "3600s"}
    return {"metadata": meta, "spec": pod_spec(gpus, batch=batch)}


def _object(api_version: str, kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": _template(gpus, seconds)}
    return [_object("batch/v1", "Job", name, spec)]


def job_set(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    """A leader, and workers for the rest."""
    parts = {"leader": 1, "workers": pods - 1}
    replicated = [
        {
            "name": part,
            "replicas": 1,
            "template": {
                "spec": {
                    "parallelism": count,
                    "completions": count,
                    "backoffLimit": 0,
                    "template": _template(gpus, seconds),
                }
            },
        }
        for part, count in parts.items()
        if count
    ]
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": replicated})]


def train_job(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    """Its pods run until they are deleted: the runtime's template says how long."""
    trainer = {"numNodes": pods, "resourcesPerNode": {"limits": {GPU: str(gpus)}}}
    spec = {"runtimeRef": {"name": RUNTIME}, "trainer": trainer}
    return [_object("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec)]


def training_runtime() -> Json:
    """What the administrator of a cluster installs."""
    template = {
        "metadata": {"annotations": {kwok.RUN_FOR: "3600s"}},
        "spec": {
            "nodeSelector": {"type": "kwok"},
            "containers": [{"name": "node", "image": "some/image:1"}],
        },
    }
    replicated = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": template},
        },
    }
    made = _object(
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
        RUNTIME,
        {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [replicated]}}},
    )
    made["metadata"]["labels"] = {"trainer.kubeflow.org/framework": "torch"}
    return made


def _ray(gpus: int, pods: int) -> Json:
    head = {"rayStartParams": {}, "template": {"spec": pod_spec(0, batch=False, cpu=True)}}
    workers = {
        "groupName": "gpu",
        "replicas": pods,
        "minReplicas": 0,
        "maxReplicas": 16,
        "rayStartParams": {},
        "template": {"spec": pod_spec(gpus, batch=False)},
    }
    return {"rayVersion": "2.46.0", "headGroupSpec": head, "workerGroupSpecs": [workers]}


def ray_cluster(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    """A head without GPUs, and workers."""
    return [_object("ray.io/v1", "RayCluster", name, _ray(gpus, pods))]


def ray_job(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    submitter = _template(0, seconds)
    submitter["spec"] = pod_spec(0, cpu=True)
    spec = {
        "entrypoint": "true",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": _ray(gpus, pods),
        "submitterPodTemplate": submitter,
    }
    return [_object("ray.io/v1", "RayJob", name, spec)]


def leader_worker_set(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    """One replica of `pods` pods."""
    template = {"size": pods, "workerTemplate": {"spec": pod_spec(gpus, batch=False)}}
    return [
        _object(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            name,
            {"replicas": 1, "leaderWorkerTemplate": template},
        )
    ]


def _replicated(kind: str, name: str, gpus: int, pods: int, more: Json) -> list[Json]:
    labels = {"app": name}
    template = _template(gpus, None, batch=False, labels=labels)
    spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template, **more}
    return [_object("apps/v1", kind, name, spec)]


def deployment(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    return _replicated("Deployment", name, gpus, pods, {})


def stateful_set(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    return _replicated("StatefulSet", name, gpus, pods, {"serviceName": name})


def cron_job(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    (one,) = job(name, gpus, pods, seconds)
    spec = {
        "schedule": "* * * * *",
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"spec": one["spec"]},
    }
    return [_object("batch/v1", "CronJob", name, spec)]


def pod(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    """One pod with all the GPUs."""
    template = _template(gpus * pods, seconds)
    meta = {"name": name, "annotations": template["metadata"]["annotations"]}
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}]


def pod_group(name: str, gpus: int, pods: int, seconds: int | None = None) -> list[Json]:
    made = []
    for number in range(pods):
        (one,) = pod(f"{name}-{number}", gpus, 1, seconds)
        one["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": name}
        one["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(pods)
        made.append(one)
    return made


Manifests = Callable[..., list[Json]]

MANIFESTS: Final[Mapping[str, Manifests]] = {
    "Job": job,
    "CronJob": cron_job,
    "JobSet": job_set,
    "TrainJob": train_job,
    "RayJob": ray_job,
    "RayCluster": ray_cluster,
    "LeaderWorkerSet": leader_worker_set,
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "PodGroup": pod_group,
    "Pod": pod,
}
"""By kind: makes the objects of one workload with so many GPUs in each of so many pods."""


def unknown_kind() -> Json:
    """The definition of a kind that neither Kueue nor Fairway knows."""
    plural = f"{UNKNOWN_KIND.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{UNKNOWN_GROUP}"},
        "spec": {
            "group": UNKNOWN_GROUP,
            "scope": "Namespaced",
            "names": {"kind": UNKNOWN_KIND, "plural": plural, "singular": UNKNOWN_KIND.lower()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
