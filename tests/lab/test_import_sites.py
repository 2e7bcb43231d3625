"""Import, check and plan on every site: no fault of ours, every limit named, in less than ten minutes."""

from __future__ import annotations

import time

import pytest

from fairway.files import Severity, check_text
from fairway.services.plans import plan_cluster
from lab.kubernetes.site import site_names as kubernetes_sites
from lab.slurm.site import site_names as slurm_sites
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.imported import SITE, engine_of, import_site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

OUR_FAULTS = frozenset({"NoPrice", "NoMembers"})
"""Warnings for what no engine knows: prices, and people whom only an identity provider knows."""
LIMIT_SECONDS = 600.0


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
        imported, text = await import_site(instance)
        report = check_text(text, "site.yaml")
        assert [f for f in report.faults if f.severity is Severity.ERROR] == []
        assert {str(f.code) for f in report.faults} <= OUR_FAULTS
        assert report.fleet == imported.fleet
        assert report.fleet.pools
        async with engine_of(report.fleet) as engine:
            plan = await plan_cluster(engine, report.fleet, SITE)
        assert {o.code for o in plan.objections} <= {"InTheWay", "TooManyChanges"}
        assert time.monotonic() - begun < LIMIT_SECONDS
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
