"""What Fairway itself may do in the cluster: exactly what a user's administrator grants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from lab.kubernetes.api import Json
from lab.kubernetes.pki import FAIRWAY

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rights.yaml"
CORDONS = MANIFEST.with_name("cordon-rights.yaml")
RBAC = "rbac.authorization.k8s.io"


def fairway_access() -> Iterator[Json]:
    """The documented manifests, their bindings given to user `fairway`, who speaks with a token here.

    Under names of their own: who follows the docs and applies the manifest takes nothing from the lab. Jobs
    may be made in every namespace: tests run them in namespaces that no apply made. The manifest as it is:
    tests/integration/policy/test_kubernetes_rights.py.
    """
    subjects = [{"kind": "User", "apiGroup": RBAC, "name": FAIRWAY.name}]
    for wanted in (one for file in (MANIFEST, CORDONS) for one in yaml.safe_load_all(file.read_text())):
        bound = wanted["metadata"].pop("annotations", {}).get("fairway.dev/bind-to")
        if "subjects" in wanted:
            wanted["subjects"] = subjects
            wanted["metadata"]["name"] = f"lab-{wanted['metadata']['name']}"
        yield wanted
        if bound:
            name = wanted["metadata"]["name"]
            role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
            yield {
                "apiVersion": f"{RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"lab-{name}"},
                "roleRef": role,
                "subjects": subjects,
            }
