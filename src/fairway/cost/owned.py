"""Compute the price per GPU-hour of purchased GPUs: total cost of ownership, with every term shown."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.rounding import rounded
from fairway.model.errors import FairwayError

HOURS_A_YEAR: Final = 8766
"""365.25 days."""
_TEN_THOUSANDTH: Final = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class OwnedPrice:
    """The cost terms per GPU-hour, used or not, and their sum."""

    purchase: Fraction
    interest: Fraction
    power: Fraction
    upkeep: Fraction
    per_gpu_hour: Fraction
    """The sum of the terms: the pool's price in a fleet file that charges idle hours separately."""
    per_used_gpu_hour: Fraction
    """The price of a used hour if used hours also pay for the unused ones."""
    formula: str
    """The formula in words and with numbers, one term per line."""


def owned_price(
    purchase: Decimal,
    lifetime_years: Decimal,
    gpus: int,
    *,
    residual: Decimal = Decimal(0),
    watts_per_gpu: Decimal = Decimal(0),
    idle_watts_per_gpu: Decimal = Decimal(0),
    pue: Decimal = Decimal(1),
    price_per_kwh: Decimal = Decimal(0),
    utilisation: Decimal = Decimal(1),
    upkeep_per_year: Decimal = Decimal(0),
    interest: Decimal = Decimal(0),
    currency: str = "USD",
) -> OwnedPrice:
    """Compute the price per GPU-hour of `gpus` GPUs bought for `purchase`, servers included.

    `residual` is their resale value at the end; `interest` is the yearly rate on the average capital tied up
    in them. Watts are per GPU including its part of the server, busy and idle; `pue` is the power usage
    effectiveness of the building. `upkeep_per_year` is for all GPUs: contracts, space, staff.
    """
    _check_purchase(purchase, lifetime_years, gpus, residual, pue, utilisation, interest)
    _check_positive(watts_per_gpu, idle_watts_per_gpu, price_per_kwh, upkeep_per_year)
    gpu_hours = gpus * Fraction(lifetime_years) * HOURS_A_YEAR
    yearly_gpu_hours = Fraction(gpus * HOURS_A_YEAR)
    used = Fraction(utilisation)
    watts = Fraction(watts_per_gpu) * used + Fraction(idle_watts_per_gpu) * (1 - used)
    purchase_cost = (Fraction(purchase) - Fraction(residual)) / gpu_hours
    interest_cost = (Fraction(purchase) + Fraction(residual)) / 2 * Fraction(interest) / yearly_gpu_hours
    power = watts / 1000 * Fraction(pue) * Fraction(price_per_kwh)
    upkeep = Fraction(upkeep_per_year) / yearly_gpu_hours
    total = purchase_cost + interest_cost + power + upkeep
    idle = f" + {_n(idle_watts_per_gpu)} W × {_n(1 - utilisation)}" if idle_watts_per_gpu else ""
    lines = (
        "price per GPU-hour = purchase + interest + power + upkeep",
        f"  purchase = (price − residual) ÷ (GPUs × years × {HOURS_A_YEAR} h)",
        f"           = ({_n(purchase)} − {_n(residual)}) ÷ ({gpus} × {_n(lifetime_years)} × {HOURS_A_YEAR})"
        f" = {_m(purchase_cost)}",
        f"  interest = (price + residual) ÷ 2 × rate ÷ (GPUs × {HOURS_A_YEAR} h)",
        f"           = ({_n(purchase)} + {_n(residual)}) ÷ 2 × {_n(interest)} ÷ ({gpus} × {HOURS_A_YEAR})"
        f" = {_m(interest_cost)}",
        "  power    = watts at work × utilisation + watts idle × (1 − utilisation), × PUE × price per kWh",
        f"           = ({_n(watts_per_gpu)} W × {_n(utilisation)}{idle}) ÷ 1000 × {_n(pue)}"
        f" × {_n(price_per_kwh)} = {_m(power)}",
        f"  upkeep   = a year's ÷ (GPUs × {HOURS_A_YEAR} h)",
        f"           = {_n(upkeep_per_year)} ÷ ({gpus} × {HOURS_A_YEAR}) = {_m(upkeep)}",
        f"price per GPU-hour = {_m(total)} {currency}",
        f"per used GPU-hour  = {_m(total)} ÷ {_n(utilisation)} = {_m(total / used)} {currency}",
    )
    return OwnedPrice(purchase_cost, interest_cost, power, upkeep, total, total / used, "\n".join(lines))


def _check_purchase(
    purchase: Decimal,
    years: Decimal,
    gpus: int,
    residual: Decimal,
    pue: Decimal,
    utilisation: Decimal,
    interest: Decimal,
) -> None:
    """Raise FairwayError if the terms of a purchase are impossible."""
    if gpus < 1 or years <= 0 or purchase < 0:
        raise _error(
            "a purchase has a price, a lifetime and at least one GPU",
            "--purchase 280000 --lifetime 5y --gpus 8",
        )
    if not 0 <= residual <= purchase:
        raise _error(f"a residual of {residual} is not between 0 and the purchase", "--residual 20000")
    if not 0 < utilisation <= 1:
        raise _error(f"a utilisation of {utilisation} is not a part of the time", "--utilisation 70%")
    if pue < 1:
        raise _error(f"a PUE of {pue} is below 1: the building draws at least what the GPUs do", "--pue 1.3")
    if not 0 <= interest < 1:
        raise _error(f"an interest of {interest} a year is not a part of 1", "--interest 5%")


def _check_positive(*amounts: Decimal) -> None:
    if min(amounts) < 0:
        raise _error(
            "watts, prices and upkeep are not negative", "leave out what you do not know: it counts as 0"
        )


def _error(message: str, example: str) -> FairwayError:
    return FairwayError("OwnedPriceUnclear", message, f"for example: {example}")


def _n(number: Decimal) -> str:
    """Format a number for reading: 280,000 and 0.7."""
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _m(amount: Fraction) -> str:
    return str(rounded(amount, _TEN_THOUSANDTH))
