"""Budget = statement = report = FOCUS, and all of them what is due. For more cases see `agreement`."""

from __future__ import annotations

import pytest

from tests.tier import sized
from tests.unit.cost.agreement import check
from tests.unit.cost.history_faults import HISTORY_FAULTS, planted_in_history

CASES = sized(ci=300, nightly=20_000)


def test_every_document_tells_the_same_whatever_is_applied() -> None:
    for seed in range(CASES):
        check(seed)


@pytest.mark.parametrize("fault", HISTORY_FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with planted_in_history(fault):
        assert found_after(3000) is not None


def found_after(cases: int) -> int | None:
    """How many cases it takes until one fails; None: none does."""
    for seed in range(cases):
        try:
            check(seed)
        except Exception:
            return seed + 1
    return None
