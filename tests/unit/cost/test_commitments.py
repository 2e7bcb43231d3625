"""Coverage, utilisation and break-even of commitments, calculated by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from fairway.cost.commitments import CommitmentUse


def use(used: int, idle: int = 0, absent: int = 0, uncovered: int = 0) -> CommitmentUse:
    """GPU-hours of a commitment at 2.00 in a pool whose GPUs cost 4.00."""
    return CommitmentUse(
        used=Fraction(used),
        idle=Fraction(idle),
        absent=Fraction(absent),
        uncovered=Fraction(uncovered),
        price=Fraction(2),
        list_price=Fraction(4),
    )


def test_half_of_the_committed_gpus_do_not_exist_and_half_of_the_others_are_idle() -> None:
    """16 GPUs committed for a day at 2.00 instead of 4.00, 8 exist, jobs hold 4 of them on average."""
    day = use(used=4 * 24, idle=4 * 24, absent=8 * 24)
    assert day.committed == 384
    assert day.utilisation == Fraction(1, 4)
    assert day.break_even == Fraction(1, 2)
    assert day.coverage == 1
    assert day.saved == 96 * 4 - 384 * 2 == -384


def test_a_pool_that_needs_more_than_is_committed() -> None:
    """32 of 40 GPUs committed for a day, all 40 in use."""
    day = use(used=768, uncovered=192)
    assert day.coverage == Fraction(4, 5)
    assert day.utilisation == 1
    assert day.saved == 768 * (4 - 2)


@pytest.mark.parametrize(("used", "sign"), [(49, -1), (50, 0), (51, 1)])
def test_it_pays_from_the_break_even_on(used: int, sign: int) -> None:
    hundred = use(used=used, idle=100 - used)
    assert hundred.break_even == Fraction(1, 2)
    assert (hundred.saved > 0) - (hundred.saved < 0) == sign


def test_nothing_committed_and_nothing_used() -> None:
    nothing = use(0)
    assert nothing.coverage is None
    assert nothing.utilisation is None
    assert nothing.saved == 0
    free = replace(nothing, list_price=Fraction(0))
    assert free.break_even is None
