"""What is used, on loan, idle, drained and down, and what teams hold: decisions alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount, by_team
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Grant, Supply, Team
from fairway.web.pages.fleet.supply_bars import Grants, segments, supply_bar
from fairway.web.pages.teams.view_model import team_rows

A100 = Supply(PoolName("a100"))


def team(name: str, guarantee: int, borrow: int | None = None, parent: str | None = None) -> Team:
    return Team(
        TeamName(name), None if parent is None else TeamName(parent), grants=(Grant(A100, guarantee, borrow),)
    )


def grants(*teams: Team) -> Grants:
    return Grants(replace(Fleet("f", "USD", (), ()), teams=teams))


def held(**by: int) -> dict[TeamName | None, int]:
    return {TeamName(name): count for name, count in by.items()}


def state(total: int, in_use: int, free: int) -> PoolState:
    unhealthy = total - in_use - free
    return PoolState(ClusterName("hpc"), A100.pool, None, total, in_use, free, unhealthy, 4, 0, 0)


def test_what_a_team_holds_within_its_guarantee_is_not_lent() -> None:
    known = grants(team("research", 16), team("product", 8))
    assert known.lent(A100, held(research=16, product=3)) == 0


def test_what_it_holds_beyond_is() -> None:
    known = grants(team("research", 16), team("product", 8))
    assert known.lent(A100, held(research=20, product=9)) == 5


def test_what_a_child_holds_beyond_its_own_is_lent_only_where_its_family_is_beyond_too() -> None:
    known = grants(team("research", 16), team("nlp", 4, parent="research"))
    assert known.lent(A100, held(nlp=10)) == 0
    assert [r.borrowed for r in known.rows(A100, held(nlp=10), {})] == [0, 6]  # from its own family
    assert known.lent(A100, held(nlp=20)) == 4
    assert known.lent(A100, held(nlp=2, research=18)) == 4


def test_a_team_without_a_grant_holds_only_what_is_lent() -> None:
    assert grants(Team(TeamName("guests"))).lent(A100, held(guests=3)) == 3


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 4), min_size=1, max_size=5))
def test_what_fleet_and_pool_call_lent_is_what_teams_and_their_rows_call_borrowed(
    families: list[tuple[int, int, int, int]],
) -> None:
    teams: list[Team] = []
    holds: dict[TeamName | None, int] = {}
    for i, (guarantee, own, inner, inner_held) in enumerate(families):
        teams += [team(f"t{i}", guarantee), team(f"c{i}", inner, parent=f"t{i}")]
        holds |= {TeamName(f"t{i}"): own, TeamName(f"c{i}"): inner_held}
    known = grants(*teams)
    lent = known.lent(A100, holds)
    beyond = sum(max(0, own + of_child - guarantee) for guarantee, own, _, of_child in families)
    counts = [
        JobCount(ClusterName("hpc"), name, A100.pool, None, JobState.RUNNING, 1, devices)
        for name, devices in holds.items()
    ]
    standing = team_rows(known.fleet, counts, (), {}, (), None)
    rows = known.rows(A100, holds, {})
    assert lent == beyond
    assert lent == sum(row.borrowed for row in rows if row.depth == 0)
    assert lent == sum(line.gpus.borrowed for line in standing if line.depth == 0)
    assert {r.team: r.borrowed for r in rows} == {s.team.name: s.gpus.borrowed for s in standing}


def test_rows_stand_below_their_parents_with_what_is_inside() -> None:
    known = grants(
        team("research", 16, 8), team("nlp", 4, parent="research"), team("cv", 2, 50, parent="research")
    )
    rows = known.rows(A100, held(nlp=6, research=1), {TeamName("cv"): 3})
    assert [(r.team, r.depth, r.guarantee, r.held, r.borrowed, r.limit, r.waiting) for r in rows] == [
        ("research", 0, 16, 7, 0, 24, 3),
        ("nlp", 1, 4, 6, 2, 24, 0),
        ("cv", 1, 2, 0, 0, 24, 3),
    ]


def test_a_team_with_nothing_there_has_no_row() -> None:
    known = grants(team("research", 16), Team(TeamName("guests")))
    assert [row.team for row in known.rows(A100, {}, {})] == ["research"]
    assert [row.team for row in known.rows(A100, held(guests=1), {})] == ["research", "guests"]


def test_a_bar_adds_up_to_what_is_there() -> None:
    bar = supply_bar(A100, state(32, 20, 6), lent=5, drained=4)
    assert {s.kind: s.count for s in bar.segments} == {
        "used": 15,
        "on_loan": 5,
        "idle": 6,
        "drained": 4,
        "down": 2,
    }
    assert bar.description == "15 used, 5 on loan, 6 idle, 4 drained, 2 down"


def test_nodes_are_right_where_jobs_were_seen_at_another_moment() -> None:
    bar = supply_bar(A100, state(32, 24, 8), lent=30, drained=9)
    assert {s.kind: s.count for s in bar.segments} == {"on_loan": 24, "idle": 8}


def test_stretches_stand_side_by_side() -> None:
    made = segments({"used": 3, "on_loan": 0, "idle": 1}, 4)
    assert [(s.start, s.width) for s in made] == [("0", "75"), ("75", "25")]


def test_devices_are_summed_by_supply_and_team_and_state() -> None:
    def count(team_name: str | None, how: JobState, devices: int) -> JobCount:
        name = None if team_name is None else TeamName(team_name)
        return JobCount(ClusterName("hpc"), name, A100.pool, None, how, 1, devices)

    counts = [
        count("nlp", JobState.RUNNING, 8),
        count("nlp", JobState.RUNNING, 2),
        count(None, JobState.RUNNING, 1),
        count("nlp", JobState.WAITING, 4),
    ]
    assert by_team(counts, JobState.RUNNING) == {A100: {"nlp": 10, None: 1}}
    assert by_team(counts, JobState.WAITING, JobState.QUEUED) == {A100: {"nlp": 4}}
