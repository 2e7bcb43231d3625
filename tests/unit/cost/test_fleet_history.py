"""Which fleet each part of a period is charged by: undated settings from the apply on, dated ones by date."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from fairway.cost.fleet_history import FleetSpan, all_teams, fleet_spans
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName
from fairway.model.price import Commitment, CostRules, PriceStep, Pricing, Sharing
from fairway.model.team import Grant, Move, Supply, Team
from tests.unit.services.cost_history import calendar

UTC_DAYS = calendar("UTC")
LAB = Cluster(ClusterName("lab"), VirtualConnection())


def at(day: int, hour: int = 0, minute: int = 0, month: int = 10) -> int:
    return int(datetime(2026, month, day, hour, minute, tzinfo=UTC).timestamp())


OCTOBER = Span(at(1), at(1, month=11))


def pool(name: str = "a", price: str = "3", **more: object) -> Pool:
    place = VirtualPlace(1, 8)
    return Pool(
        PoolName(name),
        LAB.name,
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal(price),
        place,
        pricing=Pricing(**more),  # type: ignore[arg-type]
    )


def team(name: str, parent: str | None = None, **more: object) -> Team:
    return Team(TeamName(name), TeamName(parent) if parent else None, **more)  # type: ignore[arg-type]


def fleet(*pools: Pool, teams: tuple[Team, ...] = (), clusters: tuple[Cluster, ...] = (LAB,)) -> Fleet:
    return Fleet("acme", "USD", clusters, pools or (pool(),), teams)


def step(day: date, price: str) -> PriceStep:
    return PriceStep(day, Decimal(price))


def commitment(gpus: int, since: date, until: date) -> Commitment:
    return Commitment(gpus, Decimal(1), since, until)


def spans(*timeline: tuple[int, Fleet], period: Span = OCTOBER) -> tuple[FleetSpan, ...]:
    return fleet_spans(timeline, UTC_DAYS, period)


def prices(found: tuple[FleetSpan, ...]) -> list[tuple[int, Decimal]]:
    return [(part.span.start, part.fleet.pools[0].price) for part in found]


def test_nothing_is_charged_before_the_first_fleet() -> None:
    assert spans() == ()
    (only,) = spans((at(10, 9, 40), fleet()))
    assert only.span == Span(at(10, 9), OCTOBER.end)
    assert spans((at(10), fleet()), period=Span(at(1), at(5))) == ()


def test_an_undated_price_holds_from_the_hour_after_the_apply() -> None:
    found = spans((at(1), fleet(pool(price="3.40"))), (at(10, 12, 20), fleet(pool(price="3.00"))))
    assert prices(found) == [(at(1), Decimal("3.40")), (at(10, 13), Decimal("3.00"))]
    assert found[0].span.end == at(10, 13)


def test_an_apply_at_a_full_hour_holds_at_once_and_of_one_hour_the_last() -> None:
    first, second, third = (fleet(pool(price=str(p))) for p in (1, 2, 3))
    found = spans((at(1), first), (at(5, 12), second), (at(7, 8, 10), third), (at(7, 8, 50), second))
    assert prices(found) == [(at(1), Decimal(1)), (at(5, 12), Decimal(2))]


@pytest.mark.parametrize(
    "undated", [{"discount": Decimal("0.1")}, {"slices": {SliceName("1g.10gb"): Decimal(5)}}]
)
def test_discounts_and_slice_prices_never_affect_the_past(undated: dict[str, Any]) -> None:
    before, after = spans((at(1), fleet()), (at(10), fleet(pool(**undated))))
    assert before.fleet.pools[0].pricing == Pricing()
    assert after.fleet.pools[0].pricing == Pricing(**undated)


def test_overhead_and_rules_are_those_of_then() -> None:
    dear = replace(LAB, overhead=MappingProxyType({"power": Decimal(6000)}))
    then = replace(fleet(), cost=CostRules("Asia/Kolkata", Sharing.BY_USAGE, Sharing.OWN_LINE))
    before, after = spans((at(1), then), (at(10), fleet(clusters=(dear,))))
    assert (before.fleet.clusters, after.fleet.clusters) == ((LAB,), (dear,))
    assert before.fleet.cost == CostRules("UTC", Sharing.BY_USAGE, Sharing.OWN_LINE)  # one calendar for all


def test_dated_prices_of_the_newest_file_hold_from_their_first_day() -> None:
    then = pool(price="4", steps=(step(date(2026, 9, 1), "3.8"), step(date(2026, 10, 3), "3.5")))
    now = pool(price="9", steps=(step(date(2026, 10, 5), "3"),))
    before, after = spans((at(1), fleet(then)), (at(10), fleet(now)))
    days = [date(2026, 8, 1), date(2026, 10, 1), date(2026, 10, 4), date(2026, 10, 5)]
    found = [before.fleet.pools[0].list_price(day) for day in days]
    assert found == [Decimal(4), Decimal("3.8"), Decimal("3.5"), Decimal(3)]
    assert after.fleet.pools[0].list_price(date(2026, 10, 10)) == 3


def test_a_removed_commitment_held_until_the_apply_that_removed_it() -> None:
    gone = commitment(8, date(2026, 1, 1), date(2027, 1, 1))
    added = commitment(4, date(2026, 10, 3), date(2026, 12, 1))
    before, after = spans(
        (at(1), fleet(pool(commitments=(gone,)))), (at(10), fleet(pool(commitments=(added,))))
    )
    assert before.fleet.pools[0].pricing.commitments == (added, gone)
    assert after.fleet.pools[0].pricing.commitments == (added,)


@pytest.mark.parametrize(
    "corrected",
    [
        commitment(16, date(2026, 1, 1), date(2027, 1, 1)),
        commitment(8, date(2026, 1, 1), date(2026, 10, 20)),
        commitment(8, date(2026, 10, 5), date(2027, 1, 1)),
    ],
)
def test_a_corrected_commitment_is_not_charged_twice(corrected: Commitment) -> None:
    wrong = commitment(8, date(2026, 1, 1), date(2027, 1, 1))
    first, *_ = spans(
        (at(1), fleet(pool(commitments=(wrong,)))), (at(10), fleet(pool(commitments=(corrected,))))
    )
    assert first.fleet.pools[0].pricing.commitments == (corrected,)


def test_a_removed_pool_stays_for_jobs_that_run_there_without_its_commitments() -> None:
    old = pool("old", commitments=(commitment(8, date(2026, 1, 1), date(2027, 1, 1)),))
    other = replace(LAB, name=ClusterName("other"), overhead=MappingProxyType({"power": Decimal(1)}))
    before, after = spans((at(1), fleet(pool(), old, clusters=(LAB, other))), (at(10), fleet(pool())))
    assert (sorted(before.removed), sorted(after.removed)) == ([], ["old"])
    assert [p.name for p in after.fleet.pools] == ["a", "old"]
    assert after.fleet.pools[1].pricing.commitments == ()
    assert [(c.name, dict(c.overhead)) for c in after.fleet.clusters] == [("lab", {}), ("other", {})]


def test_a_pool_that_lived_within_an_hour_or_came_back() -> None:
    with_old = fleet(pool(), pool("old"))
    found = spans((at(1), fleet()), (at(5, 8, 10), with_old), (at(5, 8, 40), fleet()), (at(9), with_old))
    assert [(p.span.start, sorted(p.removed)) for p in found] == [
        (at(1), []),
        (at(5, 9), ["old"]),
        (at(9), []),
    ]


def test_applies_that_change_no_money_are_one_span() -> None:
    timeline = [
        (at(1) + n * 1000, fleet(teams=(team("x", share=n + 1, members=(UserName(f"u{n}"),)),)))
        for n in range(2000)
    ]
    assert [part.span for part in spans(*timeline)] == [OCTOBER]


def test_guarantees_matter_only_where_they_share() -> None:
    def granted(gpus: int, rule: Sharing) -> Fleet:
        of = team("x", grants=(Grant(Supply(PoolName("a")), gpus),))
        return replace(fleet(teams=(of,)), cost=CostRules("UTC", rule))

    assert len(spans((at(1), granted(1, Sharing.BY_USAGE)), (at(9), granted(2, Sharing.BY_USAGE)))) == 1
    assert (
        len(spans((at(1), granted(1, Sharing.BY_GUARANTEE)), (at(9), granted(2, Sharing.BY_GUARANTEE)))) == 2
    )


def test_a_renamed_team_has_its_new_name_in_all_of_its_past() -> None:
    first = fleet(teams=(team("a"), team("x", "a")))
    second = fleet(teams=(team("a"), team("y", "a", renamed_from="x")))
    third = fleet(teams=(team("a"), team("z", "a", renamed_from="y")))
    one, two, three = spans((at(1), first), (at(5), second), (at(9), third))
    assert one.path("x") == two.path("y") == two.path("x") == three.path("z") == three.path("x") == ("a", "z")
    assert [t.name for t in one.fleet.teams] == ["a", "z"]
    assert all_teams([(0, first), (1, second), (2, third)]) == {"a": "a", "x": "z", "y": "z", "z": "z"}


def test_a_name_that_is_used_again_is_another_team() -> None:
    one, _, three = spans(
        (at(1), fleet(teams=(team("x"),))),
        (at(5), fleet(teams=(team("y", renamed_from="x"),))),
        (at(9), fleet(teams=(team("y"), team("x")))),
    )
    assert (one.path("x"), three.path("x"), three.path("y")) == (("y",), ("x",), ("y",))


def test_a_rename_can_be_said_later() -> None:
    one, two, three = spans(
        (at(1), fleet(teams=(team("x"),))),
        (at(5), fleet(teams=(team("y"),))),
        (at(9), fleet(teams=(team("y", renamed_from="x"),))),
    )
    assert {part.path("x") for part in (one, two, three)} == {("y",)}


def test_a_moved_team_stays_where_it_was_until_the_apply_or_the_day() -> None:
    tops = (team("a"), team("b"))
    before = fleet(teams=(*tops, team("x", "a"), team("xx", "x")))
    undated = fleet(teams=(*tops, team("x", "b"), team("xx", "x")))
    found = spans((at(1), before), (at(10), undated))
    assert [(p.span.start, p.path("xx")) for p in found] == [
        (at(1), ("a", "x", "xx")),
        (at(10), ("b", "x", "xx")),
    ]
    for day in (date(2026, 10, 5), date(2026, 10, 20)):
        dated = fleet(teams=(*tops, team("x", "b", moved=Move(TeamName("a"), day)), team("xx", "x")))
        paths = {
            n: part.path("xx")[0]
            for part in spans((at(1), before), (at(10), dated))
            for n in range(1, 32)
            if part.span.start <= at(n) < part.span.end
        }
        assert paths == {n: "a" if n < day.day else "b" for n in range(1, 32)}


def test_a_removed_team_keeps_its_last_path() -> None:
    _, after = spans((at(1), fleet(teams=(team("a"), team("x", "a")))), (at(10), fleet(teams=(team("a"),))))
    assert after.path("x") == ("a", "x")
    assert (after.path("never"), after.path("")) == (("never",), ())


def test_a_removed_team_goes_where_its_parent_goes() -> None:
    """Or the parent's parent would have spent less than the parent."""
    found = spans(
        (at(1), fleet(teams=(team("a"), team("b", "a"), team("top")))),
        (at(10), fleet(teams=(team("a"), team("top")))),
        (at(20), fleet(teams=(team("a", "top"), team("top")))),
        (at(25), fleet(teams=(team("top"),))),
    )
    assert [(one.path("a"), one.path("b")) for one in found] == [
        (("a",), ("a", "b")),
        (("a",), ("a", "b")),
        (("top", "a"), ("top", "a", "b")),
        (("top", "a"), ("top", "a", "b")),
    ]
