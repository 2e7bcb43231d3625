"""A hold of a spent budget on a real Slurm site gives back what the site had set."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.control.loops.budget import write_holds
from fairway.model.budget import AtLimit, Budget, Hold
from fairway.model.fleet import Fleet
from lab.instance import Instance
from tests.lab.driving import assert_nothing_is_left, lab, up
from tests.lab.test_leave import differences, slurm_dump
from tests.unharmed.imported import SITE
from tests.unharmed.leave_site import imported_site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def held(fleet: Fleet, hold: Hold | None) -> Fleet:
    """The fleet with a budget for physics, which is spent or not."""
    budget = Budget(Decimal(100), at_limit=AtLimit.STOP)
    teams = tuple(replace(t, budget=budget, hold=hold) if t.name == "physics" else t for t in fleet.teams)
    return replace(fleet, teams=teams)


def limits(instance: Instance, account: str, user: str = "") -> str:
    """GrpJobs and MaxJobs as sacctmgr shows them."""
    who = ["where", f"account={account}", f"user={user}", "format=grpjobs,maxjobs"]
    return lab("run", instance.name, "sacctmgr", "-nP", "show", "assoc", *who).splitlines()[0].strip()


@pytest.mark.nightly("a cluster of its own; tests/unit/engines/slurm/policy has each step")
@pytest.mark.parametrize("version", ["24.11", "26.05"])
async def test_the_sites_limits_on_jobs_come_back_after_a_hold(version: str) -> None:
    instance = up("slurm", f"holds-{version.replace('.', '')}", "--site", "campus", "--version", version)
    try:
        for name, limit in (("physics", "GrpJobs=20"), ("physics", "MaxJobs=7"), ("biology", "GrpJobs=0")):
            lab("run", instance.name, "sacctmgr", "-i", "modify", "account", name, "set", limit)
        before = slurm_dump(instance)
        async with imported_site(instance) as governed:
            fleet = governed.fleet
            await governed.govern(held(fleet, None))
            assert limits(instance, "physics") == "20|7"
            assert limits(instance, "biology").startswith("0|")  # the site's own stop
            assert await write_holds(governed.engine, held(fleet, Hold.STOP), SITE)
            assert limits(instance, "physics").startswith("0|")
            assert not (await governed.govern(held(fleet, Hold.STOP))).changes  # as wanted: no drift
            assert await write_holds(governed.engine, held(fleet, None), SITE)
            assert limits(instance, "physics") == "20|7"
            assert not (await governed.govern(held(fleet, None))).changes
            assert limits(instance, "biology").startswith("0|")
            await governed.leave()
        assert differences(before, slurm_dump(instance)) == []
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
