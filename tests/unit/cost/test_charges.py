"""Who pays what: reckoned by hand. That nothing is ever lost is in `test_conservation`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

from fairway.cost.charges import charges, unused, usage_charges
from fairway.cost.rates import rate_spans
from fairway.model.charge import CapacitySum, Charge, ChargeKind, Label, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.price import Commitment, Sharing
from fairway.model.team import Supply
from tests.unit.cost.small import (
    CALENDAR,
    GPUS,
    HPC,
    MIG,
    MONDAY,
    ONE,
    START,
    THREE,
    WHOLE,
    H,
    day,
    fleet,
    gpus,
    had,
    priced,
    slices,
    team,
    used,
)

Who = tuple[str, ...] | None
Told = dict[tuple[ChargeKind, Who], Fraction]


def charged(
    of: Fleet,
    window: Span,
    capacity: Sequence[CapacitySum],
    usage: Sequence[UsageSum],
    labels: Sequence[Label] = (Label.TEAM,),
    everyone: Sequence[UsageSum] | None = None,
) -> tuple[Charge, ...]:
    rates = rate_spans(of, CALENDAR, window, capacity, {})
    return charges(of, CALENDAR, window, capacity, rates, usage, labels, everyone=everyone)


def told(made: Sequence[Charge]) -> Told:
    found: Told = {}
    for charge in made:
        key = (charge.kind, charge.labels)
        found[key] = found.get(key, Fraction(0)) + charge.amount
    return found


def full_day(devices: int, **states: int) -> list[CapacitySum]:
    return [had(hour, devices, WHOLE, **states) for hour in range(24)]


GPU_DAY = Fraction(864, 10)
"""What a GPU costs through a day, at a thousandth a second."""


def test_usage_and_what_nobody_used() -> None:
    made = charged(fleet(gpus()), day(0), full_day(4), [used(86400, "a"), used(43200, "b")])
    assert told(made) == {
        (ChargeKind.USAGE, ("a",)): GPU_DAY,
        (ChargeKind.USAGE, ("b",)): GPU_DAY / 2,
        (ChargeKind.IDLE, None): GPU_DAY * 5 / 2,
    }
    assert {(c.cluster, c.supply, c.span) for c in made} == {(HPC, WHOLE, day(0))}
    assert [c.device_seconds for c in made] == [86400, 43200, 216000]


def test_unused_is_told_as_down_then_drained_then_fragmented() -> None:
    capacity = full_day(4, down=1, drained=1, fragmented=3)
    made = told(charged(fleet(gpus()), day(0), capacity, [used(86400, "a")]))
    assert made == {
        (ChargeKind.USAGE, ("a",)): GPU_DAY,
        (ChargeKind.DOWN, None): GPU_DAY,
        (ChargeKind.DRAINED, None): GPU_DAY,
        (ChargeKind.FRAGMENTED, None): GPU_DAY,  # of three only one is left
    }


def test_more_used_than_seen_was_there_after_all() -> None:
    made = told(charged(fleet(gpus()), day(0), full_day(1), [used(2 * 86400, "a")]))
    assert made == {(ChargeKind.USAGE, ("a",)): 2 * GPU_DAY}


def test_one_day_does_not_make_up_for_another() -> None:
    capacity = [had(hour, 1) for hour in range(48)]
    made = told(charged(fleet(gpus()), day(0, 2), capacity, [used(2 * 86400, "a", span=0)]))
    assert made[ChargeKind.IDLE, None] == GPU_DAY


def test_idle_by_usage_is_by_what_each_cost_that_day() -> None:
    usage = [used(3 * 86400, "a"), used(86400, "b"), used(86400, "b", span=1)]
    made = told(charged(fleet(gpus(), idle=Sharing.BY_USAGE), day(0, 3), full_days(3, 8), usage))
    assert made[ChargeKind.IDLE, ("a",)] == 4 * GPU_DAY * 3 / 4
    assert made[ChargeKind.IDLE, ("b",)] == 4 * GPU_DAY / 4 + 7 * GPU_DAY
    assert made[ChargeKind.IDLE, None] == 8 * GPU_DAY  # the third day nobody used


def full_days(days: int, devices: int) -> list[CapacitySum]:
    return [had(hour, devices) for hour in range(24 * days)]


def test_idle_by_guarantee_counts_what_is_promised_on_once() -> None:
    teams = (team("a", gpus=4), team("b", "a", gpus=3), team("c", gpus=4))
    of = fleet(gpus(), teams=teams, idle=Sharing.BY_GUARANTEE)
    made = told(charged(of, day(0), full_day(8), []))
    assert made == {
        (ChargeKind.IDLE, ("a",)): GPU_DAY,
        (ChargeKind.IDLE, ("b",)): 3 * GPU_DAY,
        (ChargeKind.IDLE, ("c",)): 4 * GPU_DAY,
    }


def test_idle_by_guarantee_where_nothing_is_guaranteed() -> None:
    of = fleet(gpus(), teams=(team("a"),), idle=Sharing.BY_GUARANTEE)
    assert told(charged(of, day(0), full_day(1), [])) == {(ChargeKind.IDLE, None): GPU_DAY}


def test_a_share_by_guarantee_has_all_labels_that_are_known_of_it() -> None:
    of = fleet(gpus(), teams=(team("a", gpus=1),), idle=Sharing.BY_GUARANTEE)
    labels = (Label.DAY, Label.USER, Label.TEAM, Label.POOL, Label.SLICE, Label.CLUSTER)
    made = charged(of, day(0), full_day(1), [], labels)
    assert [c.labels for c in made] == [("2026-11-02", "", "a", "gpus", "", "hpc")]
    assert [c.device_seconds for c in made] == [0]


def test_absent_commitments_are_shared_as_idle_is() -> None:
    until = MONDAY + timedelta(days=9)
    pool = priced(gpus(), commitments=(Commitment(2, Decimal("3.6"), MONDAY, until),))
    own = told(charged(fleet(pool), day(0), full_day(1), [used(86400, "a")]))
    assert own == {(ChargeKind.USAGE, ("a",)): GPU_DAY, (ChargeKind.COMMITMENT, None): GPU_DAY}
    by_usage = fleet(pool, idle=Sharing.BY_USAGE)
    shared = told(charged(by_usage, day(0), full_day(1), [used(86400, "a")]))
    assert shared[ChargeKind.COMMITMENT, ("a",)] == GPU_DAY


def test_overhead_is_a_month_over_its_days() -> None:
    own = told(charged(fleet(gpus(), monthly="300"), day(0, 3), [], []))
    assert own == {(ChargeKind.OVERHEAD, None): 30}  # November has 30 days
    shared = fleet(gpus(), monthly="300", overhead=Sharing.BY_USAGE)
    made = told(charged(shared, day(0), [], [used(100, "a"), used(300, "b")]))
    assert made[ChargeKind.OVERHEAD, ("a",)] == Fraction(10, 4)
    assert made[ChargeKind.OVERHEAD, ("b",)] == Fraction(30, 4)


def test_overhead_of_part_of_a_day() -> None:
    made = charged(fleet(gpus(), monthly="300"), Span(START, START + 6 * H), [], [])
    assert sum(c.amount for c in made) == Fraction(10, 4)


def test_overhead_by_guarantee_weighs_slices_by_memory() -> None:
    from fairway.model.names import TeamName
    from fairway.model.team import Grant, Team

    a = Team(TeamName("a"), grants=(Grant(WHOLE, 1),))
    b = Team(TeamName("b"), grants=(Grant(Supply(MIG, THREE), 2),))
    of = fleet(gpus(), slices(), teams=(a, b), monthly="300", overhead=Sharing.BY_GUARANTEE)
    made = told(charged(of, day(0), [], []))
    assert made == {(ChargeKind.OVERHEAD, ("a",)): 5, (ChargeKind.OVERHEAD, ("b",)): 5}


def test_slices_of_one_gpu_cost_that_gpu() -> None:
    rows = [had(h, 3, Supply(MIG, ONE), behind=1) for h in range(24)]
    rows += [had(h, 1, Supply(MIG, THREE), behind=0) for h in range(24)]
    usage = [used(3 * 86400, "a", supply=Supply(MIG, ONE)), used(86400, "b", supply=Supply(MIG, THREE))]
    made = told(charged(fleet(slices()), day(0), rows, usage))
    assert made == {
        (ChargeKind.USAGE, ("a",)): GPU_DAY * 3 / 7,
        (ChargeKind.USAGE, ("b",)): GPU_DAY * 4 / 7,
    }


def test_only_some_are_asked_for_but_shares_are_of_all() -> None:
    of = fleet(gpus(), idle=Sharing.BY_USAGE)
    some, everyone = [used(86400, "u")], [used(4 * 86400)]
    made = told(charged(of, day(0), full_day(8), some, (Label.USER,), everyone))
    assert made == {(ChargeKind.USAGE, ("u",)): GPU_DAY, (ChargeKind.IDLE, ("u",)): GPU_DAY}


def test_days_are_told_apart_when_asked() -> None:
    usage = [used(86400, "2026-11-02"), used(86400, "2026-11-03", span=1)]
    made = charged(fleet(gpus()), day(0, 2), full_days(2, 1), usage, (Label.DAY,))
    assert [(c.span, c.labels) for c in made] == [(day(0), ("2026-11-02",)), (day(1), ("2026-11-03",))]


def test_usage_alone_needs_no_days() -> None:
    of = fleet(gpus())
    rates = rate_spans(of, CALENDAR, day(0, 9), [], {}, by_day=False)
    made = usage_charges(of, CALENDAR, day(0, 9), rates, [used(86400, "a"), used(86400, "a")], (Label.TEAM,))
    assert [(c.amount, c.span, c.device_seconds) for c in made] == [(2 * GPU_DAY, day(0, 9), 2 * 86400)]


def test_unused_whoever_carries_it() -> None:
    of = fleet(gpus(), idle=Sharing.BY_USAGE)
    rates = rate_spans(of, CALENDAR, day(0), full_day(2), {})
    made = unused(of, CALENDAR, day(0), full_day(2), rates, [used(86400, "a")])
    assert [(c.kind, c.labels, c.amount) for c in made] == [(ChargeKind.IDLE, None, GPU_DAY)]


def test_capacity_of_other_pools_and_times_is_left_out() -> None:
    of = fleet(gpus())
    other = CapacitySum(START, HPC, Supply(MIG), 5, 0, 0, 0, 5)
    made = charged(of, Span(START + H, START + 2 * H), [had(0, 1), had(2, 1), other], [])
    assert made == ()
    assert GPUS in rate_spans(of, CALENDAR, day(0), [], {})
