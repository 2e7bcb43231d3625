"""The fleet that import makes of a site, and its engine, by the very pieces the server uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairway.files import compose_fleet, parse_fleet
from fairway.model.names import ClusterName
from fairway.server.engines import build_engine
from fairway.services.import_cluster import import_cluster

if TYPE_CHECKING:
    from fairway.control import Engine
    from fairway.engines.port import ImportedPolicy
    from fairway.model.fleet import Fleet
    from lab.instance import Instance

SITE = ClusterName("site")
HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: site
currency: USD
clusters:
  site: {cluster}
"""
CLUSTERS = {
    "slurm": "{{ engine: slurm, url: {url}, credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }} }}",
    "kubernetes": "{{ engine: kubernetes, kubeconfig: {fairway_kubeconfig} }}",
}


async def import_site(instance: Instance) -> tuple[ImportedPolicy, str]:
    """Read what is there; returns it with the fleet file that a user would get."""
    cluster = CLUSTERS[instance.kind].format(**instance.facts())
    imported = await import_cluster(
        build_engine, parse_fleet(HEAD.format(cluster=cluster), "head.yaml"), SITE
    )
    remarks = [(remark.about, remark.text) for remark in imported.remarks]
    return imported, compose_fleet(imported.fleet, remarks)


async def imported_fleet(instance: Instance) -> Fleet:
    """The fleet of a site; it goes through its file, as a user's does."""
    _, text = await import_site(instance)
    return parse_fleet(text, "site.yaml")


@asynccontextmanager
async def engine_of(fleet: Fleet) -> AsyncIterator[Engine]:
    """The engine of the site, as the server builds it."""
    engine = build_engine(fleet.cluster(SITE), fleet.pools)
    try:
        yield engine
    finally:
        await engine.close()
