"""Shares of a GPU cost their part of it, and the GPU they are on is not idle at the same time: by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.charges import charges, unused
from fairway.cost.rates import rate_spans
from fairway.model.charge import CapacitySum, ChargeKind, Label, UsageSum
from fairway.model.names import SliceName
from fairway.model.price import Commitment
from fairway.model.team import Supply
from tests.unit.cost.small import CALENDAR, GPUS, MONDAY, WHOLE, H, day, fleet, gpus, had, priced, used

HOUR = Fraction(36, 10)
"""What a GPU costs in an hour."""
QUARTER, EIGHTH, PERCENT = (Supply(GPUS, SliceName(f"shared-{n}")) for n in (4, 8, 100))


def told(capacity: list[CapacitySum], usage: list[UsageSum], **pricing: object) -> dict[str, Fraction]:
    of = fleet(priced(gpus(), **pricing))
    rates = rate_spans(of, CALENDAR, day(0), capacity, {})
    found: dict[str, Fraction] = {}
    for charge in charges(of, CALENDAR, day(0), capacity, rates, usage, (Label.TEAM,)):
        who = charge.labels[0] if charge.labels else charge.kind.value
        found[who] = found.get(who, Fraction(0)) + charge.amount
    return found


def test_shards_of_whole_gpus_cost_their_part_and_the_rest_is_idle() -> None:
    """Slurm's `gres/shard=3` of four a GPU for two hours, and `gres/mps=50` of a hundred for one."""
    capacity = [had(hour, 4) for hour in range(2)]
    usage = [used(3 * 2 * H, "a", supply=QUARTER), used(50 * H, "b", supply=PERCENT), used(2 * H, "c")]
    assert told(capacity, usage) == {
        "a": HOUR * 3 / 2,
        "b": HOUR / 2,
        "c": HOUR * 2,
        "idle": HOUR * 4,
    }


def test_parts_of_a_second_are_not_lost() -> None:
    capacity, usage = [had(0, 1)], [used(1, "a", supply=PERCENT)]
    assert told(capacity, usage) == {"a": HOUR / 360_000, "idle": HOUR * 359_999 / 360_000}


def test_shards_take_from_what_is_idle_before_what_is_down() -> None:
    capacity, usage = [had(0, 2, down=1)], [used(2 * H, "a", supply=QUARTER)]
    assert told(capacity, usage) == {"a": HOUR / 2, "idle": HOUR / 2, "down": HOUR}


def test_shards_of_another_number_than_the_pool_has() -> None:
    """The pool counts quarters, and a node of it has eight shards a GPU."""
    capacity = [had(0, 8, QUARTER, behind=2)]
    usage = [used(3 * H, "a", supply=EIGHTH), used(2 * H, "b", supply=QUARTER)]
    assert told(capacity, usage) == {"a": HOUR * 3 / 8, "b": HOUR / 2, "idle": HOUR * (2 - Fraction(7, 8))}


def test_replicas_that_the_pool_does_not_declare_are_parts() -> None:
    """Kubernetes: 16 replicas of 4 GPUs cost what 4 GPUs cost."""
    capacity, usage = [had(0, 16, QUARTER, behind=4)], [used(5 * H, "a", supply=QUARTER)]
    assert told(capacity, usage) == {"a": HOUR * 5 / 4, "idle": HOUR * 11 / 4}


def test_a_pool_with_some_whole_and_some_shared_nodes() -> None:
    capacity = [had(0, 2), had(0, 8, QUARTER, behind=2)]
    usage = [used(H, "a"), used(3 * H, "a", supply=QUARTER), used(25 * H, "b", supply=PERCENT)]
    assert told(capacity, usage) == {"a": HOUR * 7 / 4, "b": HOUR / 4, "idle": HOUR * 2}


@pytest.mark.parametrize("held", [1, 399, 400, 401, 800])
def test_charges_never_exceed_capacity_until_more_is_held_than_there_is(held: int) -> None:
    capacity, usage = [had(0, 4)], [used(held * H, "a", supply=PERCENT)]
    made = told(capacity, usage)
    assert sum(made.values()) == max(4 * HOUR, held * HOUR / 100)


def test_commitments_price_shards_as_the_gpus_they_are_on() -> None:
    commitment = Commitment(1, Decimal("1.8"), MONDAY, MONDAY.replace(day=3))
    capacity, usage = [had(hour, 2) for hour in range(24)], [used(24 * H, "a", supply=QUARTER)]
    made = told(capacity, usage, commitments=(commitment,))
    assert made == {"a": 24 * HOUR * Fraction(3, 4) / 4, "idle": 24 * HOUR * Fraction(3, 4) * Fraction(7, 4)}


def test_seconds_of_unused_capacity() -> None:
    of, capacity = fleet(gpus()), [had(0, 1)]
    rates = rate_spans(of, CALENDAR, day(0), capacity, {})
    made = unused(of, CALENDAR, day(0), capacity, rates, [replace(used(1801, supply=QUARTER), labels=())])
    assert [(c.kind, c.supply, c.device_seconds) for c in made] == [(ChargeKind.IDLE, WHOLE, 3150)]
