"""GPUs over time: averages that sum to the capacity, loans, queue, and what a member may see."""

from __future__ import annotations

from fairway.ledger.usage.queue import QueueHour
from fairway.model.charge import CapacitySum, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import Grant, Supply, Team
from fairway.web.pages.fleet.plots import OTHER_TEAMS, PlotData, _without, chart, plot_data
from fairway.web.pages.fleet.supply_bars import Grants
from tests.unit.cost.small import gpus

HOUR = 3600
POOL = gpus()
A100 = Supply(POOL.name)
SPANS = [Span(n * HOUR, (n + 1) * HOUR) for n in range(2)]


def used(span: int, team: str, devices: int) -> UsageSum:
    return UsageSum(span, A100, (team,), devices * HOUR)


def capacity(span: int, drained: int = 0) -> CapacitySum:
    return CapacitySum(span * HOUR, ClusterName("hpc"), A100, 16 * HOUR, drained * HOUR, 0, 0, 16 * HOUR)


def data() -> PlotData:
    teams = (Team(TeamName("nlp"), grants=(Grant(A100, 4),)), Team(TeamName("cv"), grants=(Grant(A100, 8),)))
    return plot_data(
        {POOL.name: POOL},
        SPANS,
        [capacity(0, drained=2), capacity(1)],
        [used(0, "nlp", 6), used(0, "cv", 5), used(1, "cv", 8), used(1, "", 1)],
        [QueueHour(0, A100, 1800, 4 * 1800)],
        Grants(Fleet(name="f", currency="USD", clusters=(), pools=(POOL,), teams=teams)),
        by_day=False,
    )


def test_parts_loans_and_queue() -> None:
    found = data()
    assert found.by_team == {"nlp": (6.0, 0.0), "cv": (5.0, 8.0), "no team": (0.0, 1.0)}
    assert found.by_pool == {"gpus": (11.0, 9.0)}
    assert found.capacity == (16.0, 16.0)
    assert found.out_of_service == (2.0, 0.0)
    assert found.on_loan == (2.0, 0.0)  # nlp holds 6 and is guaranteed 4
    assert found.queued == (4.0, None)  # the second hour was not observed


def test_the_chart_has_fixed_colours_and_one_rest() -> None:
    found = data()
    shown = chart(found, found.by_team, {"nlp": 7, "cv": 1}, OTHER_TEAMS)
    assert [(s["name"], s["colour"], s["values"]) for s in shown["series"]] == [
        ("cv", "t1", [5.0, 8.0]),
        ("nlp", "t7", [6.0, 0.0]),
        (OTHER_TEAMS, "others", [0.0, 1.0]),
    ]


def test_a_member_sees_the_usage_of_others_only_together() -> None:
    found = data()
    mine = _without(found.by_team, frozenset({"nlp"}))
    assert mine == {"nlp": (6.0, 0.0), OTHER_TEAMS: [5.0, 9.0]}
    shown = chart(found, mine, {"nlp": 7, "cv": 1}, OTHER_TEAMS)
    assert [s["name"] for s in shown["series"]] == ["nlp", OTHER_TEAMS]
    assert sum(map(sum, mine.values())) == sum(map(sum, found.by_team.values()))
