"""A real Kubernetes + Kueue of the lab: manifests as people write them, and what administrators change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lab import Instance
from lab.kubernetes import kwok
from lab.kubernetes.api import Api, ApiError
from tests.situations.desk import PEOPLE, Desk
from tests.waiting import until

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
GPU: Final = "nvidia.com/gpu"
POOL: Final = {"type": "kwok", "nvidia.com/gpu.product": kwok.MODEL}
"""How a Job points at the nodes of pool `gpu`."""
_IN_FORCE_SECONDS: Final = 30


@dataclass
class KubernetesTools:
    """The API server of one cluster, as administrators and as members use it."""

    instance: Instance
    nodes: tuple[str, ...] = tuple(f"gpu-{number:04}" for number in range(4))
    _members: dict[str, Api] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def api(self) -> Api:
        """The API as an administrator."""
        return self.member("admin")

    def member(self, name: str) -> Api:
        if name not in self._members:
            facts = self.instance.facts()
            file = facts["kubeconfig"] if name == "admin" else facts[f"{name}_kubeconfig"]
            self._members[name] = Api.from_kubeconfig(Path(file))
        return self._members[name]

    def native(self, team: str, user: str, gpus: int, *, nodes: int = 1, node: str | None = None) -> str:
        selector = {**POOL, **({"kubernetes.io/hostname": node} if node else {})}
        return self.create(team, user, gpus, nodes=nodes, selector=selector)

    def create(
        self,
        namespace: str,
        user: str,
        gpus: int = 1,
        *,
        nodes: int = 1,
        selector: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        pod: Mapping[str, Any] | None = None,
        **container: Any,
    ) -> str:
        """`kubectl create` of a Job; returns the engine's id."""
        name = f"native-{next(self._numbers)}"
        gpu = {"resources": {"limits": {GPU: str(gpus)}}} if gpus else {}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": dict(selector or {}),
            "containers": [{"name": "main", "image": "some/image:1", **gpu, **container}],
            **(pod or {}),
        }
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "spec": {
                "parallelism": nodes,
                "completions": nodes,
                "backoffLimit": 0,
                "activeDeadlineSeconds": 1800,
                "template": {"metadata": {"annotations": {kwok.RUN_FOR: "900s"}}, "spec": spec},
            },
        }
        made = until(
            lambda: self._created(self.member(user), namespace, body),
            _IN_FORCE_SECONDS,
            f"a job in {namespace}",
        )
        assert made is not None
        return f"{namespace}/{name}/{made['metadata']['uid'][:8]}"

    def _created(self, api: Api, namespace: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Create a Job, unless the API server does not assign queues yet, some seconds after an apply."""
        try:
            made: dict[str, Any] = api.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
        except ApiError as error:
            if "needs a queue" not in str(error):
                raise
            return None
        return made

    def drain(self, nodes: Iterable[str], reason: str) -> None:
        for node in nodes:
            self.api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})

    def resume(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})

    def go_away(self) -> None:
        self.instance.kill("kube-apiserver")

    def come_back(self) -> None:
        self.instance.up()

    def applied(self) -> None:
        """Nothing: an apply writes all there is."""

    def until_refused(self, namespace: str, message: str) -> None:
        """Wait until an admission policy is in force, some seconds after it was made."""
        pod = {
            "metadata": {"name": "try"},
            "spec": {"containers": [{"name": "main", "image": "some/image:1"}]},
        }

        def refused() -> bool:
            try:
                self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
            except ApiError as error:
                return message in str(error)
            return False

        until(refused, _IN_FORCE_SECONDS, f"the policy that says {message}")

    def make(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object as an administrator."""
        self.api.call("POST", path, dict(body))

    def remove(self, path: str) -> None:
        """Delete an object that may be gone."""
        with suppress(ApiError):
            self.api.delete(path)


class KubernetesDesk(Desk):
    """A desk whose engine is Kubernetes with Kueue."""

    @property
    def tools(self) -> KubernetesTools:
        assert isinstance(self.engine, KubernetesTools)
        return self.engine

    def kubectl(self, namespace: str, gpus: int = 1, *, by: str | None = None, **more: Any) -> str:
        """Create a Job by kubectl; gives Fairway's id."""
        user = by or PEOPLE.get(namespace, "admin")
        more.setdefault("selector", POOL)
        return self.known(self.tools.create(namespace, user, gpus, **more), user)

    def queue(self, namespace: str, name: str, cluster_queue: str) -> None:
        """Make a LocalQueue by hand, until the situation is over."""
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": name},
            "spec": {"clusterQueue": cluster_queue},
        }
        path = f"{KUEUE}/namespaces/{namespace}/localqueues"
        self.tools.make(path, body)
        self.undo.callback(self.tools.remove, f"{path}/{name}")
