"""Faults to plant in what makes charges, each of which the conservation check must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import date, datetime, tzinfo
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any, Final
from unittest.mock import patch

from fairway.cost import calendar, charges, corrections, rates, rounding
from fairway.cost.calendar import Calendar
from fairway.model.charge import Charge, Span
from fairway.model.gpu import GpuType
from fairway.model.names import SliceName, TeamName
from fairway.model.price import Commitment
from fairway.model.usage import AttemptUsage, UsagePiece
from tests.unit.cost import metering_reference as metering


def _each_by_itself(sizes: Sequence[int], one: int, quanta: int) -> list[int]:
    return [rounding._half_even(size, one) for size in sizes]


def _cut_down(sizes: Sequence[int], one: int, quanta: int) -> list[int]:
    return [size // one for size in sizes]


def _all_to_the_last(sizes: Sequence[int], one: int, quanta: int) -> list[int]:
    floors = [size // one for size in sizes]
    floors[-1] += quanta - sum(floors)
    return floors


def _half_up(size: int, one: int) -> int:
    return (2 * size + one) // (2 * one)


def _float_rate(per_hour: Decimal, discount: Decimal = Decimal(0)) -> Fraction:
    return Fraction(float(per_hour) * (1 - float(discount)) / 3600)


def _rate_to_a_millionth(per_hour: Decimal, discount: Decimal = Decimal(0)) -> Fraction:
    exact = Decimal(per_hour) * (1 - discount) / 3600
    return Fraction(exact.quantize(Decimal("0.000001"), ROUND_HALF_UP))


_true_charges = charges._ChargeTotals.charges


def _cents_at_once(sums: charges._ChargeTotals) -> tuple[Charge, ...]:
    return tuple(
        replace(charge, amount=Fraction(round(charge.amount * 100), 100)) for charge in _true_charges(sums)
    )


def _day_by_offset(zone: tzinfo, day: date) -> int:
    """The offset of noon is taken for that of midnight."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=zone)
    return int(noon.timestamp()) - 12 * 3600


def _always_3600(zone: tzinfo, at: int) -> int:
    return at + 3600


def _hours_of_utc(self: Calendar, at: int) -> Span:
    return Span(at // 3600 * 3600, at // 3600 * 3600 + 3600)


def _thirty_days(self: Calendar, day: date) -> int:
    return 30


def _no_leap_years(self: Calendar, day: date) -> int:
    return (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[day.month - 1]


_true_difference = metering.difference


def _never_takes_back(
    known: AttemptUsage | None, truth: AttemptUsage | None, zone: Calendar
) -> list[UsagePiece]:
    return [piece for piece in _true_difference(known, truth, zone) if piece.devices > 0]


def _a_second_too_long(
    known: AttemptUsage | None, truth: AttemptUsage | None, zone: Calendar
) -> list[UsagePiece]:
    pieces = _true_difference(known, truth, zone)
    return [replace(piece, end=piece.end + (i == 0)) for i, piece in enumerate(pieces)]


def _plain_eighths(
    gpu: GpuType, totals: Mapping[SliceName | None, int], gpu_seconds: int
) -> dict[SliceName | None, Fraction]:
    return {slice_: rates.memory_part(gpu, slice_) for slice_ in totals}


_true_covers = rates._covers


def _absent_is_free(*args: Any) -> tuple[tuple[rates.Cover, ...], dict[Commitment, Fraction]]:
    return _true_covers(*args)[0], {}


def _more_than_one(sums: Mapping[TeamName, Fraction | int]) -> charges.Shares:
    """A whole that leaves out a team, as when what is promised on is not counted in it."""
    whole = sum(list(sums.values())[:-1]) or sum(sums.values())
    return tuple((team, Fraction(own) / whole) for team, own in sums.items())


def _only_what_is_new(recomputed: Any, billed: Any) -> tuple[corrections.StatementAmount, ...]:
    known = {(line.team, line.kind, line.cluster, line.supply) for line in billed}
    return tuple(
        line for line in recomputed if (line.team, line.kind, line.cluster, line.supply) not in known
    )


def _market_at_the_start(self: Any, hour: Any, before: Fraction) -> Fraction:
    past = [rate for at, rate in zip(self._at, self._rates, strict=True) if at <= hour.start]
    return past[-1] if past else before


FAULTS: Final[dict[str, tuple[tuple[Any, str, Callable[..., Any]], ...]]] = {
    "each part rounded by itself": ((rounding, "_apportion", _each_by_itself),),
    "parts cut down, the rest lost": ((rounding, "_apportion", _cut_down),),
    "the rest all to the last part": ((rounding, "_apportion", _all_to_the_last),),
    "half up, not to even": ((rounding, "_half_even", _half_up),),
    "rates are floats": ((rates, "per_second", _float_rate),),
    "rates to a millionth": ((rates, "per_second", _rate_to_a_millionth),),
    "cents before sums": ((charges._ChargeTotals, "charges", _cents_at_once),),
    "a day begins by the offset of noon": ((calendar, "_day_start", _day_by_offset),),
    "hours are 3600 seconds": ((calendar, "_full_hour_after", _always_3600),),
    "hours are those of UTC": ((Calendar, "hour_span", _hours_of_utc),),
    "months have 30 days": ((Calendar, "days_in_month", _thirty_days),),
    "no leap years": ((Calendar, "days_in_month", _no_leap_years),),
    "nothing is taken back": ((metering, "difference", _never_takes_back),),
    "a second too long": ((metering, "difference", _a_second_too_long),),
    "slices by plain eighths": ((rates, "parts", _plain_eighths),),
    "absent commitments are free": ((rates, "_covers", _absent_is_free),),
    "guarantees of a smaller whole": ((charges, "_parts", _more_than_one),),
    "corrections only of new lines": ((corrections, "correction", _only_what_is_new),),
    "spot prices at the hour's start": ((rates._SpotPrices, "rate", _market_at_the_start),),
}


def planted(name: str) -> AbstractContextManager[None]:
    """Fairway with that fault, until it is taken out again."""
    return patched(FAULTS[name])


@contextmanager
def patched(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Fairway with these attributes of its parts replaced."""
    undo = [patch.object(place, attribute, fault) for place, attribute, fault in changes]
    _forget()
    for patching in undo:
        patching.start()
    try:
        yield
    finally:
        for patching in reversed(undo):
            patching.stop()
        _forget()


_CACHES: Final = (
    calendar._day_start,
    calendar._block,
    calendar._days,
    calendar._hours,
    calendar._days_in_month,
    rates.per_second,
)


def _forget() -> None:
    """What was worked out before must not hide a fault, nor outlive it."""
    for cache in _CACHES:
        cache.cache_clear()
