"""Charges + idle + overhead = capacity × price + overhead. For more cases see `conservation`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tier import examples
from tests.unit.cost.conservation import NotConserved, check
from tests.unit.cost.faults import FAULTS, planted
from tests.unit.cost.small import patient


@settings(patient, max_examples=examples(400))
@given(st.integers(min_value=0, max_value=2**48))
def test_nothing_is_lost_or_made_from_nothing(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with planted(fault):
        assert found_after(4000) is not None


def found_after(cases: int) -> int | None:
    """How many cases it takes until one fails; None: none does."""
    for seed in range(cases):
        try:
            check(seed)
        except (NotConserved, KeyError, IndexError, ValueError):
            return seed + 1
    return None
