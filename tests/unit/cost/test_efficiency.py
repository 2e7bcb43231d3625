"""Held time is divided without a rest: what was measured and what was not add up to what was held."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.efficiency import (
    EfficiencyEntry,
    Energy,
    divided,
    efficiency_table,
    energy_of,
    scaled,
)
from fairway.model.gpu_use import GpuUse, GpuUseSum, HeldKind, MetricCode
from fairway.model.names import PoolName
from fairway.model.team import Supply

CENT = Decimal("0.01")
SECONDS = st.floats(0, 1e7, allow_nan=False)


def measured(engine: float, seconds: float, idle: float, **integrals: float) -> GpuUseSum:
    values = {MetricCode.ENGINE: engine, **{MetricCode(name): value for name, value in integrals.items()}}
    use = GpuUse(values, dict.fromkeys(values, seconds))
    return GpuUseSum(0, Supply(PoolName("a100")), (), use, idle)


@given(held=st.integers(0, 10**7), engine=SECONDS, seconds=SECONDS, idle=SECONDS)
def test_the_parts_are_all_that_was_held(held: int, engine: float, seconds: float, idle: float) -> None:
    parts = divided(held, measured(engine, seconds, idle))
    assert sum(parts.values()) == held
    assert all(part >= 0 for part in parts.values())
    unmeasured = parts.get(HeldKind.UNMEASURED, Fraction(0))
    assert unmeasured == max(0, held - Fraction(round(seconds * 1000), 1000)) or not held


@pytest.mark.parametrize("held", [0, 3600, -60])
def test_what_nobody_measured_is_never_idle(held: int) -> None:
    assert divided(held, None) == {HeldKind.UNMEASURED: held}
    assert set(divided(held, measured(0, 0, 0))) <= {HeldKind.UNMEASURED}


def test_each_kind() -> None:
    assert divided(7200, measured(engine=1800, seconds=5400, idle=1200)) == {
        HeldKind.BUSY: 1800,
        HeldKind.POOR: 2400,
        HeldKind.IDLE: 1200,
        HeldKind.UNMEASURED: 1800,
    }


ENTRIES = st.builds(
    lambda labels, seconds, rate, joules: EfficiencyEntry(
        labels,
        seconds,
        {kind: part * rate for kind, part in seconds.items()},
        GpuUse({MetricCode.ENGINE: 1.0}, {MetricCode.ENGINE: 2.0}),
        Energy(joules, joules / 7),
    ),
    st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["", "x"])),
    st.dictionaries(st.sampled_from(list(HeldKind)), st.fractions(0, 10**6, max_denominator=1000)),
    st.fractions(0, 1, max_denominator=3600),
    st.fractions(0, 10**9, max_denominator=9),
)


@given(st.lists(ENTRIES, max_size=20), st.integers(1, 5))
def test_rows_sum_to_the_total(entries: list[EfficiencyEntry], most: int) -> None:
    table = efficiency_table(entries, max_rows=most)
    for kind in HeldKind:
        zero = Decimal(0)
        for rows, total in (
            ([r.hours.get(kind, zero) for r in table.rows], table.total.hours.get(kind, zero)),
            ([r.amounts.get(kind, zero) for r in table.rows], table.total.amounts.get(kind, zero)),
            ([r.kwh for r in table.rows], table.total.kwh),
            ([r.co2_kg for r in table.rows], table.total.co2_kg),
        ):
            assert abs(sum(rows, zero) - total) <= len(entries) * Decimal("0.000001")
    exact = sum((s for e in entries for s in e.seconds.values()), Fraction(0)) / 3600
    assert abs(Fraction(table.total.held_hours) - exact) <= Fraction(4, 2_000_000)
    assert len(table.rows) <= most + 1
    groups = len({entry.labels for entry in entries})
    assert sum(row.others or 1 for row in table.rows) == groups
    assert table.total.use.measured == 2.0 * len(entries)


def test_what_cost_most_for_nothing_is_first_and_days_are_in_order() -> None:
    def entry(day: str, team: str, idle: int) -> EfficiencyEntry:
        seconds = {HeldKind.IDLE: Fraction(idle), HeldKind.BUSY: Fraction(10**6)}
        return EfficiencyEntry((day, team), seconds, seconds, GpuUse(), Energy())

    entries = [entry("2026-10-02", "a", 1), entry("2026-10-01", "b", 2), entry("2026-10-01", "c", 9000)]
    table = efficiency_table(entries, max_rows=9, sort_labels=(0,))
    assert [row.labels[1] for row in table.rows] == ["c", "b", "a"]
    table = efficiency_table(entries, max_rows=9)
    assert [row.labels[1] for row in table.rows] == ["c", "b", "a"]


def test_energy_has_what_the_site_adds() -> None:
    board = measured(0, 3600, 0, power=300 * 3600).use
    energy = energy_of(board, Decimal("1.2"), Decimal(400))
    assert energy.joules == 300 * 3600 * Fraction("1.2")
    assert energy.co2_grams == Fraction("0.36") * 400
    assert energy_of(board, Decimal("1.2"), None).co2_grams == 0
    assert scaled(board, Fraction(1, 7)).measured == pytest.approx(3600 / 7)
