"""Each promise of a policy on the simulator itself; the scenarios try them again through plan and apply."""

from __future__ import annotations

import pytest

from fairway.model.errors import Refused
from fairway.model.names import NodeName, PoolName, SliceName, UserName
from fairway.model.team import Supply
from fairway.simulate.cluster.jobs import SimEnding, SimState
from tests.scenarios.promises.fleets import FAMILY, TWO_TEAMS
from tests.unit.simulate.cluster.worlds import World


def test_guarantee_what_is_lent_comes_back_and_not_one_job_more() -> None:
    world = World(TWO_TEAMS)
    product = world.submit("product", count=6)
    assert len(world.running(*product)) == 4

    research = world.one("research")
    assert world.runs(research)
    assert len(world.taken(*product)) == 1

    assert world.runs(world.one("research"))
    assert len(world.taken(*product)) == 2
    beyond = world.one("research")
    assert not world.runs(beyond)
    assert len(world.taken(*product)) == 2


def test_borrow_and_ceiling() -> None:
    world = World("""
teams:
  research: { guarantee: { gpu: 16 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 8 }, members: [bob] }
""")
    product = world.submit("product", count=3)

    assert world.held("product") == 16
    assert world.wait(product[2]) == "TeamAtCeiling"
    with pytest.raises(Refused, match="may hold 16"):
        world.one("product", nodes=3)
    research = world.submit("research", count=3)  # borrow left out: whatever is idle
    assert len(world.running(*research)) == 2
    assert not world.taken(*product)


def test_the_ceiling_of_a_parent_binds_its_children() -> None:
    world = World("""
teams:
  research:
    guarantee: { gpu: 8 }
    borrow: { gpu: 10 }
    teams:
      nlp: { guarantee: { gpu: 4 }, members: [alice] }
      vision: { borrow: { gpu: 6 }, members: [carol] }
""")
    world.submit("nlp", 1, count=30)
    assert world.held("research") == 18
    world.submit("vision", 1, count=30)
    assert (world.held("vision"), world.held("research")) == (0, 18)  # it has no guarantee to ask with


def test_least_harm_takes_the_smallest_set_from_who_is_beyond() -> None:
    world = World("""
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [alice] }
  ops: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [carol] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 24 }, members: [bob] }
""")
    ops = world.submit("ops", 4, count=2)
    large = world.submit("product", 8, count=2)
    small = world.submit("product", 2, count=4)

    assert world.runs(world.one("research", 4))

    assert sum(world.sim.job(j).request.gpus for j in world.taken(*small)) == 4
    assert not world.taken(*ops, *large)
    assert world.held("product") >= 8


def test_priority_takes_its_own_teams_lower_job_and_no_other_teams() -> None:
    world = World(TWO_TEAMS)
    research = world.submit("research", count=2)
    product = world.submit("product", count=2)

    urgent = world.one("research", priority="urgent")

    assert world.runs(urgent)
    assert len(world.taken(*research)) == 1
    assert not world.taken(*product)
    assert world.sim.attempts(world.taken(*research)[0])[0].ending is SimEnding.OUTRANKED


def test_urgent_beyond_the_guarantee_takes_nothing_that_others_borrowed() -> None:
    world = World("""
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 24 }, members: [alice] }
  product: { borrow: { gpu: 24 }, members: [bob] }
""")
    (research,) = world.submit("research")
    product = world.submit("product", count=3)

    assert world.runs(world.one("research", priority="urgent"))
    assert world.taken(research) == [research]
    assert not world.runs(world.one("research", priority="urgent"))  # of its own rank it takes nothing either
    assert not world.taken(*product)


def test_low_runs_on_idle_devices_only() -> None:
    world = World(TWO_TEAMS)
    low = world.submit("product", count=4, priority="low")
    assert len(world.running(*low)) == 4

    research = world.submit("research", count=3)  # the third is lent, and still more than low is

    assert len(world.running(*research)) == 3
    assert len(world.taken(*low)) == 3
    normal = world.one("product")
    assert world.runs(normal)
    assert not world.running(*low)


def test_share_splits_what_is_lent() -> None:
    world = World("""
teams:
  research: { share: 60, borrow: { gpu: 32 }, members: [alice] }
  product: { share: 40, borrow: { gpu: 32 }, members: [bob] }
""")
    world.submit("research", 1, count=400, seconds=10)
    world.submit("product", 1, count=400, seconds=10)
    held = [0, 0]
    for _ in range(20):
        world.pass_time(5)
        held[0] += world.held("research")
        held[1] += world.held("product")

    assert 0.55 <= held[0] / sum(held) <= 0.65


def test_memory_yields_and_the_half_life_forgives() -> None:
    teams = """
fairness: { half_life: 1h }
teams:
  research: { borrow: { gpu: 32 }, members: [alice] }
  product: { borrow: { gpu: 32 }, members: [bob] }
"""

    def split(pause: float) -> int:
        world = World(teams)
        world.submit("research", 1, count=32, seconds=7200)
        world.pass_time(7200 + pause)
        block = world.submit("product", 8, count=4, seconds=1)  # so that both are asked at one moment
        world.submit("research", 1, count=64)
        world.submit("product", 1, count=64)
        world.pass_time(1)
        assert not world.running(*block)
        return world.held("product")

    assert split(0) > 24
    assert split(3600 * 48) in (16, 17)


def test_gang_starts_whole_and_two_that_half_fit_do_not_deadlock() -> None:
    world = World(TWO_TEAMS)
    first = world.one("research", nodes=3, seconds=100, limit_seconds=200)
    second = world.one("product", nodes=3, seconds=100, limit_seconds=200)

    assert (world.runs(first), world.runs(second)) == (True, False)
    assert world.wait(second) == "NodesReserved"
    world.pass_time(100)
    assert world.runs(second)
    assert len(world.sim.job(second).nodes) == 3


@pytest.mark.parametrize("limit", [20, None])
def test_no_starvation_of_a_gang_among_small_jobs(limit: float | None) -> None:
    world = World("""
teams:
  research: { borrow: { gpu: 32 }, members: [alice] }
  product: { borrow: { gpu: 32 }, members: [bob] }
""")
    world.submit("product", 1, count=40, seconds=10, limit_seconds=limit)
    gang = world.one("research", nodes=4)
    for _ in range(200):
        world.submit("product", 1, count=4, seconds=10, limit_seconds=limit)
        world.submit("research", 1, count=1, seconds=10, limit_seconds=limit)
        world.pass_time(1)
        if world.runs(gang):
            break

    assert world.runs(gang)
    assert world.sim.now <= (20 if limit else 80)


def test_short_jobs_go_in_where_places_are_kept() -> None:
    world = World("""
teams:
  research: { borrow: { gpu: 32 }, members: [alice] }
  product: { borrow: { gpu: 32 }, members: [bob] }
""")
    world.submit("product", 8, nodes=3, seconds=100, limit_seconds=100)
    gang = world.one("research", nodes=4)
    long = world.one("product", 4, limit_seconds=101)
    short = world.one("product", 4, limit_seconds=100)

    assert (world.runs(long), world.runs(short)) == (False, True)
    assert world.wait(long) == "ReservedForAnother"
    world.pass_time(100)
    assert world.runs(gang)


def test_no_starvation_by_its_own_team_either() -> None:
    world = World("teams: { research: { borrow: { gpu: 16 }, members: [alice] } }")
    for start in range(8):
        world.submit("research", 1, count=2, seconds=1 + start)
    gang = world.one("research", nodes=2)
    for _ in range(90):
        world.submit("research", 1, count=2, seconds=8)
        world.pass_time(1)

    assert world.sim.job(gang).started == 67  # a minute of patience, then its team's jobs run out


def test_limits_refuse_or_hold_with_the_reason() -> None:
    world = World("""
teams:
  research:
    borrow: { gpu: 32 }
    limits: { job: { gpus: 16, time: 1h }, user: { gpus: 16 } }
    members: [alice, carol]
""")
    with pytest.raises(Refused, match="may have 16"):
        world.one("research", nodes=3)
    with pytest.raises(Refused, match="may take 3600 s"):
        world.one("research", limit_seconds=7200)
    jobs = world.submit("research", count=3, seconds=10)
    other = world.one("research", user="carol")

    assert world.running(*jobs) == jobs[:2]
    assert world.wait(jobs[2]) == "UserLimit"
    assert world.runs(other)
    world.pass_time(10)
    assert world.runs(jobs[2])


def test_access_isolation_and_jobs_that_name_no_team() -> None:
    world = World("""
teams:
  research: { borrow: { gpu: 32 }, members: [alice, carol] }
  product: { borrow: { mig/1g.10gb: 4 }, members: [bob] }
""")
    with pytest.raises(Refused, match="no grant on gpu"):
        world.one("product")
    with pytest.raises(Refused, match="not a member"):
        world.one("research", user="bob")
    with pytest.raises(Refused, match="member of none"):
        world.one(None, user="mallory")
    job = world.one(None, user="alice")
    assert world.sim.job(job).team == "research"
    with pytest.raises(Refused, match="bob may not cancel"):
        world.sim.cancel(job, UserName("bob"))
    with pytest.raises(Refused, match="bob may not read"):
        world.sim.attempts(job, UserName("bob"))
    world.sim.cancel(job, UserName("carol"))
    assert world.sim.job(job).state is SimState.CANCELLED


def test_hierarchy_siblings_come_first() -> None:
    world = World(FAMILY)
    product = world.submit("product", count=4)
    vision = world.one("vision")  # what nlp leaves of research's guarantee

    assert world.runs(vision)
    more = world.submit("vision", count=2)
    assert len(world.running(*more)) == 1  # research's 16 are vision's
    nlp = world.one("nlp")  # and nlp's own 8 come back from its sibling, not from product
    assert world.runs(nlp)
    assert len(world.taken(*product)) == 2
    assert len(world.taken(vision, *more)) == 1


def test_time_limit_ends_a_job() -> None:
    world = World(TWO_TEAMS)
    job = world.one("research", seconds=1000, limit_seconds=60)
    world.pass_time(59)
    assert world.runs(job)
    world.pass_time(1)
    assert world.sim.job(job).state is SimState.TIMEOUT


def test_tolerance() -> None:
    world = World("teams: { research: { borrow: { spot: 16 }, members: [alice] } }")
    with pytest.raises(Refused, match="is spot"):
        world.one("research", pool="spot")
    job = world.one("research", pool="spot", tolerates_loss=True, seconds=100)
    (node,) = world.sim.job(job).nodes
    world.pass_time(50)

    world.sim.lose(node)

    assert world.sim.job(job).attempts == 2
    assert world.sim.job(job).nodes != (node,)
    assert world.sim.attempts(job)[0].ending is SimEnding.NODE_LOST
    world.pass_time(99)
    assert world.runs(job)
    world.pass_time(1)
    assert world.sim.job(job).state is SimState.DONE


def test_slices_are_guaranteed_lent_and_counted_as_slices() -> None:
    world = World("""
teams:
  research: { guarantee: { mig/1g.10gb: 2 }, borrow: { mig/1g.10gb: 2 }, members: [alice] }
  product: { guarantee: { mig/1g.10gb: 2 }, borrow: { mig/1g.10gb: 2 }, members: [bob] }
""")
    mig = Supply(PoolName("mig"), SliceName("1g.10gb"))
    slices = {"pool": "mig", "slice_": "1g.10gb"}
    product = world.submit("product", 1, count=5, **slices)
    assert world.held("product", mig) == 4
    assert world.runs(world.one("research", 1, **slices))
    assert len(world.taken(*product)) == 1


def test_together_one_rack_or_wait() -> None:
    world = World("teams: { research: { borrow: { gpu: 32 }, members: [alice] } }")
    first = world.one("research", seconds=100)
    world.sim.occupy(NodeName("gpu-0003"), 8)
    pair = world.one("research", nodes=2, together=True)

    assert not world.runs(pair)
    assert world.wait(pair) in ("NoRackFits", "NodesReserved")
    world.pass_time(100)
    assert world.sim.job(pair).nodes in (("gpu-0001", "gpu-0002"), ("gpu-0002", "gpu-0001"))
    assert world.sim.job(first).state is SimState.DONE
    with pytest.raises(Refused, match="in one rack"):
        world.one("research", nodes=3, together=True)


def test_no_surprise_tightening_works_by_attrition() -> None:
    world = World(TWO_TEAMS)
    research = world.submit("research", count=2, seconds=100)
    product = world.submit("product", count=4)
    tight = """
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [alice] }
  product: { guarantee: { gpu: 24 }, borrow: { gpu: 8 }, members: [bob] }
"""
    world.apply(tight)

    assert len(world.running(*research)) == 2
    assert not world.taken(*research)
    world.pass_time(100)
    assert len(world.running(*product)) == 4
    assert not world.taken(*research)


def test_loosening_lets_who_waits_start() -> None:
    world = World(TWO_TEAMS)
    world.submit("product", count=3)
    tight = TWO_TEAMS.replace("borrow: { gpu: 16 }, members: [bob]", "borrow: { gpu: 0 }, members: [bob]")
    world.apply(tight)
    late = world.one("product")
    world.apply(tight.replace("gpu: 0", "gpu: 1"))  # changes as they come, in several stages
    assert world.wait(late) == "TeamAtCeiling"

    world.apply(TWO_TEAMS)

    assert world.runs(late)


def test_told_to_evict_it_does() -> None:
    world = World(TWO_TEAMS)
    research = world.submit("research", count=2)
    world.apply(
        TWO_TEAMS.replace(
            "guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [alice, carol]",
            "guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [alice, carol]",
        ),
        evict=True,
    )
    assert world.held("research") == 8
    assert world.sim.attempts(research[1])[0].ending is SimEnding.EVICTED


def test_removal_of_a_team_with_jobs_is_refused_and_draining_works() -> None:
    world = World(TWO_TEAMS)
    job = world.one("research", seconds=100)
    alone = "teams: { product: { guarantee: { gpu: 16 }, members: [bob] } }"
    with pytest.raises(Refused, match="has jobs"):
        world.apply(alone)
    assert world.held("research") == 8

    world.apply(TWO_TEAMS.replace("share: 60,", "share: 60, draining: true,"))
    later = world.one("research")
    assert world.wait(later) == "TeamDraining"
    world.sim.cancel(later)
    world.pass_time(100)
    assert world.sim.job(job).state is SimState.DONE
    world.apply(alone)


def test_hold_and_release() -> None:
    world = World(TWO_TEAMS)
    world.submit("research", count=4, seconds=10)
    job = world.one("research")
    world.sim.hold(job)
    world.pass_time(10)
    assert world.sim.job(job).state is SimState.HELD
    world.sim.release(job)
    assert world.runs(job)
