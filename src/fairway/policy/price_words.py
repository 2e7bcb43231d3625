"""What a fleet file says of money, in words that can be compared: for `words`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from fairway.model.fleet import Cluster, Fleet, Pool

NONE: Final = "none"


def price_text(pool: Pool) -> str:
    """`1.90`, or `2.10, 1.75 from 2026-07-01`."""
    steps = pool.pricing.steps
    # A first dated price holds before its day too.
    first = () if steps and steps[0].per_gpu_hour == pool.price else (f"{pool.price:f}",)
    return ", ".join((*first, *(f"{step.per_gpu_hour:f} from {step.since}" for step in steps)))


def discount_text(pool: Pool) -> str:
    """`12 %`."""
    return f"{(pool.pricing.discount * 100).normalize():f} %" if pool.pricing.discount else NONE


def commitments_text(pool: Pool) -> str:
    """`32 GPUs at 2.10 from 2026-01-01 until 2027-01-01`."""
    told = (
        f"{c.gpus} GPUs at {c.per_gpu_hour:f} from {c.since} until {c.until}"
        for c in pool.pricing.commitments
    )
    return "; ".join(told) or NONE


def slice_prices_text(pool: Pool) -> str:
    """`1g.10gb 0.30`."""
    return ", ".join(f"{name} {price:f}" for name, price in sorted(pool.pricing.slices.items())) or NONE


POOL_MONEY: Final[tuple[tuple[str, Callable[[Pool], str]], ...]] = (
    ("price", price_text),
    ("discount", discount_text),
    ("commitments", commitments_text),
    ("slice prices", slice_prices_text),
)

FLEET_MONEY: Final[tuple[tuple[str, Callable[[Fleet], str]], ...]] = (
    ("time zone of charges", lambda f: f.cost.timezone),
    ("what nobody used is carried", lambda f: f.cost.idle),
    ("overhead is carried", lambda f: f.cost.overhead),
)


def overhead_text(cluster: Cluster) -> str | None:
    """`people 9,000, power 4,000 a month`; None: there is none."""
    told = ", ".join(f"{what} {_amount(amount)}" for what, amount in sorted(cluster.overhead.items()))
    return f"{told} a month" if told else None


def _amount(amount: Decimal) -> str:
    return f"{amount:,f}"
