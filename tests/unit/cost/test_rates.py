"""What a second of a device costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from fairway.cost.rates import gpus_behind, hourly_pools, rate_spans
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Pool
from fairway.model.names import SliceName
from fairway.model.price import Commitment, PricePoint, PriceStep
from fairway.model.team import Supply
from tests.unit.cost.small import (
    CALENDAR,
    GPUS,
    MIG,
    MONDAY,
    ONE,
    START,
    THREE,
    H,
    day,
    fleet,
    gpus,
    had,
    priced,
    slices,
)

THOUSANDTH = Fraction(1, 1000)
QUARTER = SliceName("shared-4")


def at(hour: float) -> datetime:
    return datetime.fromtimestamp(START + int(hour * H), UTC)


def spot(price: str = "3.6") -> Pool:
    return replace(gpus(price), capacity=Capacity.SPOT)


def commitment(count: int, price: str, since: date = MONDAY, days: int = 30) -> Commitment:
    return Commitment(count, Decimal(price), since, since + timedelta(days=days))


def test_a_steady_price_is_cut_by_day_or_not_at_all() -> None:
    spans = rate_spans(fleet(gpus()), CALENDAR, day(0, 3), [], {})[GPUS]
    assert [s.span for s in spans] == [day(0), day(1), day(2)]
    assert {s.rates[None] for s in spans} == {THOUSANDTH}
    joined = rate_spans(fleet(gpus()), CALENDAR, day(0, 3), [], {}, by_day=False)[GPUS]
    assert [s.span for s in joined] == [day(0, 3)]


def test_a_step_and_a_discount() -> None:
    pool = priced(
        gpus(), steps=(PriceStep(MONDAY + timedelta(days=1), Decimal("7.2")),), discount=Decimal("0.1")
    )
    spans = rate_spans(fleet(pool), CALENDAR, day(0, 2), [], {}, by_day=False)[GPUS]
    assert [(s.span, s.rates[None]) for s in spans] == [
        (day(0), THOUSANDTH * 9 / 10),
        (day(1), 2 * THOUSANDTH * 9 / 10),
    ]


def test_spot_points_weigh_by_how_long_they_held() -> None:
    points = {GPUS: [PricePoint(at(-5), Decimal("3.6")), PricePoint(at(2.25), Decimal("7.2"))]}
    spans = rate_spans(fleet(spot("99")), CALENDAR, day(0), [], points)[GPUS]
    assert [(s.span, s.rates[None]) for s in spans] == [
        (Span(START, START + 2 * H), THOUSANDTH),
        (Span(START + 2 * H, START + 3 * H), THOUSANDTH * Fraction(7, 4)),
        (Span(START + 3 * H, START + 24 * H), 2 * THOUSANDTH),
    ]


def test_spot_points_do_not_apply_to_a_pool_that_is_not_bought_on_a_market() -> None:
    points = {GPUS: [PricePoint(at(-5), Decimal("0.01"))]}
    owned = fleet(gpus())
    assert rate_spans(owned, CALENDAR, day(0), [], points) == rate_spans(owned, CALENDAR, day(0), [], {})
    assert hourly_pools(owned, points) == frozenset()


def test_before_the_first_point_the_list_holds() -> None:
    points = {GPUS: [PricePoint(at(1), Decimal("7.2"))]}
    spans = rate_spans(fleet(spot()), CALENDAR, day(0), [], points)[GPUS]
    assert [s.rates[None] for s in spans] == [THOUSANDTH, 2 * THOUSANDTH]


def test_committed_gpus_cost_their_own_and_the_rest_the_list() -> None:
    pool = priced(gpus("7.2"), commitments=(commitment(6, "3.6"),))
    spans = rate_spans(fleet(pool), CALENDAR, Span(START, START + H), [had(0, 8)], {})[GPUS]
    assert spans[0].rates[None] == (6 * THOUSANDTH + 2 * 2 * THOUSANDTH) / 8
    assert spans[0].absent == {}


def test_committed_gpus_that_are_not_there_are_paid_too() -> None:
    pool = priced(gpus("7.2"), commitments=(commitment(6, "3.6"), commitment(4, "36")))
    spans = rate_spans(fleet(pool), CALENDAR, Span(START, START + H), [had(0, 8)], {})[GPUS]
    assert spans[0].rates[None] * 8 == 6 * THOUSANDTH + 2 * 10 * THOUSANDTH
    assert spans[0].absent == {commitment(4, "36"): 2 * H}
    assert [(c.commitment, c.share) for c in spans[0].covers] == [
        (commitment(6, "3.6"), Fraction(6, 8)),
        (commitment(4, "36"), Fraction(2, 8)),
    ]


def test_a_commitment_ends_with_its_last_day() -> None:
    pool = priced(gpus("7.2"), commitments=(commitment(1, "3.6", days=1),))
    spans = rate_spans(fleet(pool), CALENDAR, day(0, 2), [had(h, 1) for h in range(48)], {})[GPUS]
    assert [(s.span, s.rates[None]) for s in spans] == [(day(0), THOUSANDTH), (day(1), 2 * THOUSANDTH)]


def test_seven_slices_cost_one_gpu() -> None:
    rows = [had(0, 14, Supply(MIG, ONE), behind=2), had(0, 0, Supply(MIG, THREE), behind=0)]
    spans = rate_spans(fleet(slices()), CALENDAR, Span(START, START + H), rows, {})[MIG]
    assert spans[0].rates[ONE] == THOUSANDTH / 7
    assert spans[0].part(slices(), ONE) == Fraction(1, 7)


def test_four_replicas_of_a_shared_gpu_cost_one_gpu() -> None:
    pool = replace(gpus(), slices=(QUARTER,))
    rows = [had(0, 32, Supply(GPUS, QUARTER), behind=8)]
    spans = rate_spans(fleet(pool), CALENDAR, Span(START, START + H), rows, {})[GPUS]
    assert spans[0].rates[QUARTER] == THOUSANDTH / 4
    assert spans[0].part(pool, QUARTER) == Fraction(1, 4)
    assert gpus_behind(pool.gpu, {QUARTER: 32}) == 8
    assert gpus_behind(pool.gpu, {QUARTER: 5}) == 2


def test_a_shared_gpu_that_is_no_longer_shared_costs_its_part() -> None:
    span = rate_spans(fleet(gpus()), CALENDAR, day(0), [], {})[GPUS][0]
    assert span.rate(gpus(), QUARTER) == THOUSANDTH / 4


def test_a_slice_with_its_own_price() -> None:
    pool = priced(slices(), slices={ONE: Decimal("36")})
    rows = [had(0, 3, Supply(MIG, ONE), behind=1), had(0, 1, Supply(MIG, THREE), behind=0)]
    spans = rate_spans(fleet(pool), CALENDAR, Span(START, START + H), rows, {})[MIG]
    assert spans[0].rates[ONE] == 10 * THOUSANDTH
    assert spans[0].rates[THREE] == THOUSANDTH * Fraction(4, 7)


def test_a_slice_the_pool_no_longer_has_costs_its_memory() -> None:
    span = rate_spans(fleet(gpus()), CALENDAR, day(0), [], {})[GPUS][0]
    assert span.rate(gpus(), ONE) == THOUSANDTH / 8
    assert span.part(gpus(), ONE) == Fraction(1, 8)
    assert span.rate(gpus(), None) == THOUSANDTH


def test_rows_of_another_zone_find_their_hour() -> None:
    pool = priced(gpus("7.2"), commitments=(commitment(8, "3.6"),))
    rows = [had(0, 8), had(1, 8)]
    moved = [type(r)(r.start + 1800, *[getattr(r, f) for f in r.__slots__[1:]]) for r in rows]
    spans = rate_spans(fleet(pool), CALENDAR, Span(START, START + 2 * H), moved, {})[GPUS]
    assert [s.rates[None] for s in spans] == [THOUSANDTH]
    assert spans[0].absent == {}


def test_which_pools_need_their_capacity_by_hour() -> None:
    committed = priced(gpus(), commitments=(commitment(1, "1"),))
    assert hourly_pools(fleet(gpus(), slices()), {}) == {MIG}
    assert hourly_pools(fleet(committed), {}) == {GPUS}
    assert hourly_pools(fleet(spot()), {GPUS: [PricePoint(at(0), Decimal(1))]}) == {GPUS}


def test_nothing_is_owed_yet_for_the_rest_of_the_hour_that_runs() -> None:
    pool = priced(gpus("7.2"), commitments=(commitment(8, "3.6"),))
    rows = [had(0, 8), replace(had(1, 8), total=8 * 600, gpu_seconds=8 * 600)]
    window, now = Span(START, START + 2 * H), START + H + 600
    (span,) = rate_spans(fleet(pool), CALENDAR, window, rows, {}, until=now)[GPUS]
    assert (span.span, span.rates[None]) == (window, THOUSANDTH)
    assert span.absent == {}
    assert any(s.absent for s in rate_spans(fleet(pool), CALENDAR, window, rows, {})[GPUS])


def test_a_price_to_come_weighs_nothing_yet() -> None:
    points = {GPUS: [PricePoint(at(0.25), Decimal("7.2"))]}
    window = Span(START, START + 2 * H)
    spans = rate_spans(fleet(spot()), CALENDAR, window, [], points, until=START + 900)[GPUS]
    assert [s.rates[None] for s in spans] == [THOUSANDTH, 2 * THOUSANDTH]
