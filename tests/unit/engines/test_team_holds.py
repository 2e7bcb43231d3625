"""What a team held for its budget is on each engine."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.cost.budgets import with_holds
from fairway.engines.kubernetes.policy.translate import translate as on_kueue
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.translate import ANY_NUMBER_OF_JOBS, PolicyContext, wanted_objects
from fairway.engines.virtual.policy.translate import read_terms
from fairway.engines.virtual.policy.translate import translate as on_virtual
from fairway.model.budget import AtLimit, Budget, Hold
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.simulate.cluster.terms import terms_of
from tests.unit.engines.kubernetes.policy import fleets as kueue
from tests.unit.engines.slurm.policy import made as slurm
from tests.unit.simulate.cluster.worlds import World

RESEARCH = TeamName("research")


def held(fleet: Fleet, hold: Hold) -> Fleet:
    """Research, and with it all inside it."""
    return with_holds(fleet, {RESEARCH: hold})


# --- Slurm


def accounts(fleet: Fleet) -> dict[str, dict[str, object]]:
    objects = slurm.by_name(wanted_objects(PolicyContext.of(fleet, "hpc", {})))
    return {name: dict(fields) for name, fields in objects.items()}


def low_only_somewhere(fleet: Fleet) -> Fleet:
    """With a budget of product's that one day leaves only low."""
    budget = Budget(Decimal(1), at_limit=AtLimit.LOW_ONLY)
    teams = tuple(replace(t, budget=budget) if t.name == "product" else t for t in fleet.teams)
    return replace(fleet, teams=teams)


def test_slurm_stop_is_grpjobs_and_people_may_queue() -> None:
    objects = accounts(held(slurm.fleet(), Hold.STOP))
    for team in ("research", "nlp", "vision"):
        assert objects[f"account {team}"]["GrpJobs"] == 0
        assert "GrpSubmit" not in objects[f"account {team}"]
    assert "GrpJobs" not in objects["account product"]


def test_slurm_low_only_is_grpjobs_which_low_is_exempt_from() -> None:
    objects = accounts(held(slurm.fleet(), Hold.LOW_ONLY))
    for team in ("research", "nlp", "vision"):
        assert objects[f"account {team}"]["GrpJobs"] == 0
        assert "MaxJobs" not in objects[f"account {team}"]
    assert objects[f"qos {names.LOW}"]["GrpJobs"] == ANY_NUMBER_OF_JOBS
    assert "GrpJobs" not in objects["account product"]


def test_slurm_where_low_is_exempt_stop_and_draining_need_a_limit_it_does_not_hide() -> None:
    fleet = low_only_somewhere(slurm.fleet())
    objects = accounts(held(fleet, Hold.STOP))
    assert (objects["account nlp"]["GrpJobs"], objects["account nlp"]["MaxJobs"]) == (0, 0)
    # MaxJobs is hidden by a QOS's own limit of jobs, by user or account: low must have none.
    assert {"MaxJobsPerUser", "MaxJobsPerAccount"}.isdisjoint(objects[f"qos {names.LOW}"])
    drained = replace(fleet, teams=tuple(replace(t, draining=True) for t in fleet.teams))
    research = accounts(held(drained, Hold.LOW_ONLY))["account research"]
    assert [research[key] for key in ("GrpJobs", "GrpSubmit", "MaxJobs")] == [0, 0, 0]


def test_slurm_low_is_exempt_before_anybody_is_held_and_only_where_it_may_be_needed() -> None:
    plain = slurm.fleet()
    assert "GrpJobs" not in accounts(plain)[f"qos {names.LOW}"]
    assert accounts(low_only_somewhere(plain))[f"qos {names.LOW}"]["GrpJobs"] == ANY_NUMBER_OF_JOBS


# --- Kueue


def stopped(fleet: Fleet) -> set[str]:
    wanted = on_kueue(fleet, ClusterName("cloud"), kueue.nothing())
    return {
        o.key.name
        for o in wanted.objects
        if o.key.kind == "LocalQueue" and o.fields.get("spec.stopPolicy") == "Hold"
    }


def queues(fleet: Fleet) -> set[str]:
    wanted = on_kueue(fleet, ClusterName("cloud"), kueue.nothing())
    return {o.key.name for o in wanted.objects if o.key.kind == "LocalQueue"}


def test_kueue_holds_every_queue_or_all_but_low() -> None:
    fleet = kueue.fleet()
    family = {name for name in queues(fleet) if name.partition("/")[0] in ("research", "nlp", "vision")}
    low = {name for name in family if name.endswith("/low")}
    assert low and family - low
    assert stopped(fleet) == set()
    assert stopped(held(fleet, Hold.STOP)) == family
    assert stopped(held(fleet, Hold.LOW_ONLY)) == family - low


# --- virtual

TEAMS = """
teams:
  research:
    guarantee: { gpu: 16 }
    teams:
      nlp: { members: [alice] }
  product: { guarantee: { gpu: 16 }, members: [bob] }
"""


@pytest.mark.parametrize("hold", list(Hold))
def test_virtual_objects_carry_it(hold: Hold) -> None:
    fleet = held(World(TEAMS).fleet, hold)
    said = read_terms({o.key: o.fields for o in on_virtual(fleet, "lab").objects})
    assert {t.name: t.hold for t in said.teams} == {t.name: t.hold for t in fleet.teams}


@pytest.mark.parametrize(("hold", "starts"), [(Hold.STOP, False), (Hold.LOW_ONLY, True)])
def test_virtual_starts_nothing_or_only_low_and_leaves_what_runs(hold: Hold, starts: bool) -> None:
    world = World(TEAMS)
    before = world.one("nlp", user="alice")
    world.sim.apply(terms_of(held(world.fleet, hold)))
    normal, low = world.one("nlp", user="alice"), world.one("nlp", user="alice", priority="low")
    other = world.one("product", user="bob")
    assert world.runs(before) and world.runs(other)
    assert not world.runs(normal) and world.runs(low) is starts
    assert world.wait(normal) == "TeamHeld"
    world.sim.apply(terms_of(world.fleet))
    assert world.runs(normal) and world.runs(low)
