"""A worked example of FOCUS rows: quantities, unit prices and commitments equal a calculation by hand.

The 2nd to the 3rd of November, in USD and UTC, with idle: by-guarantee and overhead on a line of its own.

`gpus`, reserved: 40 GPUs at a list price of 4.00 less 10 %, of which 16 are committed at 2.00 (sp-1), and 16
at 2.50. Team a holds 20 of them all day, so 20 are idle. Each GPU is covered 16/40 by each of the two and
8/40 by none:

    used by a  480 h   192 h x 2.00 = 384.00   192 h x 2.50 = 480.00    96 h x 3.60 = 345.60
    idle       480 h   192 h x 2.00 = 384.00   192 h x 2.50 = 480.00    96 h x 3.60 = 345.60
    of it a, with 30 of 40 guaranteed: 144 h, 144 h, 72 h; b, with 10: 48 h, 48 h, 24 h

`half`, owned: 16 GPUs committed at 2.00, of which 8 are there; list price 4.00. Team b holds 4 all day.

    used 96 h x 2.00 = 192.00    idle 96 h x 2.00 = 192.00    not there 192 h x 2.00 = 384.00
    utilisation: 96 of 384 committed hours, 25 %

`mig`, owned: one A100 at 1.40 cut into 7 slices, so 0.20 for an hour of a slice. Team a holds 3 all day.

    used 72 h x 0.20 = 14.40, 3/7 of the GPU    idle 96 h x 0.20 = 19.20, all of it to b

Overhead: 3,000 a month, which is 100 a day of November; from the 3rd on 6,000, so 200 a day.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.charges import charges
from fairway.cost.focus.export import COLUMNS, DayCharges, ExportContext, rows
from fairway.cost.rates import rate_spans
from fairway.model.charge import Label, UsageSum
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import PoolName, TeamName
from fairway.model.price import Commitment, Pricing, Sharing
from fairway.model.team import Grant, Supply, Team
from tests.unit.cost.small import CALENDAR, GPUS, MIG, ONE, WHOLE, H, day, fleet, gpus, had, slices, team

YEAR = (date(2026, 1, 1), date(2027, 1, 1))
HALF = Supply(PoolName("half"))
CUT = Supply(MIG, ONE)
BY = (Label.TEAM, Label.DAY)
Named = dict[str, str]


def site(monthly: str, idle: Sharing = Sharing.BY_GUARANTEE) -> Fleet:
    two = (Commitment(16, Decimal(2), *YEAR, id="sp-1"), Commitment(16, Decimal("2.5"), *YEAR))
    reserved = replace(
        gpus("4"), capacity=Capacity.RESERVED, pricing=Pricing(discount=Decimal("0.1"), commitments=two)
    )
    half = replace(
        gpus("4"), name=HALF.pool, pricing=Pricing(commitments=(Commitment(16, Decimal(2), *YEAR),))
    )
    a = team("a", gpus=30)
    grants = (Grant(WHOLE, 10), Grant(HALF, 8), Grant(CUT, 7))
    b = Team(TeamName("b"), TeamName("a"), grants=grants)
    a = replace(a, grants=(Grant(WHOLE, 40), Grant(HALF, 8), Grant(CUT, 7)))
    return fleet(reserved, half, slices("1.40"), teams=(a, b), idle=idle, monthly=monthly)


def made(*fleets: Fleet, teams: frozenset[str] | None = None) -> list[Named]:
    """The rows of one day after the other, each under its fleet."""
    found = []
    for number, then in enumerate(fleets):
        capacity = [
            replace(row, start=row.start + number * 24 * H)
            for hour in range(24)
            for row in (had(hour, 40), had(hour, 8, HALF), had(hour, 7, CUT, behind=1))
        ]
        rates = rate_spans(then, CALENDAR, day(number), capacity, {})
        text = CALENDAR.day_of(day(number).start).isoformat()
        held = ((WHOLE, "a", 20), (HALF, "b", 4), (CUT, "a", 3))
        usage = [UsageSum(0, supply, (who, text), n * 24 * H) for supply, who, n in held]
        assert all(len(spans) == 1 for spans in rates.values())
        items = charges(then, CALENDAR, day(number), capacity, rates, usage, BY, itemised=True)
        named = [c if c.labels is None else replace(c, labels=c.labels[:1]) for c in items]
        found.append(DayCharges(day(number), then, named))
    context = ExportContext(fleets[-1], CALENDAR, (Label.TEAM,), teams)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows(context, found)]


@pytest.fixture(scope="module")
def found() -> list[Named]:
    return made(site("3000"))


Figures = tuple[str, str, str, str, str, str]


def figures(found: Sequence[Named], pool: str, kind: str, team: str) -> list[Figures]:
    """Commitment, hours, list price, contracted price, cost, list cost."""
    columns = (
        "CommitmentDiscountId",
        "PricingQuantity",
        "ListUnitPrice",
        "ContractedUnitPrice",
        "EffectiveCost",
        "ListCost",
    )
    picked = [
        row for row in found if (row["x_Pool"], row["x_Kind"], row["SubAccountId"]) == (pool, kind, team)
    ]
    told = [tuple(row[column] for column in columns) for row in picked]
    return sorted(told)  # type: ignore[arg-type]


def test_covered_and_uncovered_hours_have_rows_of_their_own(found: list[Named]) -> None:
    assert figures(found, GPUS, "usage", "a") == [
        ("", "96.0", "4.0", "3.6", "345.6", "384.0"),
        ("gpus-2026-01-01", "192.0", "4.0", "3.6", "480.0", "768.0"),
        ("sp-1", "192.0", "4.0", "3.6", "384.0", "768.0"),
    ]


def test_a_share_of_idle_capacity_has_its_share_of_the_hours(found: list[Named]) -> None:
    assert figures(found, GPUS, "idle", "a") == [
        ("", "72.0", "4.0", "3.6", "259.2", "288.0"),
        ("gpus-2026-01-01", "144.0", "4.0", "3.6", "360.0", "576.0"),
        ("sp-1", "144.0", "4.0", "3.6", "288.0", "576.0"),
    ]
    assert figures(found, GPUS, "idle", "b") == [
        ("", "24.0", "4.0", "3.6", "86.4", "96.0"),
        ("gpus-2026-01-01", "48.0", "4.0", "3.6", "120.0", "192.0"),
        ("sp-1", "48.0", "4.0", "3.6", "96.0", "192.0"),
    ]


def test_the_pool_adds_up_to_its_capacity_and_its_savings(found: list[Named]) -> None:
    own = [row for row in found if row["x_Pool"] == GPUS]
    assert sum(Decimal(row["PricingQuantity"]) for row in own) == 40 * 24
    listed, cost = (sum(Decimal(row[c]) for row in own) for c in ("ListCost", "EffectiveCost"))
    assert (listed, cost) == (Decimal(3840), 2 * Decimal("1209.60"))
    by_id = {id_: Decimal(0) for id_ in ("sp-1", "gpus-2026-01-01")}
    for row in own:
        if row["CommitmentDiscountId"]:
            by_id[row["CommitmentDiscountId"]] += Decimal(row["CommitmentDiscountQuantity"])
    assert by_id == {"sp-1": 16 * 24, "gpus-2026-01-01": 16 * 24}


def test_committed_gpus_that_are_not_there_are_unused_at_their_own_price(found: list[Named]) -> None:
    assert figures(found, "half", "usage", "b") == [
        ("half-2026-01-01", "96.0", "4.0", "4.0", "192.0", "384.0")
    ]
    assert figures(found, "half", "idle", "b") == [
        ("half-2026-01-01", "96.0", "4.0", "4.0", "192.0", "384.0")
    ]
    assert figures(found, "half", "commitment", "b") == [
        ("half-2026-01-01", "192.0", "2.0", "2.0", "384.0", "384.0")
    ]
    hours = {"Used": Decimal(0), "Unused": Decimal(0)}
    for row in found:
        if row["x_Pool"] == "half":
            hours[row["CommitmentDiscountStatus"]] += Decimal(row["CommitmentDiscountQuantity"])
            assert bool(row["ConsumedQuantity"]) == (row["CommitmentDiscountStatus"] == "Used")
    assert hours["Used"] / sum(hours.values()) == Decimal("0.25")


def test_slices_have_their_hours_and_their_part_of_the_gpu(found: list[Named]) -> None:
    assert figures(found, MIG, "usage", "a") == [("", "72.0", "0.2", "0.2", "14.4", "14.4")]
    assert figures(found, MIG, "idle", "b") == [("", "96.0", "0.2", "0.2", "19.2", "19.2")]
    (used,) = (row for row in found if row["x_Pool"] == MIG and row["x_Kind"] == "usage")
    (element,) = json.loads(used["AllocatedMethodDetails"], parse_float=Decimal)["Elements"]
    assert element == {
        "AllocatedRatio": Decimal("0.428571428571"),
        "UsageUnit": "Slice-Seconds",
        "UsageQuantity": Decimal(72 * H),
    }


def test_overhead_has_days_at_the_price_of_that_day() -> None:
    told = made(site("3000"), site("6000", idle=Sharing.OWN_LINE))
    overhead = [row for row in told if row["x_Kind"] == "overhead"]
    assert [(row["PricingQuantity"], row["ListUnitPrice"], row["EffectiveCost"]) for row in overhead] == [
        ("1.0", "100.0", "100.0"),
        ("1.0", "200.0", "200.0"),
    ]
    methods = {
        row["ChargePeriodStart"][:10]: row["AllocatedMethodId"] for row in told if row["x_Kind"] == "idle"
    }
    assert methods["2026-11-02"] == "fairway/idle-by-guarantee"
    assert methods["2026-11-03"] != "fairway/idle-own-line"


def test_only_reserved_capacity_is_a_reservation(found: list[Named]) -> None:
    reserved = {(row["x_Pool"], row["CapacityReservationStatus"]) for row in found}
    assert reserved == {(GPUS, "Used"), (GPUS, "Unused"), ("half", ""), (MIG, ""), ("", "")}


def test_teams_have_their_parents_and_nobody_has_no_account(found: list[Named]) -> None:
    paths = {(row["SubAccountId"], row["x_TeamPath"]) for row in found}
    assert paths == {("a", "a"), ("b", "a/b"), ("", "")}


def test_everything_adds_up(found: list[Named]) -> None:
    total = 2 * Fraction("1209.60") + 768 + Fraction("33.60") + 100
    assert sum(Fraction(row["BilledCost"]) for row in found) == total
    assert not [row for row in found if row["x_UsedIn"]]  # whole cents: nothing to round
