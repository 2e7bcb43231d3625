"""What an hour of a GPU costs that was bought: total cost of ownership, every term shown."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class OwnedPrice:
    """Terms per GPU-hour, whether the GPU is used or not."""

    purchase: Fraction
    interest: Fraction
    power: Fraction
    upkeep: Fraction
    per_gpu_hour: Fraction
    """Their sum: what belongs into the fleet file as the pool's price."""
    per_used_gpu_hour: Fraction
    """What a used hour costs when the unused ones are paid by those used."""
    formula: str
    """In words and with the numbers, a line a term."""


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
    """The price per GPU-hour of GPUs bought together for `purchase`, with what they stand in."""
    raise NotImplementedError
