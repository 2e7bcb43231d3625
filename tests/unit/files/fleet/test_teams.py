"""Teams, priorities and users of a sound file, with everything inherited written out."""

from __future__ import annotations

from fairway.files import parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Grant, Limits, Priority, Supply, Team
from tests.growth import grows_at_most
from tests.unit.files.fleets import FOLDER, SHARED, SOUND, changed, checked

A100 = Supply(PoolName("hpc-a100"))
SMALL = Supply(PoolName("lab-mig"), SliceName("1g.10gb"))


def fleet_of(text: str) -> Fleet:
    return parse_fleet(text, "fleet.yaml", FOLDER)


def team(text: str, name: str) -> Team:
    return next(t for t in fleet_of(text).teams if t.name == name)


def test_every_value_and_everything_inherited() -> None:
    fleet = fleet_of(SHARED)
    urgent, normal, low = (PriorityName(name) for name in ("urgent", "normal", "low"))
    limits = Limits(job_gpus=32, job_seconds=72 * 3600, user_gpus=24)
    research = TeamName("research")
    assert checked(SHARED).faults == ()
    assert fleet.teams == (
        Team(research, None, 60, (Grant(A100, 16, 16), Grant(SMALL, 32)), limits, (urgent, normal, low)),
        Team(
            TeamName("nlp"),
            research,
            2,
            (Grant(A100, 8), Grant(SMALL)),
            limits,
            (urgent, normal, low),
            (UserName("alice"), UserName("erin")),
        ),
        Team(
            TeamName("vision"),
            research,
            1,
            (Grant(A100),),
            limits,
            (urgent, normal, low),
            (UserName("alice"), UserName("carol")),
        ),
        Team(
            TeamName("product"), None, 40, (Grant(A100, 16),), Limits(), (urgent, normal), (UserName("bob"),)
        ),
    )
    assert fleet.priorities == (
        Priority(urgent, 100),
        Priority(normal, 50, default=True),
        Priority(low, 10, preemptible=True),
    )
    assert fleet.fairness == Fairness(14 * 86_400)
    assert fleet.chosen_teams == {"alice": "nlp"}
    assert fleet.default_teams() == {"alice": "nlp", "erin": "nlp", "carol": "vision", "bob": "product"}
    assert [pool.gpus for pool in fleet.pools] == [32, None, None]


def test_a_fleet_that_says_nothing_of_it_has_the_usual_priorities_and_no_teams() -> None:
    fleet = fleet_of(SOUND)
    assert (fleet.teams, fleet.priorities, fleet.fairness) == ((), DEFAULT_PRIORITIES, Fairness())
    assert fleet.chosen_teams == {}


def test_a_supply_named_under_borrow_alone_is_granted_too() -> None:
    text = changed(
        "    members: [bob]\n", "    members: [bob]\n    borrow: { cloud-h100: unlimited }\n", SHARED
    )
    assert team(text, "product").grants == (Grant(A100, 16), Grant(Supply(PoolName("cloud-h100")), 0, None))


def test_no_guarantee_and_nothing_to_borrow_is_no_grant_for_the_team_and_those_inside_it() -> None:
    inner = "vision: { teams: { eyes: { members: [zoe] } }, "
    text = changed("vision: { ", inner, SHARED)
    assert team(text, "eyes").grants == (Grant(A100),)


def test_people_are_called_what_the_engines_call_them() -> None:
    text = SHARED.replace("[bob]", '["4711", bob@example.org, "oidc:bob", _x.y-z]')
    assert team(text, "product").members == ("4711", "bob@example.org", "oidc:bob", "_x.y-z")


def test_a_child_may_lift_a_limit_of_its_parent_or_set_its_own() -> None:
    own = "vision: { limits: { job: { time: unlimited, gpus: 4 } }, "
    assert team(changed("vision: { ", own, SHARED), "vision").limits == Limits(4, None, 24)


def test_priorities_come_by_rank_whatever_the_order_of_writing() -> None:
    text = SHARED.replace("[urgent, normal]", "[low, urgent]")
    assert team(text, "product").priorities == ("urgent", "low")
    swapped = SHARED.replace("rank: 100", "rank: 1").replace("rank: 10,", "rank: 2,")
    fleet = fleet_of(swapped)
    assert [p.name for p in fleet.priorities] == ["normal", "low", "urgent"]
    assert team(swapped, "product").priorities == ("normal", "urgent")


def test_a_child_has_its_parents_priorities_unless_it_names_its_own() -> None:
    text = changed("    share: 60\n", "    share: 60\n    priorities: [low]\n", SHARED)
    assert team(text, "nlp").priorities == ("low",)
    assert team(text.replace("nlp: {", "nlp: { priorities: [normal],"), "nlp").priorities == ("normal",)


def test_a_team_inside_a_draining_one_drains_too() -> None:
    text = changed("    share: 60\n", "    share: 60\n    draining: true\n", SHARED)
    assert [t.name for t in fleet_of(text).teams if t.draining] == ["research", "nlp", "vision"]


def test_grants_come_in_the_order_of_the_pools() -> None:
    text = SHARED.replace("{ hpc-a100: 16, lab-mig/1g.10gb: 32 }", "{ lab-mig/1g.10gb: 32, hpc-a100: 16 }")
    assert fleet_of(text) == fleet_of(SHARED)


def test_teams_nest_as_deep_as_anybody_needs() -> None:
    inner = "members: [deep]"
    for level in range(9, 0, -1):
        inner = f"teams: {{ level{level}: {{ {inner} }} }}"
    fleet = fleet_of(changed("    members: [bob]\n", f"    {inner}\n", SHARED))
    assert [t.name for t in fleet.teams][-1] == "level9"
    assert fleet.teams[-1].grants == (Grant(A100),)


def text_of(teams: int, member: str, priority: str = "normal") -> str:
    text = SOUND + "teams:\n"
    for i in range(teams // 10):
        text += f"  org{i}:\n    guarantee: {{ hpc-a100: 64 }}\n    teams:\n"
        for j in range(9):
            inner = f"guarantee: {{ hpc-a100: 4 }}, priorities: [{priority}], members: [{member}{i}-{j}]"
            text += f"      org{i}-t{j}: {{ {inner} }}\n"
    text += "users:\n"
    return text + "".join(
        f"  u{i}-{j}: {{ default_team: org{i}-t{j} }}\n" for i in range(teams // 10) for j in range(9)
    )


def test_the_time_to_check_grows_as_the_number_of_teams_does() -> None:
    few, many = text_of(100, "u"), text_of(2000, "u")
    # Every team names a priority that is not there, every user a team that they are not in.
    wrong = text_of(2000, "v", "nromal")
    sound, faulty = checked(many), checked(wrong)
    assert sound.fleet is not None
    assert len(sound.fleet.teams) == 2000
    assert (faulty.fleet, len(faulty.faults)) == (None, 101)
    # Twenty times the teams: a quadratic part would make it four hundred times the time.
    assert grows_at_most(20 * 4, lambda: checked(few), lambda: checked(many))
    assert grows_at_most(20 * 4, lambda: checked(few), lambda: checked(wrong))


def test_a_cost_centre_is_read_and_written_back() -> None:
    fleet = fleet_of(changed("share: 2,", 'share: 2, cost_centre: "4711-AI",', SHARED))
    assert {t.name: t.cost_centre for t in fleet.teams if t.cost_centre} == {"nlp": "4711-AI"}
    assert fleet_of(compose_fleet(fleet)) == fleet
