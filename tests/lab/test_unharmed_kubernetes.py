"""Whatever Fairway does to a Kubernetes site, people's work goes on: import, adopt, apply, change, leave."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from fairway.services.plans import plan_cluster
from lab.kubernetes.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.imported import SITE
from tests.unharmed.kubernetes_probes import OUTSIDE, harms, play, probes_of, taken_away
from tests.unharmed.kubernetes_site import running_jobs
from tests.unharmed.leave_site import imported_site
from tests.unharmed.report import Report

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]


def sites() -> list[str]:
    """Every site with Kueue: without it there is nothing to govern."""
    return [name for name in site_names() if Site(name).kueue is not None]


@pytest.mark.nightly("a cluster for each site, and every probe four times")
@pytest.mark.parametrize("name", sites())
async def test_what_people_do_is_unharmed(name: str) -> None:
    instance = up("kubernetes", f"unharmed-{name}", "--site", name)
    try:
        probes = await asyncio.to_thread(probes_of, instance)
        assert len(probes) >= 40
        begun = time.monotonic()
        before = await asyncio.to_thread(play, instance, probes)
        report = Report(f"Kubernetes, {name}", before.values())
        running = running_jobs(instance)
        async with imported_site(instance) as governed:
            fleet = governed.fleet
            teams = frozenset(str(team.name) for team in fleet.teams)
            plan = await plan_cluster(governed.engine, fleet, SITE)
            assert running_jobs(instance) == running, "a plan changes nothing"

            await governed.govern()
            assert running_jobs(instance) == running, "an apply ends nothing"
            after = await asyncio.to_thread(play, instance, probes)
            report.add("import, plan, adopt and apply", harms(before, after, teams))
            if OUTSIDE in taken_away(before, after, teams):
                assert "GpuPodsOnlyInTeams" in {notice.code for notice in plan.notices}

            shares = tuple(replace(team, share=2) for team in fleet.teams)
            await governed.govern(replace(fleet, teams=shares))
            changed = await asyncio.to_thread(play, instance, probes)
            report.add("a changed policy", harms(before, changed, teams))
            report.governed = sum(changed[probe].result is not before[probe].result for probe in probes)

            await governed.leave()
            left = await asyncio.to_thread(play, instance, probes)
            report.add("leave", harms(before, left, ()))
            assert running.items() <= running_jobs(instance).items()
            report.seconds = time.monotonic() - begun
    finally:
        instance.wipe()
    report.keep()
    assert report.harms == {}
    assert_nothing_is_left(instance)
