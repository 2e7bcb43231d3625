"""What an hour of a bought GPU costs."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.owned import owned_price
from fairway.model.errors import FairwayError

D = Decimal


def test_every_term() -> None:
    price = owned_price(
        D(280000),
        D(5),
        8,
        residual=D(20000),
        watts_per_gpu=D(1200),
        idle_watts_per_gpu=D(300),
        pue=D("1.25"),
        price_per_kwh=D("0.2"),
        utilisation=D("0.75"),
        upkeep_per_year=D(8766),
        interest=D("0.05"),
    )
    assert price.purchase == Fraction(260000, 8 * 5 * 8766)
    assert price.interest == Fraction(150000 * 5, 100 * 8 * 8766)
    assert price.power == Fraction(975, 1000) * Fraction(5, 4) / 5
    assert price.upkeep == Fraction(1, 8)
    assert price.per_gpu_hour == price.purchase + price.interest + price.power + price.upkeep
    assert price.per_used_gpu_hour == price.per_gpu_hour * 4 / 3


def test_the_formula_has_the_numbers() -> None:
    text = owned_price(D(87660), D(2), 5, utilisation=D("0.5"), currency="EUR").formula
    assert "(87,660 − 0) ÷ (5 × 2 × 8766) = 1.0000" in text
    assert text.endswith("per used GPU-hour  = 1.0000 ÷ 0.5 = 2.0000 EUR")
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": 0},
        {"lifetime_years": D(0)},
        {"purchase": D(-1)},
        {"residual": D(2000)},
        {"utilisation": D(0)},
        {"utilisation": D("1.1")},
        {"pue": D("0.9")},
        {"interest": D(5)},
        {"watts_per_gpu": D(-1)},
        {"upkeep_per_year": D(-1)},
    ],
)
def test_what_no_purchase_can_be(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"purchase": D(1000), "lifetime_years": D(5), "gpus": 1}
    with pytest.raises(FairwayError) as refused:
        owned_price(**(right | wrong))  # type: ignore[arg-type]
    assert refused.value.code == "OwnedPriceUnclear"
    assert refused.value.hint
