"""Jobs as users of Kubernetes write them: plain manifests, and what some might try to get round a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.kubernetes.kwok import MODEL, RUN_FOR

if TYPE_CHECKING:
    from lab.kubernetes.api import Json
    from tests.scenarios.hand import Order

QUEUE = "kueue.x-k8s.io/queue-name"
CLASS = "kueue.x-k8s.io/priority-class"
PRODUCT = "nvidia.com/gpu.product"
PREEMPTIBLE = "low"
"""A class that is always preemptible has a queue of its own, as docs/engines/kubernetes.md says to users."""
LOST_AFTER_SECONDS = 2  # what a user who wants to move on quickly writes; Kubernetes' own default is 300

LIMITS = "a Job with limits only"
BOTH = "a Job with requests and limits"
OPEN = "a Job that says suspend: false"
WAYS = (LIMITS, BOTH, OPEN)


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The names by which a cluster's administrators tell its nodes apart."""

    topology: str = "topology.fairway"
    spot: str = "fairway"

    @property
    def block(self) -> str:
        return f"{self.topology}/block"

    @property
    def rack(self) -> str:
        return f"{self.topology}/rack"

    @property
    def spot_taint(self) -> str:
        return f"{self.spot}/spot"

    def of(self, pool: str) -> dict[str, str]:
        """How users point at a pool's nodes."""
        gpu, mig = {PRODUCT: MODEL, "type": "kwok"}, {PRODUCT: f"{MODEL}-MIG"}
        return {"gpu": gpu, "mig": mig, "spot": {f"{self.spot}/capacity": "spot"}}[pool]


LAB = NodeLabels()
SITE = NodeLabels("example.com", "example.com")


def job_manifest(name: str, order: Order, labels: NodeLabels) -> Json:
    """The Job a user would write. It names a queue only where a priority needs one."""
    words = {CLASS: order.priority} if order.priority else {}
    if order.priority == PREEMPTIBLE:
        words[QUEUE] = PREEMPTIBLE
    annotations = {RUN_FOR: f"{max(1, round(order.seconds))}s"}
    if order.together:
        annotations["kueue.x-k8s.io/podset-required-topology"] = labels.rack
    spec: dict[str, Any] = {
        "parallelism": order.nodes,
        "completions": order.nodes,
        "backoffLimit": 6 if order.tolerates_loss else 0,
        "template": {"metadata": {"annotations": annotations}, "spec": pod_spec(order, labels)},
    }
    if order.nodes > 1:
        spec["completionMode"] = "Indexed"
    if order.limit_seconds is not None:
        spec["activeDeadlineSeconds"] = order.limit_seconds
    if order.way == OPEN:
        spec["suspend"] = False
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": words},
        "spec": spec,
    }


def pod_spec(order: Order, labels: NodeLabels) -> Json:
    """What the pods ask for. Pool `gpu` is what one gets without a word; others are pointed at."""
    resource = f"nvidia.com/mig-{order.slice}" if order.slice else "nvidia.com/gpu"
    wanted = {"limits": {resource: str(order.gpus)}}
    if order.way == BOTH:
        wanted["requests"] = wanted["limits"]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": wanted}],
    }
    if order.pool == "spot":
        spec["nodeSelector"] = labels.of("spot")
    if order.tolerates_loss:
        spec["tolerations"] = [{"key": labels.spot_taint, "operator": "Exists"}, *_soon_elsewhere()]
    return spec


def _soon_elsewhere() -> list[Json]:
    return [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_AFTER_SECONDS,
        }
        for what in ("not-ready", "unreachable")
    ]


def smuggled(
    order: Order, name: Callable[[], str], node: str, labels: NodeLabels
) -> Iterator[tuple[str, Json]]:
    """Manifests that reach for a pool the team has no grant on, with what each tries; `node` is one of it."""
    there = labels.of(order.pool)
    anything: Json = {"tolerations": [{"operator": "Exists"}]}
    wanted = [{"matchExpressions": [{"key": k, "operator": "In", "values": [v]} for k, v in there.items()]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
    tries: dict[str, Json] = {
        "nodeSelector": {"nodeSelector": there, **anything},
        "node affinity": {"affinity": {"nodeAffinity": required}, **anything},
        "nodeName": {"nodeName": node, **anything},
        "another scheduler": {"schedulerName": "mine", "nodeSelector": there, **anything},
        "priorityClassName": {
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": there,
            **anything,
        },
    }
    for way, extra in tries.items():
        job = job_manifest(name(), order, labels)
        job["spec"]["template"]["spec"] |= extra
        yield way, job
    for queue in ("lent", "other-team"):
        job = job_manifest(name(), order, labels)
        job["metadata"]["labels"][QUEUE] = queue
        job["spec"]["template"]["spec"] |= tries["nodeSelector"]
        yield f"queue {queue}", job
    elsewhere = job_manifest(name(), order, labels)
    elsewhere["metadata"]["namespace"] = "default"
    elsewhere["spec"]["template"]["spec"] |= tries["nodeSelector"]
    yield "a Job outside the team's namespace", elsewhere
    for way in ("nodeSelector", "nodeName"):
        metadata = {"name": name(), "annotations": {RUN_FOR: f"{round(order.seconds)}s"}}
        yield (
            f"a bare pod with {way}",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": pod_spec(order, labels) | tries[way],
            },
        )
