"""The promise `unharmed` on Slurm sites: what people try, before Fairway and after each step with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fairway.services.plans import plan_cluster
from lab.slurm.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.imported import SITE
from tests.unharmed.leave_site import imported_site
from tests.unharmed.probes import Probe, harms, keep_jobs, play, probes_of
from tests.unharmed.report import Report
from tests.unharmed.slurm_site import install, is_governed, uninstall

if TYPE_CHECKING:
    from lab.instance import Instance

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

KNOWN = {
    "mixed": pytest.mark.xfail(
        reason="a partition's limit of a user counts by account: one in two accounts has it twice"
    )
}
"""Sites where the promise is not kept, and why; the plan says so by PartitionLimitsOfUsers."""
SITES = [name for name in site_names() if Site(name).has_accounting]


@pytest.mark.nightly("a cluster for each site; tests/contract has import and plan on the lab's own in CI")
@pytest.mark.parametrize("name", [pytest.param(name, marks=KNOWN.get(name, ())) for name in SITES])
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
    probes = probes_of(instance)
    assert len(probes) >= 40
    kept = keep_jobs(instance, play(instance, probes))
    before = play(instance, probes)
    report = Report(title, before.values())

    def look(step: str, may_change: Callable[[Probe], bool]) -> None:
        after = play(instance, probes)
        moved = [text for job in kept for text in job.moved(instance)]
        report.add(step, [*(str(harm) for harm in harms(before, after, may_change)), *moved])
        report.governed = sum(after[probe] != before[probe] for probe in probes)

    accounts = ("sacctmgr", "-nP", "show", "assoc")
    at_first = instance.run(*accounts).stdout
    async with imported_site(instance) as governed:
        fleet = governed.fleet
        decided = partial(is_governed, fleet)
        await plan_cluster(governed.engine, fleet, SITE)
        assert instance.run(*accounts).stdout == at_first
        look("import and plan", decided)
        await governed.govern()
        look("adopt and apply", decided)
        await install(instance, governed)
        look("the rendered files", decided)
        teams = tuple(replace(team, share=team.share + 1) for team in fleet.teams)
        await governed.govern(replace(fleet, teams=teams))
        await install(instance, governed)
        look("a changed policy", decided)
        changed = report.governed
        uninstall(instance)
        await governed.leave()
        look("leave", lambda probe: False)
        report.governed = changed
    report.seconds = time.monotonic() - begun
    return report
