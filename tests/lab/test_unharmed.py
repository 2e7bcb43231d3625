"""The promise `unharmed` on Slurm sites: what people try, before Fairway and after each step with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from lab.slurm.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.leave_site import GovernedSite
from tests.unharmed.probes import Probe, harms, play, probes_of
from tests.unharmed.report import Report
from tests.unharmed.slurm_site import SITE, SlurmSite, uninstall

if TYPE_CHECKING:
    from lab.instance import Instance

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SITES = [name for name in site_names() if Site(name).has_accounting]


@pytest.mark.nightly("a cluster for each site; tests/contract has import and plan on the lab's own in CI")
@pytest.mark.parametrize("name", SITES)
async def test_a_site_is_unharmed(name: str) -> None:
    instance = up("slurm", f"unharmed-{name}", "--site", name)
    try:
        report = await _play(instance, f"Slurm, {name}")
    finally:
        instance.wipe()
    report.keep()
    assert report.harms == {}
    assert_nothing_is_left(instance)


async def _play(instance: Instance, title: str) -> Report:
    begun = time.monotonic()
    site = SlurmSite(instance)
    probes = probes_of(instance)
    assert len(probes) >= 40
    before = play(instance, probes)
    report = Report(title, before.values())

    def look(step: str, is_governed: Callable[[Probe], bool] = site.is_governed) -> None:
        after = play(instance, probes)
        report.add(step, [str(harm) for harm in harms(before, after, is_governed)])
        report.governed = sum(after[probe] != before[probe] for probe in probes)

    accounts = ("sacctmgr", "-nP", "show", "assoc")
    at_first = instance.run(*accounts).stdout
    await site.import_fleet()
    assert site.fleet is not None
    await site.plan()
    assert instance.run(*accounts).stdout == at_first
    look("import and plan")
    engine = site.build(site.fleet.clusters[0], site.fleet.pools)
    try:
        governed = GovernedSite(engine, SITE, site.fleet)
        await governed.govern()
        look("adopt and apply")
        await site.install()
        look("the rendered files")
        site.change_policy()
        await governed.govern(site.fleet)
        await site.install()
        look("a changed policy")
        changed = report.governed
        uninstall(instance)
        await governed.leave()
        look("leave", lambda probe: False)
        report.governed = changed
    finally:
        await engine.close()
    report.seconds = time.monotonic() - begun
    return report
