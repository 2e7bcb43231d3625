"""A Slurm site before, with and after Fairway, by the very pieces the server uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.engines.slurm import SlurmEngine
from fairway.files import compose_fleet, parse_fleet
from fairway.model.names import ClusterName
from fairway.services.import_cluster import import_cluster

if TYPE_CHECKING:
    from fairway.engines.port import ImportedPolicy
    from fairway.model.fleet import Cluster, Fleet, Pool
    from lab.instance import Instance

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: site
currency: USD
clusters:
  site: {{ engine: slurm, url: {url}, credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }} }}
"""
SITE = ClusterName("site")


@dataclass
class SlurmSite:
    """One site and the fleet that governs it."""

    instance: Instance
    fleet: Fleet | None = None
    text: str = ""
    """The fleet file."""

    async def import_fleet(self) -> ImportedPolicy:
        """Read what is there; the fleet goes through its file, as a user's does."""
        head = parse_fleet(HEAD.format(**self.instance.facts()), "head.yaml")
        imported = await import_cluster(self.build, head, SITE)
        remarks = [(remark.about, remark.text) for remark in imported.remarks]
        self.text = compose_fleet(imported.fleet, remarks)
        self.fleet = parse_fleet(self.text, "site.yaml")
        return imported

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> SlurmEngine:
        """An engine for the site, as the server builds one."""
        return SlurmEngine(cluster, pools)
