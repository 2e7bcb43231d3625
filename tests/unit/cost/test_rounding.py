"""Parts sum to the whole, and none is further than a quantum from what it exactly is."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.rounding import apportion, apportion_paths, exact_sum, rounded
from tests.unit.cost.small import patient

CENT = Decimal("0.01")
AMOUNTS = st.fractions(min_value=-1000, max_value=1000, max_denominator=10**9)
QUANTA = st.sampled_from([CENT, Decimal(1), Decimal("0.001"), Decimal("0.000001"), Decimal("0.05")])


def test_thirds() -> None:
    third = Fraction(1, 3)
    assert apportion([third] * 3, Decimal("1.00"), CENT) == [Decimal(x) for x in ("0.34", "0.33", "0.33")]


def test_whoever_lost_most_gets_the_cent() -> None:
    parts = [Fraction("0.101"), Fraction("0.109"), Fraction("0.190")]
    assert apportion(parts, Decimal("0.40"), CENT) == [Decimal(x) for x in ("0.10", "0.11", "0.19")]


def test_negative_parts() -> None:
    parts = [Fraction("1.005"), Fraction("-0.005")]
    assert apportion(parts, Decimal("1.00"), CENT) == [Decimal("1.01"), Decimal("-0.01")]


def test_nothing_gets_nothing() -> None:
    assert apportion([Fraction(0), Fraction(1, 300), Fraction(0)], Decimal("0.00"), CENT)[0] == 0
    assert apportion([], Decimal(0), CENT) == []
    assert apportion_paths({}, CENT) == {}


def test_no_parts_for_something() -> None:
    with pytest.raises(ValueError, match="nothing"):
        apportion([], Decimal("0.01"), CENT)


def test_a_total_that_is_no_multiple() -> None:
    with pytest.raises(ValueError, match="multiple"):
        apportion([Fraction(1)], Decimal("1.001"), CENT)


@pytest.mark.parametrize(
    ("amount", "cents"), [("0.005", "0.00"), ("0.015", "0.02"), ("-0.005", "0.00"), ("-0.015", "-0.02")]
)
def test_halves_go_to_even(amount: str, cents: str) -> None:
    assert rounded(Fraction(amount), CENT) == Decimal(cents)
    assert apportion_paths({("a",): Fraction(amount)}, CENT) == {("a",): Decimal(cents)}


@patient
@given(st.lists(AMOUNTS, max_size=30), QUANTA)
def test_parts_sum_to_the_rounded_whole(parts: list[Fraction], quantum: Decimal) -> None:
    total = rounded(sum(parts, Fraction(0)), quantum)
    shares = apportion(parts, total, quantum)
    assert sum(shares, Decimal(0)) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(Fraction(share) - part) < Fraction(quantum)
        assert Fraction(share) % Fraction(quantum) == 0
        if part == 0:
            assert share == 0


@patient
@given(st.lists(AMOUNTS, min_size=1, max_size=30))
def test_finer_rows_sum_to_the_same_cents(parts: list[Fraction]) -> None:
    total = rounded(sum(parts, Fraction(0)), CENT)
    fine = Decimal("0.000001")
    if not any(parts):
        return
    shares = apportion(parts, total, fine)
    assert sum(shares, Decimal(0)) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(Fraction(share) - part) < Fraction(CENT)


PATHS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from("pqr"), st.sampled_from("xyz")), AMOUNTS, max_size=18
)


@patient
@given(PATHS, QUANTA)
def test_every_level_sums(amounts: dict[tuple[str, str, str], Fraction], quantum: Decimal) -> None:
    found = apportion_paths(amounts, quantum)
    assert found.keys() == amounts.keys()
    assert sum(found.values(), Decimal(0)) == rounded(sum(amounts.values(), Fraction(0)), quantum)
    for depth in (1, 2, 3):
        for head in {path[:depth] for path in amounts}:
            exact = sum((a for path, a in amounts.items() if path[:depth] == head), Fraction(0))
            told = sum((a for path, a in found.items() if path[:depth] == head), Decimal(0))
            assert abs(Fraction(told) - exact) < Fraction(quantum)


def test_a_path_that_ends_early_is_a_part_of_its_own() -> None:
    paths: dict[tuple[str, ...], Fraction] = {("a",): Fraction(1, 3), ("a", "b"): Fraction(2, 3)}
    assert apportion_paths(paths, CENT) == {("a",): Decimal("0.33"), ("a", "b"): Decimal("0.67")}


@patient
@given(st.lists(AMOUNTS, max_size=10))
def test_exact_sum(amounts: list[Fraction]) -> None:
    assert exact_sum(amounts) == sum(amounts, Fraction(0))
