"""What the tests of the Kubernetes lab submit and look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.errors import LabError
from lab.kubernetes import Api, ApiError
from lab.kubernetes.api import NOT_NOW
from lab.kubernetes.kwok import MODEL, RUN_FOR
from lab.waiting import wait_until

KUEUE = "kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


def a_queue(api: Api, gpus: int) -> None:
    """A queue named `a` over the KWOK nodes' GPUs."""
    quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "a", "resources": [quota]}]}
    specs: dict[str, dict[str, Any]] = {
        "ResourceFlavor": {"nodeLabels": {"nvidia.com/gpu.product": MODEL}},
        "ClusterQueue": {"namespaceSelector": {}, "resourceGroups": [group]},
        "LocalQueue": {"clusterQueue": "a"},
    }
    for kind, spec in specs.items():
        api.apply({"apiVersion": KUEUE, "kind": kind, "metadata": {"name": "a"}, "spec": spec})


def a_job(name: str, gpus: int, run_for: str = "1s", queue: str | None = "a") -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {}},
        "spec": {
            "template": {
                "metadata": {"annotations": {RUN_FOR: run_for}},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def holds(api: Api, path: str, condition: str) -> bool:
    """Whether the object has that condition now."""
    conditions = api.get(path).get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def status_of(act: Callable[[], object]) -> int:
    """The HTTP status with which the API server refused, 200 if it did not."""
    try:
        act()
    except ApiError as error:
        return error.status
    return 200


def until(what: str, look: Callable[[], bool], seconds: float = 60) -> None:
    """Wait, also while a server or a node's program is away."""

    def calm() -> bool:
        try:
            return look()
        except (*NOT_NOW, LabError):
            return False

    wait_until(calm, seconds, f"not seen: {what}")
