"""How teams stand, from counts of jobs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.ledger import PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.model.job import JobState
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.team import Grant, Supply, Team
from fairway.web.pages.teams.view_model import Sort, TeamListRow, sorted_rows, team_rows
from tests.unit.services.cost_history import FLEET

A100 = Supply(PoolName("a100"))
MIG = Supply(PoolName("mig"), SliceName("1g.10gb"))


def team(name: str, parent: str | None, *grants: Grant, share: int = 1) -> Team:
    return Team(TeamName(name), TeamName(parent) if parent else None, share=share, grants=grants)


TEAMS = (
    team("research", None, Grant(A100, 12, 4), Grant(MIG, 7), share=3),
    team("vision", "research", Grant(A100, 3), Grant(MIG, 7)),
    team("nlp", "research", Grant(A100, 6, 20)),
    team("product", None, Grant(A100, 4, 2)),
)


def count(team: str | None, supply: Supply, state: JobState, jobs: int, devices: int) -> JobCount:
    return JobCount(
        ClusterName("hpc"), TeamName(team) if team else None, supply.pool, supply.slice, state, jobs, devices
    )


COUNTS = (
    count("nlp", A100, JobState.RUNNING, 2, 8),
    count("vision", A100, JobState.RUNNING, 1, 2),
    count("vision", MIG, JobState.RUNNING, 3, 9),
    count("nlp", A100, JobState.WAITING, 1, 4),
    count("nlp", A100, JobState.QUEUED, 2, 2),
    count("nlp", A100, JobState.HELD, 5, 50),
    count(None, A100, JobState.RUNNING, 1, 5),
)
SEEN = PoolState(ClusterName("hpc"), PoolName("a100"), None, 16, 10, 6, 0, 2, 0, 0)


def told(seen: frozenset[str] | None = None, **used: int) -> dict[str, TeamListRow]:
    hours = {name: Decimal(n) for name, n in used.items()} or None
    fleet = replace(FLEET, teams=TEAMS)
    return {line.team.name: line for line in team_rows(fleet, COUNTS, (SEEN,), {}, (), seen, hours)}


def test_a_team_counts_with_all_inside_it() -> None:
    found = told()
    assert list(found) == ["product", "research", "nlp", "vision"]
    research = found["research"]
    assert (research.gpus.held, research.gpus.guarantee, research.gpus.borrowed) == (10, 12, 0)
    assert (research.jobs_running, research.jobs_waiting, research.gpus.waiting) == (6, 3, 6)
    assert research.slices is not None
    assert (research.slices.held, research.slices.borrowed) == (9, 2)
    assert found["nlp"].gpus.borrowed == 2
    assert found["nlp"].slices is None
    assert found["nlp"].path == ("research", "nlp")


def test_room_left_on_one_pool_does_not_hide_what_is_borrowed_on_another() -> None:
    h100 = Supply(PoolName("h100"))
    product = team("product", None, Grant(A100, 4), Grant(h100, 8))
    counts = (count("product", A100, JobState.RUNNING, 1, 10),)
    found = team_rows(replace(FLEET, teams=(product,)), counts, (), {}, (), None)[0]
    assert (found.gpus.held, found.gpus.guarantee, found.gpus.borrowed) == (10, 12, 6)


def test_what_is_held_without_a_grant_is_borrowed_too() -> None:
    counts = (count("guests", A100, JobState.RUNNING, 1, 3),)
    found = team_rows(replace(FLEET, teams=(team("guests", None),)), counts, (SEEN,), {}, (), None)[0]
    assert (found.gpus.held, found.gpus.borrowed, found.gpus.limit) == (3, 3, 0)


def test_the_most_it_may_hold() -> None:
    found = told()
    assert found["research"].gpus.limit == 16
    assert found["nlp"].gpus.limit == 16  # its own ceiling is 26, but research's is 16
    assert found["vision"].supplies[0].limit == 16  # whatever is idle, as far as research may hold it
    assert found["product"].gpus.limit == 6
    assert found["vision"].supplies[1].limit is None  # nobody ever saw the pool
    assert "may hold" not in found["vision"].supplies[1].description


def test_a_bar_is_as_long_as_what_may_be_held() -> None:
    nlp = told()["nlp"].supplies[0]
    assert (nlp.scale, nlp.length(nlp.own), nlp.length(nlp.borrowed)) == (16, "37.50", "12.50")
    assert nlp.description == "a100: holds 8, 2 of them borrowed, guaranteed 6, may hold 16"
    nothing = told()["vision"].supplies[1]
    assert float(nothing.length(nothing.own)) + float(nothing.length(nothing.borrowed)) == 100


def test_shares_and_lately() -> None:
    found = told(nlp=30, vision=10, product=60)
    assert (found["research"].share_part, found["nlp"].share_part) == (Decimal(75), Decimal(50))
    assert (found["research"].gpu_hours, found["research"].used_part) == (Decimal(40), Decimal(40))
    mine = told(frozenset({"nlp"}), nlp=30)
    assert (mine["nlp"].gpu_hours, mine["nlp"].used_part) == (
        Decimal(30),
        None,
    )  # of what all used is not theirs
    assert (mine["product"].gpu_hours, mine["product"].open_to_caller) == (None, False)


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (Sort.TREE, ["product", "research", "nlp", "vision"]),
        (Sort.NAME, ["nlp", "product", "research", "vision"]),
        (Sort.HELD, ["research", "nlp", "vision", "product"]),
        (Sort.BORROWED, ["nlp", "product", "research", "vision"]),
        (Sort.WAITING, ["research", "nlp", "product", "vision"]),
        (Sort.GUARANTEE, ["research", "nlp", "product", "vision"]),
        (Sort.USED, ["product", "research", "nlp", "vision"]),
    ],
)
def test_orders(sort: Sort, names: list[str]) -> None:
    found = list(told(nlp=30, vision=10, product=60).values())
    assert [line.team.name for line in sorted_rows(found, sort)] == names
