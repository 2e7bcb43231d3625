"""A virtual cluster carries a policy like any other: plan, apply, drift, adopt, import."""

from __future__ import annotations

import pytest

from fairway.engines.virtual import VirtualEngine
from fairway.engines.virtual.policy.translate import read_terms, translate
from fairway.model.errors import Refused
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.policy.objects import Action, Change, ObjectKey
from fairway.policy.plan import ClusterPlan
from fairway.services.plans import PlanRefused, plan_adoption, plan_cluster
from fairway.simulate.cluster import JobRequest, SimState, terms_of
from tests.plans import apply_plan
from tests.unit.simulate.cluster.worlds import fleet

LAB = ClusterName("lab")
POLICY = """
priorities:
  urgent: { rank: 90 }
  normal: { rank: 40, default: true }
  low: { rank: 5, preemptible: always }
fairness: { half_life: 2d }
teams:
  research:
    share: 60
    guarantee: { gpu: 16, mig/1g.10gb: 2 }
    borrow: { gpu: 8 }
    limits: { job: { gpus: 16, time: 8h }, user: { gpus: 12 } }
    teams:
      nlp: { share: 2, guarantee: { gpu: 8 }, members: [alice] }
      vision: { members: [alice, carol], priorities: [normal, low] }
  product: { guarantee: { gpu: 16 }, members: [bob], draining: true }
users:
  alice: { default_team: nlp }
"""


def engine_of(of: Fleet) -> VirtualEngine:
    return VirtualEngine(of.clusters[0], of.pools, clock=None)


async def plan(engine: VirtualEngine, of: Fleet) -> ClusterPlan:
    return await plan_cluster(engine, of, LAB)


async def apply(engine: VirtualEngine, of: Fleet, *, force: bool = False) -> None:
    applied = await apply_plan(engine, await plan(engine, of), force=force)
    assert applied.refusal is None


def request(team: str, user: str, gpus: int = 8) -> JobRequest:
    return JobRequest(UserName(user), PoolName("gpu"), gpus, team=TeamName(team))


def test_objects_say_all_that_the_fleet_says() -> None:
    wanted = fleet(POLICY)

    said = read_terms({o.key: o.fields for o in translate(wanted, LAB).objects})

    meant = terms_of(wanted)
    assert {t.name: t for t in said.teams} == {t.name: t for t in meant.teams}
    assert (said.priorities, said.fairness, dict(said.default_teams)) == (
        meant.priorities,
        meant.fairness,
        dict(meant.default_teams),
    )


async def test_what_is_applied_is_obeyed_and_planned_no_more() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    with pytest.raises(Refused, match="no team nlp"):
        engine.simulator.submit(request("nlp", "alice"))

    await apply(engine, wanted)

    assert not (await plan(engine, wanted)).changes
    job = engine.simulator.submit(request("nlp", "alice"))
    assert engine.simulator.job(job).state is SimState.RUNNING
    seen = await engine.observe()
    assert sum(d.in_use for node in seen.nodes for d in node.devices) == 8


async def test_writing_again_what_is_so_is_no_error() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    first = await plan(engine, wanted)

    for _ in range(2):
        applied = await apply_plan(engine, first)
        assert applied.refusal is None
    assert not (await plan(engine, wanted)).changes


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (ObjectKey("grant", "research/gpu"), {"guarantee": 20}),
        (ObjectKey("grant", "research/gpu"), {"borrow": None}),
        (ObjectKey("team", "nlp"), {"share": 3}),
        (ObjectKey("team", "product"), {"draining": False}),
        (ObjectKey("priority", "low"), {"preemptible": False}),
        (ObjectKey("fairness", "cluster"), {"half_life_seconds": 60}),
        (ObjectKey("member", "nlp/alice"), {"default": False}),
    ],
)
async def test_a_change_by_hand_counts_at_once_is_drift_and_heals(
    key: ObjectKey, fields: dict[str, object]
) -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    await apply(engine, wanted)
    meant = engine.simulator.terms

    engine.change_by_hand(key, fields, by="root")  # type: ignore[arg-type]

    (change,) = (await plan(engine, wanted)).changes
    assert change.key == key
    assert [f.field for f in change.fields] == list(fields)
    found = {o.key: o for o in (await engine.find_policy()).objects}
    assert found[key].changed_by == "root"
    assert engine.simulator.terms != meant or key.kind == "member"
    await apply(engine, wanted)
    assert not (await plan(engine, wanted)).changes
    assert engine.simulator.terms == meant


async def test_what_is_missing_comes_back() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    await apply(engine, wanted)
    for found in (await engine.find_policy()).objects:
        engine.remove_by_hand(found.key)
        await apply(engine, wanted)
    assert not (await plan(engine, wanted)).changes


async def test_a_neighbour_is_obeyed_never_changed_and_may_be_adopted() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    guest, mine = ObjectKey("team", "guest"), ObjectKey("team", "nlp")
    for key in (guest, mine):
        engine.change_by_hand(key, {"share": 7}, by="root")

    with pytest.raises(PlanRefused, match="team nlp already exists on lab"):
        await apply(engine, wanted, force=True)
    adoption = await plan_adoption(engine, LAB, EngineKind.VIRTUAL, [mine])
    assert (await apply_plan(engine, adoption)).refusal is None
    await apply(engine, wanted)

    found = {o.key: o for o in (await engine.find_policy()).objects}
    assert (found[guest].ours, found[guest].fields) == (False, {"share": 7})
    assert found[mine].ours
    assert not (await plan(engine, wanted)).changes


async def test_a_team_with_jobs_goes_by_force_only() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    await apply(engine, wanted)
    job = engine.simulator.submit(request("nlp", "alice"))
    smaller = fleet("teams: { product: { guarantee: { gpu: 16 }, members: [bob] } }")

    with pytest.raises(PlanRefused, match="team nlp would be removed, and has 1 running job"):
        await apply(engine, smaller)
    with pytest.raises(Refused, match="team nlp has jobs"):
        engine.remove_by_hand(ObjectKey("team", "nlp"))
    assert engine.simulator.job(job).state is SimState.RUNNING

    await apply(engine, smaller, force=True)
    assert engine.simulator.job(job).state is SimState.CANCELLED
    assert not (await plan(engine, smaller)).changes


async def test_adopting_what_is_not_there_is_refused() -> None:
    engine = engine_of(fleet(POLICY))
    with pytest.raises(Refused, match="there is no team ghost"):
        async for _ in engine.write([Change(Action.ADOPT, ObjectKey("team", "ghost"))]):
            pass


async def test_an_imported_policy_has_nothing_left_to_plan() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    await apply(engine, wanted)
    engine.change_by_hand(ObjectKey("grant", "ghost/gpu"), {"guarantee": 1}, by="root")

    found = await engine.find_policy()
    imported = engine.import_policy(fleet(""), await engine.observe(), found)

    assert not (await plan(engine, imported.fleet)).changes
    assert [remark.about for remark in imported.remarks] == ["grant ghost/gpu"]


async def test_hand_made_circles_and_orphans_are_survived() -> None:
    wanted = fleet(POLICY)
    engine = engine_of(wanted)
    await apply(engine, wanted)

    engine.change_by_hand(ObjectKey("team", "research"), {"parent": "nlp"}, by="root")
    engine.change_by_hand(ObjectKey("team", "vision"), {"parent": "nobody", "share": "many"}, by="root")
    engine.change_by_hand(ObjectKey("grant", "vision/gpu"), {"guarantee": True}, by="root")

    parents = {str(t.name): t.parent for t in engine.simulator.terms.teams}
    assert parents["vision"] is None
    assert parents["nlp"] is None or parents["research"] is None
    await apply(engine, wanted, force=True)
    assert not (await plan(engine, wanted)).changes


async def test_the_clock_follows_another_at_its_speed() -> None:
    wanted = fleet(POLICY)
    engine = VirtualEngine(wanted.clusters[0], wanted.pools, speed=60, clock=None)

    engine.tick(1000.0)
    engine.tick(1001.0)
    engine.tick(1000.5)

    assert engine.simulator.now == 60
