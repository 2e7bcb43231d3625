"""Documents for people: columns are rounded once, and one figure is the same in every table of a window."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.corrections import statement_amounts
from fairway.cost.report import ReportColumn, ReportEntry, ReportRow, ReportTable, table
from fairway.cost.rounding import MILLIONTH, rounded
from fairway.model.charge import UNUSED_KINDS, Charge, ChargeKind, Label
from fairway.model.gpu_use import HeldKind
from fairway.model.names import PoolName
from fairway.model.team import Supply
from fairway.views.rounded import rounded_report
from fairway.wire import costs as wire
from tests.unit.cost.small import HPC, day

CENT = Decimal("0.01")
LABELS = (Label.TEAM, Label.USER)
NOW = datetime(2026, 11, 3, tzinfo=UTC)
MONDAY = date(2026, 11, 2)
DOCUMENT: dict[str, Any] = {
    "fleet": "f",
    "currency": "USD",
    "window": wire.Window(first_day=MONDAY, last_day=MONDAY, start=NOW, end=NOW, timezone="UTC"),
    "by": [Label.TEAM],
    "of_teams": None,
}

CHARGES = st.lists(
    st.builds(
        Charge,
        kind=st.sampled_from(list(ChargeKind)),
        cluster=st.just(HPC),
        supply=st.sampled_from([Supply(PoolName(name)) for name in ("a100", "h100")]),
        span=st.just(day(0)),
        labels=st.one_of(st.none(), st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from("xy"))),
        device_seconds=st.just(60),
        amount=st.fractions(Fraction(0), Fraction(10**5), max_denominator=3600),
    ),
    max_size=30,
)


def report(charges: list[Charge], *places: int) -> wire.CostReport:
    """As the API answers, by the labels at these places."""
    found = [
        ReportEntry(
            tuple(("", "") if c.labels is None else c.labels)[places[0] : places[-1] + 1],
            c.kind,
            c.labels is not None,
            c.amount,
            Fraction(1, 7),
        )
        for c in charges
    ]
    return told(table(found, max_rows=1000))


def told(made: ReportTable) -> wire.CostReport:
    rows = [row(r) for r in made.rows]
    return wire.CostReport(**DOCUMENT, rows=rows, total=row(made.total))


def row(r: ReportRow) -> wire.CostRow:
    usage, idle, overhead = (r.amounts[column] for column in ReportColumn)
    return wire.CostRow(
        labels=list(r.labels),
        kind=r.kind,
        others=r.others,
        gpu_hours=r.gpu_hours,
        usage=usage,
        idle=idle,
        overhead=overhead,
        total=r.total,
    )


@given(CHARGES)
def test_rows_sum_to_their_column_and_columns_are_rounded_once(charges: list[Charge]) -> None:
    exact = report(charges, 0, 1)
    shown = rounded_report(exact)
    for name in ("usage", "idle", "overhead", "gpu_hours"):
        total = getattr(shown.total, name)
        assert sum((getattr(r, name) for r in shown.rows), Decimal(0)) == total
        assert total == rounded(Fraction(getattr(exact.total, name)), CENT)
    for before, after in zip(exact.rows, shown.rows, strict=True):
        assert after.total == after.usage + after.idle + after.overhead
        for name in ("usage", "idle", "overhead", "gpu_hours"):
            # Each level of labels moves a figure by less than a cent.
            assert abs(getattr(after, name) - getattr(before, name)) < 4 * CENT


@given(CHARGES)
def test_a_figure_is_the_same_in_every_table_and_in_the_statement(charges: list[Charge]) -> None:
    by_team, by_both = rounded_report(report(charges, 0)), rounded_report(report(charges, 0, 1))

    def figures(rows: list[wire.CostRow]) -> dict[tuple[object, ...], Decimal]:
        found: dict[tuple[object, ...], Decimal] = {}
        for r in rows:
            for column in ReportColumn:
                key = (r.labels[0], r.kind, column)
                found[key] = found.get(key, Decimal(0)) + getattr(r, column.value)
        return {key: amount for key, amount in found.items() if amount}

    assert figures(by_team.rows) == figures(by_both.rows)
    lines = statement_amounts(charges, LABELS, CENT)
    for team in ("a", "b"):
        shown = sum((r.total for r in by_team.rows if r.labels == [team]), Decimal(0))
        assert sum((a.amount for a in lines if a.team == team), Decimal(0)) == shown
    assert sum((a.amount for a in lines), Decimal(0)) == by_team.total.total


@given(st.lists(st.tuples(st.sampled_from(UNUSED_KINDS), st.integers(0, 10**9)), max_size=20))
def test_unused_kinds_are_the_same_in_the_waste_and_the_cost_report(
    drawn: list[tuple[ChargeKind, int]],
) -> None:
    amounts: dict[ChargeKind, Decimal] = {}
    for kind, fine in drawn:
        amounts[kind] = amounts.get(kind, Decimal(0)) + fine * MILLIONTH
    whole, hour = sum(amounts.values(), Decimal(0)), Decimal("1.005")
    one = wire.WasteRow(
        labels=["a"],
        capacity_hours=hour,
        used_hours=hour,
        hours={},
        amounts=amounts,
        amount=whole,
        held_hours={HeldKind.BUSY: hour},
    )
    waste = rounded_report(wire.WasteReport(**DOCUMENT, rows=[one], total=one))
    zero = Decimal(0)
    own = [
        wire.CostRow(labels=[""], kind=kind, gpu_hours=zero, usage=zero, idle=paid, overhead=zero, total=paid)
        for kind, paid in amounts.items()
    ]
    total = wire.CostRow(labels=[], gpu_hours=zero, usage=zero, idle=whole, overhead=zero, total=whole)
    cost = rounded_report(wire.CostReport(**DOCUMENT, rows=own, total=total))
    assert {r.kind: r.idle for r in cost.rows} == waste.total.amounts
    assert waste.total.amount == cost.total.idle
    assert waste.total.capacity_hours == waste.total.used_hours == Decimal("1.00")


def test_currencies_without_cents() -> None:
    zero = Decimal(0)
    one = wire.CostRow(
        labels=["a"], gpu_hours=zero, usage=Decimal("10.6"), idle=zero, overhead=zero, total=Decimal("10.6")
    )
    shown = rounded_report(wire.CostReport(**DOCUMENT | {"currency": "JPY"}, rows=[one], total=one))
    assert (shown.total.total, shown.rows[0].usage) == (Decimal(11), Decimal(11))
