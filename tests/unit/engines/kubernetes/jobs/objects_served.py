"""An API server of plain objects: metadata, discovery, lists; no Kubernetes behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx2

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import Owner

SERVER = "https://cloud.example"
PLURALS = {
    ("v1", "Pod"): "pods",
    ("v1", "Node"): "nodes",
    ("batch/v1", "Job"): "jobs",
    ("batch/v1", "CronJob"): "cronjobs",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobsets",
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkersets",
    ("acme.io/v1", "Thing"): "things",
    ("kueue.x-k8s.io/v1beta2", "Workload"): "workloads",
}


class ObjectsServed:
    """Objects by path, and what was asked for."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, int] = {}
        """Paths that begin so are answered with this status."""
        self.forbidden: set[tuple[str, str]] = set()
        """Methods and paths that the account has no right to."""
        self.asked: Counter[str] = Counter()
        self.sent: list[tuple[str, str, bytes]] = []

    def add(
        self, api_version: str, kind: str, name: str, owner: Owner | None = None, namespace: str = "research",
        **meta: Any,
    ) -> Owner:  # fmt: skip
        """Add an object; a reference to it, as its dependents have it."""
        uid = meta.pop("uid", f"uid-{kind}-{name}".lower())
        references = []
        if owner is not None:
            references = [
                {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
                 "controller": owner.controller}
            ]  # fmt: skip
        body = {
            "name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-11-18T12:00:00Z",
            "ownerReferences": references,
        }  # fmt: skip
        spec = {"spec": meta.pop("spec", {}), "status": meta.pop("status", {})}
        self.objects[self.path(api_version, kind, name, namespace)] = {"metadata": {**body, **meta}, **spec}
        return Owner(kind, name, uid, controller=True, api_version=api_version)

    def path(self, api_version: str, kind: str, name: str, namespace: str = "research") -> str:
        root = "/apis/" if "/" in api_version else "/api/"
        return f"{root}{api_version}/namespaces/{namespace}/{PLURALS[api_version, kind]}/{name}"

    def requests(self) -> KubeRequests:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer), base_url=SERVER)
        return KubeRequests(ApiServer(http, SERVER), 5)

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked[path] += 1
        if request.method != "GET":
            self.sent.append((request.method, path, request.content))
        for prefix, status in self.refused.items():
            if path.startswith(prefix):
                return httpx2.Response(status, json={"message": "no", "code": status})
        if (request.method, path) in self.forbidden:
            message = f'User "fairway" cannot delete resource "things" ({path})'
            return httpx2.Response(403, json={"message": message, "code": 403})
        version = path.removeprefix("/apis/").removeprefix("/api/")
        found = [
            {"name": plural, "kind": kind, "namespaced": kind != "Node"}
            for (api_version, kind), plural in PLURALS.items()
            if api_version == version
        ]
        if request.method in {"PATCH", "DELETE"}:
            return httpx2.Response(200 if path in self.objects else 404, json={})
        if found:
            return httpx2.Response(200, json={"resources": found})
        if path == "/apis":
            return httpx2.Response(200, json={"items": self._groups()})
        if path in self.objects:
            return httpx2.Response(200, json=self.objects[path])
        last = path.rpartition("/")[2]
        if last in PLURALS.values():
            return httpx2.Response(
                200, json={"metadata": {"resourceVersion": "7"}, "items": self._under(path)}
            )
        return httpx2.Response(404, json={"message": "not found", "code": 404})

    def _groups(self) -> list[dict[str, Any]]:
        kinds = [(v.rpartition("/"), kind) for v, kind in PLURALS if "/" in v]
        return [
            {
                "metadata": {"name": group},
                "versions": [
                    {
                        "version": version,
                        "resources": [{"responseKind": {"kind": kind}, "scope": "Namespaced"}],
                    }
                ],
            }
            for (group, _, version), kind in kinds
        ]

    def _under(self, path: str) -> list[dict[str, Any]]:
        root, _, plural = path.rpartition("/")
        root = root.partition("/namespaces/")[0] if path.count("/namespaces/") == 0 else root
        return [o for p, o in self.objects.items() if p.startswith(root) and p.split("/")[-2] == plural]
