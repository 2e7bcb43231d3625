"""What a report of totals adds, and the cost of a unit, against plain arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.report import ReportEntry, table
from fairway.cost.unit_cost import WorkDone, added_units, cost_per, sum_work
from fairway.model.charge import ChargeKind, JobLabel
from fairway.model.cost_unit import MAX_TOTAL, CostUnit, divisor_text, parse_divisor

totals = st.dictionaries(st.sampled_from(["steps", "tokens", "samples"]), st.integers(0, MAX_TOTAL))
amounts = st.decimals(0, 10**9, allow_nan=False, allow_infinity=False, places=6)


@given(st.lists(totals, max_size=8))
def test_whatever_is_reported_the_highest_total_counts_once(reports: list[dict[str, int]]) -> None:
    stored: dict[str, int] = {}
    for report in reports:
        for unit, more in added_units(stored, report).items():
            assert more > 0
            stored[unit] = stored.get(unit, 0) + more
        assert added_units(stored, report) == {}  # again: nothing
    units = {unit for report in reports for unit in report}
    highest = {unit: max(report.get(unit, 0) for report in reports) for unit in units}
    assert stored == {unit: total for unit, total in highest.items() if total}


@given(amounts, st.integers(1, 10**18), st.integers(1, 10**12))
def test_a_unit_costs_what_its_row_costs_by_its_count(total: Decimal, count: int, size: int) -> None:
    found = cost_per(total, count, size)
    assert found is not None
    assert abs(Fraction(found) - Fraction(total) * size / count) <= Fraction(1, 2_000_000)


def test_nothing_counted_costs_nothing_known() -> None:
    assert cost_per(Decimal(5), 0) is None


def test_the_example_of_the_guide() -> None:
    """64 GPUs for 18.75 hours at 1.90 are 2,280 dollars; 1.2 million steps make 1.90 for a thousand."""
    total = 64 * Decimal("18.75") * Decimal("1.90")
    assert total == 2280
    assert cost_per(total, 1_200_000, 1000) == Decimal("1.90")
    assert cost_per(total, 1_200_000) == Decimal("0.0019")
    assert cost_per(total, 7) == Decimal("325.714286")


rows = st.lists(
    st.builds(
        WorkDone, st.integers(0, 10**15), st.frozensets(st.sampled_from(["e1", "e2", "e3", "(other)"]))
    ),
    max_size=12,
)


@given(rows, st.integers(1, 5))
def test_rows_have_all_units_and_the_total_has_each_value_once(work: list[WorkDone], most: int) -> None:
    entries = [
        ReportEntry((f"t{n % 7}",), ChargeKind.USAGE, carried=True, amount=Fraction(n), work=each)
        for n, each in enumerate(work)
    ]
    found = table(entries, max_rows=most)
    assert sum(row.work.units for row in found.rows) == sum(each.units for each in work)
    assert found.total.work == sum_work(work)
    assert found.total.work.values == frozenset().union(*(row.work.values for row in found.rows))
    for row in found.rows:
        if not row.others:
            mine = [each for n, each in enumerate(work) if row.labels == (f"t{n % 7}",)]
            assert row.work == sum_work(mine)


@pytest.mark.parametrize(
    ("text", "wanted", "people"),
    [
        ("steps", CostUnit("steps"), "steps"),
        ("1:steps", CostUnit("steps"), "steps"),
        ("1000:steps", CostUnit("steps", 1000), "1,000 steps"),
        ("1000000:tok_ens-2", CostUnit("tok_ens-2", 10**6), "1,000,000 tok_ens-2"),
        ("label", CostUnit("label"), "label"),
        ("label:experiment", JobLabel("label:experiment"), "experiment"),
    ],
)
def test_what_a_cost_can_be_divided_by(text: str, wanted: CostUnit | JobLabel, people: str) -> None:
    found = parse_divisor(text)
    assert found == wanted
    assert found is not None
    assert divisor_text(found) == people
    assert parse_divisor(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "Steps", "0:steps", "-1:steps", "steps:1000", "1000:", "1000:label:x", "label:", "s" * 32),
        *("10000000000000:steps", "steps\n", "team:x", "1_000:steps", "\u0663:steps"),
    ],
)
def test_what_it_cannot_be_divided_by(text: str) -> None:
    assert parse_divisor(text) is None
