"""What Fairway itself may do in the cluster: exactly what a user's administrator grants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from lab.kubernetes.api import Json
from lab.kubernetes.pki import FAIRWAY

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rights.yaml"
RBAC = "rbac.authorization.k8s.io"


def fairway_access() -> Iterator[Json]:
    """The documented manifest, its bindings given to user `fairway`, who speaks with a token here.

    Under names of their own: who follows the docs and applies the manifest takes nothing from the lab.
    """
    for wanted in yaml.safe_load_all(MANIFEST.read_text()):
        if "subjects" in wanted:
            wanted["subjects"] = [{"kind": "User", "apiGroup": RBAC, "name": FAIRWAY.name}]
            wanted["metadata"]["name"] = f"lab-{wanted['metadata']['name']}"
        yield wanted
