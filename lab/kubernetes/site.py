"""A site: what a Kubernetes cluster has that its administrators set up (see sites/README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import sites
from lab.kubernetes import kwok
from lab.kubernetes.api import Json

SITES = Path(__file__).parent / "sites"


def site_names() -> list[str]:
    """The names of all sites."""
    return sites.names(SITES, "objects.yaml")


@dataclass(frozen=True, slots=True)
class Site:
    """The files of one site."""

    name: str

    def __post_init__(self) -> None:
        sites.require(self.name, site_names())

    @property
    def kueue(self) -> dict[str, Any] | None:
        """Top-level keys of Kueue's configuration; None if the site has no Kueue."""
        file = SITES / self.name / "kueue.yaml"
        return dict(yaml.safe_load(file.read_text())) if file.exists() else None

    @property
    def operators(self) -> list[str]:
        """Those it has, as `--with` names them."""
        file = SITES / self.name / "operators.yaml"
        return list(yaml.safe_load(file.read_text())) if file.exists() else []

    @property
    def nodes(self) -> list[Json]:
        """Its nodes, for KWOK to play."""
        return [
            kwok.site_node(f"{row['name']}-{number}", row)
            for row in yaml.safe_load((SITES / self.name / "nodes.yaml").read_text())
            for number in range(row["count"])
        ]

    @property
    def objects(self) -> list[Json]:
        """Its objects, in the order in which they are applied."""
        return list(yaml.safe_load_all((SITES / self.name / "objects.yaml").read_text()))
