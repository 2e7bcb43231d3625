"""What Fairway itself may do in the cluster: the least that it needs to observe."""

from __future__ import annotations

from collections.abc import Iterator

from lab.kubernetes.api import Json
from lab.kubernetes.pki import FAIRWAY

READ = ["get", "list", "watch"]
RBAC = "rbac.authorization.k8s.io"


def fairway_access() -> Iterator[Json]:
    """A role for user `fairway` and its binding."""
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "fairway-observe"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": READ},
            {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": READ},
        ],
    }
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "fairway-observe"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "fairway-observe"},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": FAIRWAY.name}],
    }
