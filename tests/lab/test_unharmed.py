"""The promise `unharmed` on Slurm sites: what people try, before Fairway and after each step with it."""

from __future__ import annotations

import pytest

from lab.slurm.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.unharmed.probes import harms, play, probes_of
from tests.unharmed.slurm_site import SlurmSite

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SITES = [name for name in site_names() if Site(name).has_accounting]


@pytest.mark.nightly("a cluster for each site; tests/contract has import and plan on the lab's own in CI")
@pytest.mark.parametrize("name", SITES)
async def test_a_site_is_unharmed(name: str) -> None:
    instance = up("slurm", f"unharmed-{name}", "--site", name)
    site = SlurmSite(instance)
    try:
        probes = probes_of(instance)
        assert len(probes) >= 40
        before = play(instance, probes)

        def accounts() -> str:
            return instance.run("sacctmgr", "-nP", "show", "assoc").stdout

        def harmed() -> list[str]:
            return [str(harm) for harm in harms(before, play(instance, probes), site.is_governed)]

        at_first = accounts()
        await site.import_fleet()
        await site.plan()
        assert accounts() == at_first, "import and plan"
        assert harmed() == [], "import and plan"
        await site.apply()
        assert harmed() == [], "adopt and apply"
        await site.install()
        assert harmed() == [], "the rendered files"
        site.change_policy()
        await site.apply()
        await site.install()
        assert harmed() == [], "a changed policy"
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
