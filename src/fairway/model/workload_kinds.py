"""Define the kinds of workloads on Kubernetes: what owner references do not tell about them.

A workload is what a person created: the root owner of GPU pods, of any kind. A kind that is missing here is
seen, named and charged all the same; this registry adds how to hold it, which Kueue integration queues it,
and where its pod templates are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GROUP_KIND: Final = "PodGroup"
"""What Fairway calls pods that share a label with the name of their group: no object owns them."""


class HoldBy(StrEnum):
    """How a workload is held, and released."""

    WORKLOAD = "workload"
    """By `active: false` of its Kueue Workload."""
    REPLICAS = "replicas"
    """By 0 replicas. Kueue has one Workload for each pod, and a pod that was stopped is replaced at once."""
    SUSPEND = "suspend"
    """By `suspend: true` of the object itself, which creates other workloads on a schedule."""
    NOTHING = "nothing"
    """Not at all: a pod that stops does not come back."""


@dataclass(frozen=True, slots=True)
class PodTemplatePath:
    """Where a kind has pod templates, and how many pods it creates from each.

    In a path, `*` means every item of a list and for every value of a mapping.
    """

    template: tuple[str, ...]
    counts: tuple[tuple[str, ...], ...] = ()
    """Paths of numbers that multiply to the number of pods; one that is missing counts as 1."""
    leader: tuple[str, ...] = ()
    """Path of a template for the first pod of each group: if it is there, the last count is less by one."""


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload."""

    group: str
    version: str
    kind: str
    plural: str
    framework: str
    """Its name in `integrations.frameworks` of Kueue's configuration; empty: Kueue queues what it creates."""
    service: bool
    """Whether it runs until somebody ends it. Others finish by themselves."""
    hold: HoldBy
    templates: tuple[PodTemplatePath, ...] = ()
    """Empty: it has none, or its templates are in other objects."""
    resources: PodTemplatePath | None = None
    """Where a kind whose templates are in other objects has the resources of each pod."""
    objects: tuple[str, ...] = ()
    """Path of whole objects of other kinds that it creates."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Return its name with the group, as the API server and kubectl have it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of its objects in a namespace, or of one of them."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


def _at(path: str, *counts: str) -> PodTemplatePath:
    return PodTemplatePath(tuple(path.split(".")), tuple(tuple(count.split(".")) for count in counts))


_REPLICATED: Final = (_at("spec.template", "spec.replicas"),)


def _ray(spec: str) -> tuple[PodTemplatePath, ...]:
    group = f"{spec}.workerGroupSpecs.*"
    workers = _at(f"{group}.template", f"{group}.replicas", f"{group}.numOfHosts")
    return _at(f"{spec}.headGroupSpec.template"), workers


def _kubeflow(kind: str, replicas: str, version: str = "v1") -> WorkloadKind:
    plural, at = f"{kind.lower()}s", f"spec.{replicas}.*"
    templates = (_at(f"{at}.template", f"{at}.replicas"),)
    return WorkloadKind(
        "kubeflow.org",
        version,
        kind,
        plural,
        f"kubeflow.org/{kind.lower()}",
        False,
        HoldBy.WORKLOAD,
        templates,
    )


JOB: Final = WorkloadKind(
    "batch", "v1", "Job", "jobs", "batch/job", False, HoldBy.WORKLOAD,
    (_at("spec.template", "spec.parallelism"),),
)  # fmt: skip
JOB_SET: Final = WorkloadKind(
    "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", "jobset.x-k8s.io/jobset", False, HoldBy.WORKLOAD,
    (
        _at(
            "spec.replicatedJobs.*.template.spec.template",
            "spec.replicatedJobs.*.replicas",
            "spec.replicatedJobs.*.template.spec.parallelism",
        ),
    ),
)  # fmt: skip
POD: Final = WorkloadKind("", "v1", "Pod", "pods", "pod", False, HoldBy.NOTHING)
DEPLOYMENT: Final = WorkloadKind(
    "apps", "v1", "Deployment", "deployments", "deployment", True, HoldBy.REPLICAS, _REPLICATED
)

WORKLOAD_KINDS: Final = (
    JOB,
    WorkloadKind(
        "batch", "v1", "CronJob", "cronjobs", "", False, HoldBy.SUSPEND,
        (_at("spec.jobTemplate.spec.template", "spec.jobTemplate.spec.parallelism"),),
    ),
    JOB_SET,
    WorkloadKind(
        "trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs", "trainer.kubeflow.org/trainjob", False,
        HoldBy.WORKLOAD, resources=_at("spec.trainer.resourcesPerNode", "spec.trainer.numNodes"),
    ),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs"),
    _kubeflow("TFJob", "tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
    _kubeflow("PaddleJob", "paddleReplicaSpecs"),
    _kubeflow("JAXJob", "jaxReplicaSpecs"),
    _kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1"),
    WorkloadKind(
        "ray.io", "v1", "RayJob", "rayjobs", "ray.io/rayjob", False, HoldBy.WORKLOAD,
        _ray("spec.rayClusterSpec"),
    ),
    WorkloadKind(
        "ray.io", "v1", "RayCluster", "rayclusters", "ray.io/raycluster", True, HoldBy.WORKLOAD, _ray("spec")
    ),
    WorkloadKind(
        "ray.io", "v1", "RayService", "rayservices", "ray.io/rayservice", True, HoldBy.WORKLOAD,
        _ray("spec.rayClusterConfig"),
    ),
    WorkloadKind(
        "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets",
        "leaderworkerset.x-k8s.io/leaderworkerset", True, HoldBy.WORKLOAD,
        (
            _at("spec.leaderWorkerTemplate.leaderTemplate", "spec.replicas"),
            PodTemplatePath(
                ("spec", "leaderWorkerTemplate", "workerTemplate"),
                (("spec", "replicas"), ("spec", "leaderWorkerTemplate", "size")),
                leader=("spec", "leaderWorkerTemplate", "leaderTemplate"),
            ),
        ),
    ),
    WorkloadKind(
        "apps", "v1", "StatefulSet", "statefulsets", "statefulset", True, HoldBy.WORKLOAD, _REPLICATED
    ),
    DEPLOYMENT,
    WorkloadKind(
        "workload.codeflare.dev", "v1beta2", "AppWrapper", "appwrappers", "workload.codeflare.dev/appwrapper",
        False, HoldBy.WORKLOAD, objects=("spec", "components", "*", "template"),
    ),
    POD,
)  # fmt: skip
"""The registered kinds."""

_BY_NAME: Final = {(kind.group, kind.kind): kind for kind in WORKLOAD_KINDS}


def workload_kind(api_version: str, kind: str) -> WorkloadKind | None:
    """Return a registered kind, whatever its version. Returns None if it is not registered."""
    return _BY_NAME.get((api_version.rpartition("/")[0], kind))
