"""Import, check and plan on every site: no fault of ours, every limit named, in less than ten minutes."""

from __future__ import annotations

import time

import pytest

from fairway.engines.kubernetes import KubernetesEngine
from fairway.engines.slurm import SlurmEngine
from fairway.files import Severity, check_text, compose_fleet, parse_fleet
from fairway.model.fleet import Cluster, KubernetesConnection, Pool
from fairway.model.names import ClusterName
from fairway.services.import_cluster import import_cluster
from fairway.services.plans import plan_cluster
from lab.kubernetes.site import site_names as kubernetes_sites
from lab.slurm.site import site_names as slurm_sites
from tests.lab.driving import assert_nothing_is_left, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

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
    "kubernetes": "{{ engine: kubernetes, kubeconfig: {kubeconfig} }}",
}
OUR_FAULTS = frozenset({"NoPrice", "NoMembers"})
"""Warnings for what no engine knows: prices, and people whom only an identity provider knows."""
LIMIT_SECONDS = 600.0


def _build(cluster: Cluster, pools: tuple[Pool, ...]) -> SlurmEngine | KubernetesEngine:
    kubernetes = isinstance(cluster.connection, KubernetesConnection)
    return KubernetesEngine(cluster, pools) if kubernetes else SlurmEngine(cluster, pools)


@pytest.mark.nightly("a cluster for each site; tests/unit has the Slurm sites as they were recorded")
@pytest.mark.parametrize(
    ("kind", "site"),
    [
        *(("slurm", site) for site in slurm_sites()),
        *(("kubernetes", site) for site in kubernetes_sites()),
    ],
)
async def test_a_site_is_imported_checked_and_planned(kind: str, site: str) -> None:
    instance = up(kind, f"import-{site}", "--site", site)
    try:
        begun = time.monotonic()
        head = parse_fleet(HEAD.format(cluster=CLUSTERS[kind].format(**instance.facts())), "head.yaml")
        imported = await import_cluster(_build, head, SITE)
        text = compose_fleet(imported.fleet, [(r.about, r.text) for r in imported.remarks])
        report = check_text(text, "site.yaml")
        assert [f for f in report.faults if f.severity is Severity.ERROR] == []
        assert {str(f.code) for f in report.faults} <= OUR_FAULTS
        assert report.fleet == imported.fleet
        assert report.fleet.pools
        engine = _build(report.fleet.clusters[0], report.fleet.pools)
        try:
            plan = await plan_cluster(engine, report.fleet, SITE)
        finally:
            await engine.close()
        assert {o.code for o in plan.objections} <= {"InTheWay", "TooManyChanges"}
        assert time.monotonic() - begun < LIMIT_SECONDS
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
