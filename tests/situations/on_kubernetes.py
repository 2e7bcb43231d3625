"""Situations of Kubernetes and Kueue: queues, quotas of namespaces, admission, and pods that do not start."""

from __future__ import annotations

from typing import Any

from tests.situations.kueue import GPU, KUEUE, POOL, QUEUE_NAME, KubernetesDesk
from tests.situations.resolve import apply_again, in_own_namespace, own_image
from tests.situations.situation import KUBERNETES, situation

NO_QUEUES = "Slurm has no queues by name"
NO_NAMESPACES = "Slurm has no namespaces"
NO_CONTAINERS = "Fairway starts no containers on Slurm"


@situation(
    "native kubectl job without a queue, in no team's namespace",
    "NotQueued",
    shows=["in namespace default", "fairway get teams"],
    only=KUBERNETES,
    because="see `job_submit.lua` above",
    resolve=in_own_namespace,
)
def not_queued(desk: KubernetesDesk) -> str:
    return desk.kubectl("default")


@situation(
    "it names a queue that does not exist",
    "QueueMissing",
    shows=["queue absent, which namespace default does not have"],
    only=KUBERNETES,
    because=NO_QUEUES,
)
def queue_missing(desk: KubernetesDesk) -> str:
    return desk.kubectl("default", labels={QUEUE_NAME: "absent"})


@situation(
    "its queue does not serve its namespace",
    "NamespaceNotAllowed",
    shows=["Queue foreign does not serve the job's namespace default"],
    only=KUBERNETES,
    because=NO_NAMESPACES,
)
def namespace_not_allowed(desk: KubernetesDesk) -> str:
    desk.queue("default", "foreign", "research")
    return desk.kubectl("default", labels={QUEUE_NAME: "foreign"})


@situation(
    "somebody stopped the team's queue",
    "QueueStopped",
    shows=["stopPolicy of ClusterQueue product was set by", "fairway apply"],
    only=KUBERNETES,
    because=NO_QUEUES,
    resolve=apply_again,
)
def queue_stopped(desk: KubernetesDesk) -> str:
    path = f"{KUEUE}/clusterqueues/product"
    desk.undo.callback(desk.tools.api.merge, path, {"spec": {"stopPolicy": "None"}})
    desk.tools.api.merge(path, {"spec": {"stopPolicy": "Hold"}})
    return desk.submit("product", 1)


@situation(
    "a flavor of the queue is missing",
    "QueueBroken",
    shows=["FlavorNotFound"],
    only=KUBERNETES,
    because=NO_QUEUES,
)
def queue_broken(desk: KubernetesDesk) -> str:
    quota = {"name": "gone", "resources": [{"name": GPU, "nominalQuota": "8"}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "broken"}}
    desk.tools.make(f"{KUEUE}/clusterqueues", {**kind, "spec": spec})
    desk.undo.callback(desk.tools.remove, f"{KUEUE}/clusterqueues/broken")
    desk.queue("default", "broken", "broken")
    desk.undo.callback(desk.clear)
    return desk.kubectl("default", labels={QUEUE_NAME: "broken"})


def quota(desk: KubernetesDesk, namespace: str, name: str, hard: dict[str, str]) -> None:
    """Make a ResourceQuota, until the situation is over."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    desk.tools.make(path, {"metadata": {"name": name}, "spec": {"hard": hard}})
    desk.undo.callback(desk.tools.remove, f"{path}/{name}")


@situation(
    "a ResourceQuota of the site is used up",
    "NamespaceQuota",
    shows=["exceeded quota: few-pods"],
    only=KUBERNETES,
    because=NO_NAMESPACES,
)
def namespace_quota(desk: KubernetesDesk) -> str:
    quota(desk, "research", "few-pods", {"pods": "0"})
    return desk.submit("research", 1)


@situation(
    "the job violates a LimitRange of its namespace",
    "NamespaceLimit",
    shows=["LimitRange"],
    only=KUBERNETES,
    because=NO_NAMESPACES,
)
def namespace_limit(desk: KubernetesDesk) -> str:
    path = "/api/v1/namespaces/research/limitranges"
    limits = [{"type": "Container", "max": {"memory": "1Gi"}, "default": {"memory": "512Mi"}}]
    desk.tools.make(path, {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    desk.undo.callback(desk.tools.remove, f"{path}/small")
    more: dict[str, Any] = {"resources": {"limits": {GPU: "1", "memory": "2Gi"}}}
    return desk.kubectl("research", 0, **more)


@situation(
    "a gate of the site's own has not admitted it",
    "AdmissionCheck",
    shows=["gated by"],
    only=KUBERNETES,
    because="Slurm has no admission checks",
)
def admission_gated(desk: KubernetesDesk) -> str:
    return desk.kubectl("research", annotations={"kueue.x-k8s.io/admission-gated-by": "example.com/review"})


@situation(
    "an admission policy of the site refuses its pods",
    "PodRefused",
    shows=["no pods today"],
    only=KUBERNETES,
    because="Slurm has no pods",
)
def pod_refused(desk: KubernetesDesk) -> str:
    root = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    space = {"matchLabels": {"kubernetes.io/metadata.name": "research"}}
    match = {"resourceRules": [rule], "namespaceSelector": space}
    validations = [{"expression": "false", "message": "no pods today"}]
    policy = {
        "metadata": {"name": "no-pods"},
        "spec": {"matchConstraints": match, "validations": validations},
    }
    binding = {
        "metadata": {"name": "no-pods"},
        "spec": {"policyName": "no-pods", "validationActions": ["Deny"]},
    }
    for plural, body in (
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", binding),
    ):
        desk.tools.make(f"{root}/{plural}", body)
        desk.undo.callback(desk.tools.remove, f"{root}/{plural}/no-pods")
    desk.tools.until_refused("research", "no pods today")
    return desk.submit("research", 1)


@situation(
    "its image cannot be pulled",
    "ImagePullFailed",
    shows=["none/such"],
    only=KUBERNETES,
    because=NO_CONTAINERS,
    resolve=own_image,
)
def image_pull_failed(desk: KubernetesDesk) -> str:
    return desk.submit("research", 1, pool="side", image="127.0.0.1:9/none/such:1")


@situation(
    "its container cannot start",
    "ContainerFails",
    only=KUBERNETES,
    because=NO_CONTAINERS,
)
def container_fails(desk: KubernetesDesk) -> str:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "key"}}}]
    more: dict[str, Any] = {
        "image": "localhost/python:3",
        "imagePullPolicy": "Never",
        "command": ["sleep", "60"],
        "env": env,
    }
    return desk.kubectl("research", selector={"type": "real"}, **more)


@situation(
    "a taint that the job does not tolerate",
    "NoNodeFits",
    shows=["4 with the taint site.example/repair"],
    only=KUBERNETES,
    because="Slurm has no taints",
)
def taint(desk: KubernetesDesk) -> str:
    repair = {"key": "site.example/repair", "value": "yes", "effect": "NoSchedule"}
    for node in desk.engine.nodes:
        path = f"/api/v1/nodes/{node}"
        desk.undo.callback(desk.tools.api.merge, path, {"spec": {"taints": []}})
        desk.tools.api.merge(path, {"spec": {"taints": [repair]}})
    return desk.submit("research", 1)


@situation(
    "a label that no node has",
    "NoNodeFits",
    only=KUBERNETES,
    because="see the feature above",
)
def no_such_label(desk: KubernetesDesk) -> str:
    return desk.kubectl("research", selector={**POOL, "site.example/nvlink": "yes"})
