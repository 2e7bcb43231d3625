"""Helm, built by Go from its module: charts are installed by what their users install them with."""

from __future__ import annotations

from pathlib import Path

from lab import folders
from lab.kubernetes.builds import STATIC, STRIPPED, module, tool
from lab.progress import step
from lab.versions import HELM, KUBERNETES

MODULE = "helm.sh/helm/v3"


def program() -> Path:
    """The command line `helm`."""
    return folders.built("helm", HELM, _build) / "helm"


def _build(out: Path) -> None:
    with step(f"build helm {HELM}"):
        sources = module(MODULE, HELM)
        tool("go", "build", "-o", f"{out}/", "-ldflags", _flags(), "./cmd/helm", cwd=sources, env=STATIC)


def _flags() -> str:
    """Without these it is nobody's release, and renders for a Kubernetes of years ago."""
    major, minor, _ = KUBERNETES.lstrip("v").split(".")
    said = {"internal/version.version": HELM}
    for package in ("pkg/chartutil", "pkg/lint/rules"):
        said |= {f"{package}.k8sVersionMajor": major, f"{package}.k8sVersionMinor": minor}
    return " ".join([STRIPPED, *(f"-X {MODULE}/{name}={value}" for name, value in said.items())])
