"""Helm, built by Go from its module: charts are installed by what their users install them with."""

from __future__ import annotations

from pathlib import Path

from lab import folders
from lab.kubernetes.builds import STATIC, STRIPPED, module, tool
from lab.progress import step
from lab.versions import HELM

MODULE = "helm.sh/helm/v3"


def program() -> Path:
    """The command line `helm`."""
    return folders.built("helm", HELM, _build) / "helm"


def _build(out: Path) -> None:
    with step(f"build helm {HELM}"):
        sources = module(MODULE, HELM)
        said = f"{STRIPPED} -X {MODULE}/internal/version.version={HELM}"
        tool("go", "build", "-o", f"{out}/", "-ldflags", said, "./cmd/helm", cwd=sources, env=STATIC)
