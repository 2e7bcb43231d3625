"""A closed month stays as it was told; corrections make up the difference, to the cent."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.corrections import StatementAmount, correction, statement_amounts
from fairway.cost.report import column_of
from fairway.cost.rounding import MILLIONTH, rounded
from fairway.model.charge import Charge, ChargeKind, Label
from tests.unit.cost.small import HPC, WHOLE, day, patient

CENT = Decimal("0.01")
LABELS = (Label.USER, Label.TEAM)


def charge(
    amount: Fraction, team: str | None, kind: ChargeKind = ChargeKind.USAGE, seconds: int = 1
) -> Charge:
    supply = None if kind is ChargeKind.OVERHEAD else WHOLE
    return Charge(kind, HPC, supply, day(0), None if team is None else ("u", team), seconds, amount)


CHARGES = st.lists(
    st.builds(
        charge,
        st.integers(0, 10**5).map(lambda n: Fraction(n, 997)),
        st.sampled_from(["a", "b", "", None]),
        st.sampled_from(list(ChargeKind)),
    ),
    max_size=6,
)


def test_lines_are_by_team_and_kind() -> None:
    lines = statement_amounts(
        [charge(Fraction(1, 3), "a"), charge(Fraction(1, 3), "a"), charge(Fraction(1, 3), None)], LABELS, CENT
    )
    assert [(line.team, line.amount, line.device_seconds) for line in lines] == [
        ("", Decimal("0.33"), 1),
        ("a", Decimal("0.67"), 2),
    ]


def test_a_correction_names_only_what_changed() -> None:
    same = charge(Fraction(5), "a")
    before = statement_amounts([same, charge(Fraction(3), "b", seconds=30)], LABELS, CENT)
    after = statement_amounts([same, charge(Fraction(1), "b", seconds=10)], LABELS, CENT)
    assert correction(after, before) == (
        StatementAmount(ChargeKind.USAGE, HPC, WHOLE, "b", -20, Decimal("-2.00")),
    )


@patient
@given(CHARGES, CHARGES, CHARGES)
def test_what_was_told_and_its_corrections_come_to_what_is_known(
    first: list[Charge], second: list[Charge], third: list[Charge]
) -> None:
    so_far: list[StatementAmount] = list(statement_amounts(first, LABELS, CENT))
    for known in (second, third):
        anew = statement_amounts(known, LABELS, CENT)
        so_far += correction(anew, so_far)
        assert correction(anew, so_far) == ()
        columns: dict[str, Fraction] = defaultdict(Fraction)
        for charge in known:
            columns[column_of(charge.kind)] += charge.amount
        due = sum((rounded(Fraction(rounded(c, MILLIONTH)), CENT) for c in columns.values()), Decimal(0))
        assert sum((line.amount for line in so_far), Decimal(0)) == due


@patient
@given(CHARGES, st.randoms())
def test_the_order_charges_come_in_does_not_matter(known: list[Charge], rng) -> None:  # type: ignore[no-untyped-def]
    mixed = list(known)
    rng.shuffle(mixed)
    assert statement_amounts(mixed, LABELS, CENT) == statement_amounts(known, LABELS, CENT)
