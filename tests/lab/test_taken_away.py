"""What a policy takes from a real Slurm site is in the plan, with who used it in the last 30 days."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fairway.cli.output.plan import plan_lines
from fairway.model.fleet import ExistingWorkloads, SlurmConnection
from fairway.model.names import TeamName
from fairway.policy.recent_use import RecentUse
from fairway.services.convert import policy as convert
from fairway.services.plans import FleetPlan, plan_cluster
from lab.instance import Instance
from tests.lab.driving import assert_nothing_is_left, lab, up
from tests.unharmed.imported import SITE, engine_of, import_site
from tests.waiting import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def _ran(instance: Instance, user: str, account: str, gpus: int) -> None:
    lab(
        "run",
        instance.name,
        "--as",
        user,
        "sbatch",
        "-A",
        account,
        f"--gres=gpu:a100:{gpus}",
        "--wrap=sleep 2",
    )


def _summed_up(instance: Instance) -> None:
    """Let slurmdbd sum up the hour before it is over."""
    now = datetime.now().replace(minute=0, second=0, microsecond=0)  # noqa: DTZ005 slurmdbd's own zone
    hours = [(now + timedelta(hours=n)).isoformat() for n in (-1, 1)]
    lab("run", instance.name, "sacctmgr", "-i", "roll", *hours)


@pytest.mark.nightly("a cluster of its own; tests/unit has the sums as slurmdbd sends them")
@pytest.mark.parametrize("version", ["24.11", "26.05"])
async def test_the_plan_names_who_used_what_is_taken_away(version: str) -> None:
    instance = up("slurm", f"taken-{version.replace('.', '')}", "--site", "campus", "--version", version)
    try:
        _ran(instance, "carol", "biology", 2)
        _ran(instance, "alice", "physics", 1)
        await eventually(lambda: not lab("run", instance.name, "squeue", "-h"), what="the jobs end")
        _summed_up(instance)
        fleet = (await import_site(instance))[0].fleet
        cluster = fleet.clusters[0]
        assert isinstance(cluster.connection, SlurmConnection)
        refusing = replace(cluster.connection, existing_workloads=ExistingWorkloads.REFUSE)
        # Biology is no team.
        teams = [t for t in fleet.teams if t.name != "biology"]
        fleet = replace(
            fleet,
            clusters=(replace(cluster, connection=refusing),),
            teams=tuple(teams),
        )
        async with engine_of(fleet) as engine:
            plan = await plan_cluster(engine, fleet, SITE)
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
    used = {t.what: t.used for t in plan.taken}
    found = used["GPU jobs of account biology, which is no team"]
    assert [user for user, _ in found.users] == ["carol"]
    assert 0 < found.gpu_hours < 0.1
    assert not found.unknown
    assert TeamName("physics") in {t.name for t in fleet.teams}
    assert all(t.used == RecentUse() for t in plan.taken if "biology" not in t.what)
    shown = convert.plan(FleetPlan(fleet.name, (plan,), ()), "", [], [], [])
    screen = " ".join(" ".join(line.text for line in plan_lines(shown, 100, wide=False)).split())
    assert (
        "takes away on site: GPU jobs of account biology, which is no team; "
        "used in the last 30 days by carol (under 0.1 GPU-hours)" in screen
    )
