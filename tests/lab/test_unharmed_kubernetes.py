"""Whatever Fairway does to a Kubernetes site, people's work goes on: import, plan, adopt, apply, change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lab.kubernetes.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.kubernetes_probes import OUTSIDE, harms, play, probes_of, taken_away
from tests.unharmed.kubernetes_site import KubernetesSite

pytestmark = [pytest.mark.lab, pytest.mark.kubernetes, pytest.mark.timeout(1800)]


@pytest.mark.nightly("a cluster for each site, and every probe three times")
@pytest.mark.parametrize("name", [name for name in site_names() if Site(name).kueue is not None])
async def test_what_people_do_is_unharmed(name: str) -> None:
    instance = up("kubernetes", f"unharmed-{name}", "--site", name)
    try:
        site = KubernetesSite(instance)
        probes = await asyncio.to_thread(probes_of, instance)
        assert len(probes) >= 40
        before = await asyncio.to_thread(play, instance, probes)
        running = site.running()

        await site.import_fleet()
        plan = await site.plan()
        assert site.running() == running
        await site.adopt()
        await site.apply(force=True)
        assert site.running() == running, "an apply ends nothing"
        after = await asyncio.to_thread(play, instance, probes)
        assert harms(before, after, site.teams) == []
        assert running.items() <= site.running().items()

        assert site.fleet is not None
        grown = replace(site.fleet, teams=tuple(replace(team, share=2) for team in site.fleet.teams))
        await site.apply(grown, force=True)
        assert running.items() <= site.running().items()
        again = await asyncio.to_thread(play, instance, probes)
        assert harms(before, again, site.teams) == []
        if OUTSIDE in taken_away(before, after, site.teams):
            assert "GpuPodsOnlyInTeams" in {notice.code for notice in plan.notices}
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
