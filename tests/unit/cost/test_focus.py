"""FOCUS rows: they sum to the report's cents, and every row keeps the specification's rules."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.cost.corrections import statement_amounts
from fairway.cost.fleet_history import always
from fairway.cost.focus.columns import MOMENTS, NUMBERS, PLACE, PLACES
from fairway.cost.focus.export import COLUMNS, NO_TEAM, Correction, DayCharges, Row, rows
from fairway.cost.focus.rows import decimal_text
from fairway.cost.report import column_of
from fairway.cost.rounding import MILLIONTH, rounded
from fairway.model.charge import Charge, ChargeKind, Span
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import Sharing
from fairway.model.team import Supply
from tests.tier import examples
from tests.unit.cost.focus_data import LABELS, Days, fleet

CENT = Decimal("0.01")
MARCH = date(2026, 3, 1)
Told = dict[str, str]


def made(days: Days, corrections: Iterable[Correction] = ()) -> list[Told]:
    return [named(row) for row in rows(days.book, days, corrections)]


def named(row: Row) -> Told:
    assert len(row) == len(COLUMNS)
    return dict(zip(COLUMNS, row, strict=True))


def total(found: Iterable[Told], column: str = "BilledCost") -> Decimal:
    return sum((Decimal(row[column]) for row in found), Decimal(0))


# --- sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", list(Sharing))
@pytest.mark.parametrize("overhead", list(Sharing))
def test_a_month_sums_to_its_statement_line_by_line(idle: Sharing, overhead: Sharing) -> None:
    days = Days(fleet(idle, overhead), MARCH, 31, users=2)
    charges = [charge for day in days for charge in day.charges]
    lines = statement_amounts(charges, LABELS, CENT)
    found: dict[tuple[str, str, str, str, str], Decimal] = defaultdict(Decimal)
    for row in made(days):
        team = row["SubAccountId"].replace(NO_TEAM, "")
        found[team, row["x_Kind"], row["x_Cluster"], row["x_Pool"], row["x_Slice"]] += Decimal(
            row["BilledCost"]
        )
    assert dict(found) == {
        (
            line.team,
            str(line.kind),
            str(line.cluster),
            str(line.supply.pool) if line.supply else "",
            str(line.supply.slice or "") if line.supply else "",
        ): line.amount
        for line in lines
    }
    assert sum(found.values()) == _due(charges, CENT)


def _due(charges: Iterable[Charge], cent: Decimal) -> Decimal:
    """What a report of these charges sums to: its columns, each rounded once."""
    columns: dict[str, Fraction] = defaultdict(Fraction)
    for charge in charges:
        columns[column_of(charge.kind)] += charge.amount
    return sum((rounded(Fraction(rounded(c, MILLIONTH)), cent) for c in columns.values()), Decimal(0))


def test_a_window_over_months_sums_to_the_reports_total() -> None:
    days = Days(fleet(), date(2026, 2, 25), 9, users=1)
    charges = [c for day in days for c in day.charges]
    assert total(made(days)) == _due(charges, CENT)


def test_one_teams_file_has_its_lines_of_the_statement() -> None:
    days = Days(fleet(), MARCH, 3, users=1)
    of_all = [row for row in made(days) if row["SubAccountId"] == "research"]
    context = replace(days.book, teams=frozenset({"research"}))
    assert [named(row) for row in rows(context, days)] == of_all


def test_a_closed_month_sums_to_what_was_billed() -> None:
    days = Days(fleet(), MARCH, 1, users=1)
    charges = [c for day in days for c in day.charges]
    paths = always(days.fleet, Span(0, 1)).paths
    with_paths = [
        c if c.labels is None else replace(c, labels=("/".join(paths.get(c.labels[0], c.labels[:1])),))
        for c in charges
    ]
    lines = statement_amounts(with_paths, LABELS, CENT)
    billed = {(a.team, a.kind, a.cluster, a.supply, a.inside): a.amount for a in lines[1:]}
    last = lines[-1]
    billed[last.team, last.kind, last.cluster, last.supply, last.inside] += 7
    found = [named(row) for row in rows(days.book, days, billed=billed)]
    assert total(found) == sum(billed.values())
    adjusted = [row for row in found if row["x_UsedIn"] and abs(Decimal(row["BilledCost"])) > 1]
    assert {row["ChargeCategory"] for row in adjusted} == {"Adjustment"}
    assert len(adjusted) == 2


AMOUNTS = st.fractions(min_value=-1000, max_value=1000, max_denominator=10**7)
PARTS = st.tuples(
    st.sampled_from(["", "a", "b"]), st.sampled_from(list(ChargeKind)), AMOUNTS, st.integers(0, 2)
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=30), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_whatever_the_amounts_rows_sum_to_the_total(
    drawn: list[tuple[str, ChargeKind, Fraction, int]], currency: str
) -> None:
    days = Days(replace(fleet(), currency=currency), MARCH, 3)
    cent = {"EUR": Decimal("0.01"), "JPY": Decimal(1), "KWD": Decimal("0.001")}[currency]
    span = Span(0, 1)
    by_day: dict[int, list[Charge]] = {0: [], 1: [], 2: []}
    for team, kind, amount, day in drawn:
        supply = None if kind is ChargeKind.OVERHEAD else Supply(PoolName("hpc-a100"))
        by_day[day].append(Charge(kind, ClusterName("hpc"), supply, span, (team, "u", ""), 3600, amount))
    spans = [days.calendar.day_span(day) for day in (date(2026, 3, 30), date(2026, 3, 31), date(2026, 4, 1))]
    kept = [DayCharges(span, days.fleet, by_day[i]) for i, span in enumerate(spans)]
    found = [named(row) for row in rows(days.book, kept)]
    assert total(found) == _due((c for charges in by_day.values() for c in charges), cent)
    written = [row for row in found if not row["x_UsedIn"]]
    exact = [c.amount for i in range(3) for c in by_day[i]]
    for row, amount in zip(written, exact, strict=True):
        assert abs(Fraction(row["BilledCost"]) - amount) <= Fraction(1, 2_000_000)


def test_slices_of_a_gpu_sum_to_that_gpu() -> None:
    """Seven slices through a whole day of 24 hours are one A100 at 1.90 less 12 %."""
    book = Days(fleet(), MARCH, 1).book
    rate = Fraction("1.90") * (1 - Fraction("0.12")) / 7
    supply = Supply(PoolName("hpc-mig"), SliceName("1g.10gb"))
    charges = [
        Charge(
            ChargeKind.USAGE,
            ClusterName("hpc"),
            supply,
            Span(0, 1),
            (f"t{n}", "", ""),
            86400,
            rate * 24,
            Fraction(86400),
        )
        for n in range(7)
    ]
    day = DayCharges(book.calendar.day_span(MARCH), book.fleet, charges)
    told = [named(row) for row in rows(book, [day])]
    found = [row for row in told if not row["x_UsedIn"]]
    assert total(told) == Decimal("40.13")  # 24 × 1.672 = 40.128
    assert sum(
        json.loads(row["AllocatedMethodDetails"])["Elements"][0]["AllocatedRatio"] for row in found
    ) == (pytest.approx(1, abs=1e-11))
    assert {row["AllocatedMethodId"] for row in found} == {"fairway/slice-by-memory"}
    assert {row["ListUnitPrice"] for row in found} == {"0.2714285714"}  # a seventh of 1.90
    assert {row["ConsumedUnit"] for row in found} == {"Slice-Seconds"}


def test_a_row_is_its_exact_amount_to_six_digits() -> None:
    days = Days(fleet(), MARCH, 5, users=2)
    charges = [charge for day in days for charge in day.charges]
    written = [row for row in made(days) if not row["x_UsedIn"]]
    for charge, row in zip(charges, written, strict=True):
        assert abs(Fraction(row["BilledCost"]) - charge.amount) <= Fraction(1, 2_000_000)


# --- rows -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def month() -> list[Told]:
    return [row for row in made(Days(fleet(), MARCH, 31, users=1)) if not row["x_UsedIn"]]


def test_what_a_row_says_of_itself(month: list[Told]) -> None:
    first = next(row for row in month if row["x_Kind"] == "usage" and row["x_Pool"] == "hpc-a100")
    told = {
        "BillingAccountId": "acme",
        "BillingCurrency": "EUR",
        "BillingPeriodStart": "2026-02-28T23:00:00Z",
        "BillingPeriodEnd": "2026-03-31T22:00:00Z",
        "ChargePeriodStart": "2026-02-28T23:00:00Z",
        "ChargePeriodEnd": "2026-03-01T23:00:00Z",
        "CapacityReservationId": "",
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": "A100-80GB of pool hpc-a100, held by jobs",
        "ConsumedUnit": "GPU-Seconds",
        "InvoiceId": "acme-2026-03",
        "ListUnitPrice": "1.9",
        "PricingCategory": "Standard",
        "PricingUnit": "GPU-Hours",
        "RegionId": "hpc",
        "ResourceId": "acme/hpc/hpc-a100",
        "ServiceCategory": "Compute",
        "SkuId": "A100-80GB",
        "SkuPriceId": "hpc/hpc-a100",
        "SubAccountId": "research",
        "SubAccountType": "Team",
        "x_User": "research-0",
        "AllocatedMethodId": "",
    }
    assert {column: first[column] for column in told} == told
    assert json.loads(first["Tags"]) == {
        "fairway/cluster": "hpc",
        "fairway/pool": "hpc-a100",
        "fairway/user": "research-0",
        "fairway/priority": first["x_Priority"],
    }


def test_prices_are_those_of_the_day(month: list[Told]) -> None:
    listed = {
        (row["ChargePeriodStart"] >= "2026-03-15T23:00:00Z", row["ListUnitPrice"])
        for row in month
        if row["x_Pool"] == "hpc-a100"
    }
    assert listed == {(False, "1.9"), (True, "1.75")}


def test_numbers_moments_and_products(month: list[Told]) -> None:
    for row in month:
        for column in NUMBERS:
            text = row[column]
            assert not text or ("." in text and "e" not in text.lower() and len(text.split(".")[1]) <= PLACES)
        for column in MOMENTS:
            datetime.strptime(row[column], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
            product = Decimal(row[price]) * Decimal(row["PricingQuantity"])
            assert abs(product - Decimal(row[cost])) < Decimal("1e-9")
            assert Decimal(row[price]) >= 0


def test_unused_commitments_and_shares(month: list[Told]) -> None:
    kinds = {row["x_Kind"] for row in month}
    assert kinds == {str(kind) for kind in ChargeKind}
    for row in month:
        unused = row["x_Kind"] not in {"usage", "overhead", "commitment"}
        assert (row["CapacityReservationStatus"] == "Unused") == (unused and row["x_Pool"] == "cloud-h100")
        committed = row["x_Pool"] == "cloud-h100"
        assert bool(row["CommitmentDiscountId"]) == committed
        assert (row["PricingCategory"] == "Committed") == committed
        assert bool(row["ConsumedQuantity"]) == (row["CommitmentDiscountStatus"] != "Unused")
        shared = row["x_Kind"] != "usage" and bool(row["SubAccountId"])
        assert (row["AllocatedMethodId"].startswith(("fairway/idle", "fairway/overhead"))) == (
            shared or bool(row["AllocatedTags"] and "share-of" in row["AllocatedTags"])
        )
    spot = {row["PricingCategory"] for row in month if row["x_Pool"] == "cloud-spot"}
    assert spot == {"Dynamic"}


def test_shares_of_one_thing_sum_to_one(month: list[Told]) -> None:
    ratios: dict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    for row in month:
        if row["AllocatedMethodId"]:
            (element,) = json.loads(row["AllocatedMethodDetails"], parse_float=str)["Elements"]
            if "slice-by" not in row["AllocatedMethodId"]:
                day = (row["ChargePeriodStart"], row["x_Cluster"])
                key = (*day, row["x_Pool"], row["x_Kind"], row["x_Slice"])
                ratios[key] += Fraction(str(element["AllocatedRatio"]))
    assert ratios
    assert all(abs(ratio - 1) < Fraction(1, 10**9) for ratio in ratios.values())


def test_what_nobody_carries_has_no_account() -> None:
    alone = made(Days(fleet(Sharing.OWN_LINE, Sharing.OWN_LINE), MARCH, 1))
    for row in alone:
        if row["x_Kind"] != "usage":
            assert (row["SubAccountId"], row["SubAccountType"], row["AllocatedResourceId"]) == ("", "", "")
        elif not row["x_UsedIn"]:
            assert row["SubAccountId"] in {"research", "product", NO_TEAM}
    assert {row["AllocatedMethodId"] for row in alone} == {
        "",
        "fairway/slice-by-memory",
        "fairway/slice-by-price",
    }


def test_descriptions_are_of_the_fleet_of_that_day() -> None:
    """A pool that is gone keeps its GPU type and price, a rule and a parent that changed stay as is."""
    then = fleet()
    nested = tuple(
        replace(t, parent=None if t.name == "research" else TeamName("research")) for t in then.teams
    )
    then = replace(then, teams=nested)
    now = fleet(Sharing.OWN_LINE, Sharing.OWN_LINE)
    now = replace(now, pools=tuple(p for p in now.pools if p.name != "hpc-a100"))
    days = Days(then, MARCH, 1)
    found = [named(row) for row in rows(replace(days.book, fleet=now), days)]
    old = [row for row in found if row["x_Pool"] == "hpc-a100" and row["x_Kind"] == "usage" and row["x_User"]]
    assert {(row["SkuId"], row["ListUnitPrice"], row["PricingCategory"]) for row in old} == {
        ("A100-80GB", "1.9", "Standard")
    }
    paths = {row["SubAccountId"]: row["x_TeamPath"] for row in old}
    assert paths == {"research": "research", "product": "research/product", NO_TEAM: ""}
    shared = {row["AllocatedMethodId"] for row in found if row["x_Kind"] == "idle" and row["SubAccountId"]}
    assert "fairway/idle-by-usage" in shared
    assert "fairway/idle-own-line" not in shared


def test_corrections_say_what_they_correct() -> None:
    days = Days(fleet(), MARCH, 1)
    where = (ClusterName("hpc"), Supply(PoolName("hpc-a100")))
    before = Correction(
        ChargeKind.USAGE, *where, TeamName("research"), date(2026, 2, 1), MARCH, Decimal("-12.34")
    )
    same = replace(before, used_in=MARCH, amount=Decimal("0.05"), team=None)
    plain = total(made(days))
    found = made(days, [before, same])
    assert total(found) == plain - Decimal("12.34") + Decimal("0.05")
    first, second = found[-2:]
    assert (first["ChargeClass"], first["ChargeCategory"], first["BilledCost"]) == (
        "Correction",
        "Usage",
        "-12.34",
    )
    assert (first["ChargePeriodStart"], first["BillingPeriodStart"]) == (
        "2026-01-31T23:00:00Z",
        "2026-02-28T23:00:00Z",
    )
    assert (first["PricingQuantity"], first["PricingUnit"], first["x_UsedIn"]) == ("", "", "2026-02")
    assert (second["ChargeClass"], second["ChargeCategory"], second["SubAccountId"]) == ("", "Adjustment", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1750000, "1.75"), (2000000, "2.0"), (0, "0.0"), (-5, "-0.000005"), (999999, "0.999999")],
)
def test_numbers_always_have_a_point(value: int, text: str) -> None:
    assert decimal_text(value, 6) == text


def test_columns_are_known_once() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert set(COLUMNS) >= NUMBERS | MOMENTS
    assert [COLUMNS[place] for place in PLACE.values()] == list(PLACE)
    ours = [column for column in COLUMNS if column.startswith("x_")]
    assert list(COLUMNS[-len(ours) :]) == ours  # FOCUS: our own last
