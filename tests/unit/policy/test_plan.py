"""Plans by example: order, what speaks against them, and that a large fleet is planned in good time."""

from __future__ import annotations

import pytest

from fairway.model.fleet import EngineKind
from fairway.model.names import TeamName
from fairway.policy.objects import (
    Action,
    Activity,
    Change,
    FieldChange,
    FoundObject,
    FoundPolicy,
    ObjectKey,
    Translation,
    WantedObject,
)
from fairway.policy.plan import ClusterPlan, build_plan, compute_adoption, compute_changes, depths
from tests.growth import grows_at_most
from tests.unit.policy.clusters import HPC

QOS, ACCOUNT = ObjectKey("qos", "research_own"), ObjectKey("account", "research")
RESEARCH, PRODUCT = TeamName("research"), TeamName("product")


def found(*objects: FoundObject) -> FoundPolicy:
    return FoundPolicy("24.11", objects, {})


def plan(wanted: Translation, has: FoundPolicy, jobs: dict[ObjectKey, Activity] | None = None) -> ClusterPlan:
    return build_plan(HPC, EngineKind.SLURM, wanted, has, compute_changes(wanted, has), jobs or {})


def many(count: int, limit: int) -> list[WantedObject]:
    return [WantedObject(ObjectKey("qos", f"q{i:03}"), {"limit": limit}) for i in range(count)]


def ours(objects: list[WantedObject]) -> FoundPolicy:
    return found(*(FoundObject(o.key, o.fields, ours=True) for o in objects))


def test_a_change_says_every_field_before_and_after() -> None:
    wanted = Translation(
        (
            WantedObject(QOS, {"limit": 24, "flags": ("deny",)}, team=RESEARCH),
            WantedObject(ACCOUNT, {"parent": "root"}, after=(QOS,), team=RESEARCH),
        )
    )
    has = found(
        FoundObject(QOS, {"limit": 16, "flags": ("deny",), "grace": 5}, ours=True),
        FoundObject(ObjectKey("account", "old"), {"parent": "root"}, ours=True, team=PRODUCT),
    )
    assert compute_changes(wanted, has) == (
        Change(
            Action.UPDATE,
            QOS,
            (FieldChange("limit", 16, 24), FieldChange("grace", 5, None)),
            {"limit": 24, "flags": ("deny",)},
            stage=0,
            team=RESEARCH,
        ),
        Change(
            Action.CREATE,
            ACCOUNT,
            (FieldChange("parent", None, "root"),),
            {"parent": "root"},
            stage=1,
            team=RESEARCH,
        ),
        Change(
            Action.DELETE,
            ObjectKey("account", "old"),
            (FieldChange("parent", "root", None),),
            stage=2,
            team=PRODUCT,
        ),
    )


def test_objects_that_need_each_other_are_a_defect_of_the_translation() -> None:
    wanted = Translation((WantedObject(QOS, {}, after=(ACCOUNT,)), WantedObject(ACCOUNT, {}, after=(QOS,))))
    with pytest.raises(ValueError, match="circle"):
        compute_changes(wanted, found())


def test_a_circle_that_people_made_can_still_go() -> None:
    has = found(
        FoundObject(QOS, {}, ours=True, after=(ACCOUNT,)), FoundObject(ACCOUNT, {}, ours=True, after=(QOS,))
    )
    assert {c.action for c in compute_changes(Translation(()), has)} == {Action.DELETE}


def test_depth_counts_the_longest_way() -> None:
    a, b, c, d = (ObjectKey("k", name) for name in "abcd")
    assert depths([(d, (a, c)), (c, (b,)), (b, (a,)), (a, ())], forbid_cycles=True) == {
        a: 0, b: 1, c: 2, d: 3,
    }  # fmt: skip


def test_what_is_in_the_way_is_named_with_the_command_that_takes_it_over() -> None:
    wanted = Translation((WantedObject(QOS, {"limit": 1}), WantedObject(ACCOUNT, {})))
    made = plan(wanted, found(FoundObject(QOS, {"limit": 1}, ours=False)))
    assert [c.key for c in made.changes] == [ACCOUNT]
    (objection,) = made.objections
    assert (objection.code, objection.forceable) == ("InTheWay", False)
    assert "fairway adopt hpc qos/research_own" in objection.hint


def test_the_command_for_many_names_the_file_that_was_planned() -> None:
    keys = [ObjectKey("qos", f"q{n}") for n in range(9)]
    has = found(*(FoundObject(key, {}, ours=False) for key in keys))
    wanted = Translation(tuple(WantedObject(key, {}) for key in keys))
    (objection,) = build_plan(HPC, EngineKind.SLURM, wanted, has, (), {}, "my fleet2.yaml").objections
    assert objection.hint.endswith("fairway adopt hpc --all-in-the-way -f 'my fleet2.yaml'")


def test_adopting_puts_the_mark_on_and_changes_nothing() -> None:
    has = found(FoundObject(QOS, {"limit": 7}, ours=False), FoundObject(ACCOUNT, {}, ours=True))
    (change,) = compute_adoption(has, [QOS, ACCOUNT, QOS, ObjectKey("qos", "none")])
    assert (change.action, change.key, change.fields, change.wanted) == (Action.ADOPT, QOS, (), {"limit": 7})


@pytest.mark.parametrize(("changed", "speaks"), [(30, False), (31, True)])
def test_more_than_three_tenths_at_once_must_be_meant(changed: int, speaks: bool) -> None:
    before, after = many(100, 1), many(changed, 2) + many(100, 1)[changed:]
    codes = [o.code for o in plan(Translation(tuple(after)), ours(before)).objections]
    assert codes == ["TooManyChanges"] * speaks


def test_deletions_count_as_changes_do() -> None:
    before = many(100, 1)
    (objection,) = plan(Translation(tuple(many(60, 1))), ours(before)).objections
    assert objection.message.startswith("0 of 100 objects would change and 40 would be deleted")
    assert objection.forceable


@pytest.mark.parametrize("managed", [0, 10])
def test_a_first_apply_and_a_small_fleet_are_not_asked_twice(managed: int) -> None:
    before = many(managed, 1)
    assert plan(Translation(tuple(many(50, 2))), ours(before)).objections == ()


def test_a_team_with_jobs_is_not_removed() -> None:
    has = found(
        FoundObject(QOS, {}, ours=True, team=RESEARCH),
        FoundObject(ACCOUNT, {}, ours=True, team=RESEARCH),
    )
    jobs = {QOS: Activity(2, 0), ACCOUNT: Activity(2, 1)}
    (objection,) = plan(Translation(()), has, jobs).objections
    assert (objection.code, objection.forceable) == ("TeamHasJobs", True)
    assert objection.message == "team research would be removed, and has 2 running and 1 waiting jobs"
    assert "draining: true" in objection.hint


def test_an_object_that_a_staying_team_loses_may_not_take_its_jobs_along() -> None:
    has = found(FoundObject(QOS, {}, ours=True, team=RESEARCH), FoundObject(ACCOUNT, {}, ours=True))
    wanted = Translation((WantedObject(ACCOUNT, {}, team=RESEARCH),))
    (objection,) = plan(wanted, has, {QOS: Activity(running=1)}).objections
    assert objection.code == "WouldEndJobs"
    assert objection.message == "qos research_own would be deleted, which stops 1 running job"


def test_jobs_under_what_changes_are_told_of_and_speak_against_nothing() -> None:
    has = found(FoundObject(QOS, {"limit": 8}, ours=True), FoundObject(ACCOUNT, {"limit": 8}, ours=True))
    wanted = Translation((WantedObject(QOS, {"limit": 4}), WantedObject(ACCOUNT, {"limit": 4})))
    made = plan(wanted, has, {QOS: Activity(3, 1), ACCOUNT: Activity(3, 1)})
    assert made.objections == ()
    (notice,) = made.notices
    assert notice.message.startswith("3 running and 1 waiting jobs affected")
    assert notice.promise == "no-surprise"


def test_the_fingerprint_is_the_same_on_every_machine() -> None:
    """Servers of one ledger compare each other's: it may only change with a new major release of plans."""
    wanted = Translation((WantedObject(QOS, {"limit": 24, "flags": ("deny",), "none": None}),))
    made = plan(wanted, found(FoundObject(QOS, {"limit": 16}, ours=True)))
    assert made.fingerprint == "e8f748de4d36bdadf3986a00a94cfb2619164a77dcffecd1f813e3dc6fe6b433"


def test_planning_grows_with_the_fleet_and_not_faster() -> None:
    plan(*large(200))  # whatever is only done once
    few, many = large(500), large(4000)
    # Eight times as much; a quadratic part would make it sixty-four.
    assert grows_at_most(8 * 3, lambda: plan(*few), lambda: plan(*many))


def large(teams: int) -> tuple[Translation, FoundPolicy]:
    """Ten objects a team, each with eight fields; a tenth of the teams changes."""
    wanted, has = [], []
    for number in range(teams):
        account = ObjectKey("account", f"team-{number}")
        for part in range(10):
            key = account if part == 0 else ObjectKey("qos", f"team-{number}-{part}")
            fields = {f"field-{i}": number + i for i in range(8)}
            wanted.append(WantedObject(key, fields, after=(account,) if part else ()))
            before = fields | ({"field-0": -1} if number % 10 == 0 else {})
            has.append(FoundObject(key, before, ours=True, after=(account,) if part else ()))
    return Translation(tuple(wanted)), FoundPolicy("1", tuple(has), {})
