"""Charges + idle + overhead = capacity × price + overhead, to the cent, per pool, day and month.

    python -m tests.unit.cost.conservation --cases 1000000

A case is one small world (`worlds`): one to three pools with prices, discounts, commitments, spot points,
slices; up to four teams, nested; one to three hours (now and then up to 55) of one of 18 zones, around a
change of the clocks, a leap day or the end of a month; capacity that changes, is down, drained or unknown;
up to three attempts, each told once or several times and corrected. It is metered, charged and rounded by
Fairway; of one in eight the month is closed on what was first told and then corrected, one in sixteen is
charged again day by day. What it must come to is worked out in `reckoning`, without Fairway.
"""

from __future__ import annotations

import argparse
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from math import lcm

from fairway.cost import charges, corrections, rates, report, rounding
from fairway.cost.calendar import Calendar
from fairway.model.charge import CapacitySum, Charge, Label, Span, UsageSum
from fairway.model.names import PoolName
from fairway.model.team import Supply
from fairway.model.usage import AttemptUsage
from tests.unit.cost import metering_reference as metering
from tests.unit.cost.reckoning import ZERO, Place, Used, expected, half_even, held
from tests.unit.cost.worlds import CENTS, World, world

LABELS = (
    (Label.TEAM, Label.DAY),
    (Label.TEAM, Label.USER, Label.DAY),
    (Label.POOL, Label.TEAM, Label.DAY),
    (Label.CLUSTER, Label.SLICE, Label.TEAM, Label.DAY),
)


class NotConserved(Exception):
    """A case in which something is lost or made from nothing."""


def check(seed: int) -> Counter[str]:
    """Run the case of a seed; what it was about, or NotConserved."""
    case = world(seed)
    calendar = Calendar(case.stage.zone)
    labels = LABELS[seed % 4]
    window = Span(case.hours[0].start, case.hours[-1].end)
    capacity = case.capacity()
    truth = held(case, [story[-1] for story in case.stories])
    at_first = seed % 8 == 0  # whether the month is closed on what was first told
    first_sums, sums = metered(case, calendar, truth)
    spans = rates.rate_spans(case.fleet, calendar, window, capacity, case.points)
    made = _charged(case, calendar, window, capacity, spans, sums, labels)
    wanted = expected(case, capacity, truth)
    cent = CENTS[case.fleet.currency]
    places = [_place(case, charge) for charge in made]
    _same_by_day(made, places, wanted)
    _same_rounded(made, places, wanted, cent, seed)
    if at_first:
        before = _charged(case, calendar, window, capacity, spans, first_sums, labels)
        _same_corrected(before, made, labels, cent)
    if seed % 16 == 1:
        _same_in_parts(case, calendar, capacity, sums, labels, made)
    if seed % 16 == 5:
        plain = _charged(case, calendar, window, capacity, spans, sums, (Label.TEAM,))
        if _total(c.amount for c in plain) != _total(c.amount for c in made):
            raise NotConserved("a window told without days costs something else than its days")
    return _about(case, made) if seed % 10 == 0 else Counter()


Sums = dict[tuple[int, int], int]
"""Device-seconds by hour and holder, as the ledger keeps them."""


def metered(case: World, calendar: Calendar, truth: Used) -> tuple[Sums, Sums]:
    """What the meter writes, of what was first told and in the end. What is lost in between comes again."""
    first: Sums = {}
    sums: Sums = {}
    starts, hours = case.stage.starts, case.stage.hours
    for story in case.stories:
        known: AttemptUsage | None = None
        for i, told in enumerate(story):
            if told is not None and (told.start + told.end) % 5 == 0:
                metering.difference(known, told, calendar)  # killed before it was written
            for piece in metering.difference(known, told, calendar):
                hour = hours[bisect_right(starts, piece.start) - 1]
                if piece.hour != hour.start or not hour.start <= piece.start < piece.end <= hour.end:
                    raise NotConserved(f"{piece} is not within the hour {hour}")
                key = (piece.hour, piece.holder)
                sums[key] = sums.get(key, 0) + piece.device_seconds
                if i == 0:
                    first[key] = first.get(key, 0) + piece.device_seconds
            known = told
            if metering.difference(known, told, calendar):
                raise NotConserved("what is written is written again")
    by_supply: Used = {supply: [0] * len(case.hours) for supply in case.supplies}
    index = {hour.start: i for i, hour in enumerate(case.hours)}
    for (start, holder), seconds in sums.items():
        if start in index:
            by_supply[case.holders[holder][0]][index[start]] += seconds
    if by_supply != truth:
        raise NotConserved(f"metered {by_supply}, held {truth}")
    return first, sums


def _charged(
    case: World,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    spans: Mapping[PoolName, Sequence[rates.RateSpan]],
    sums: Sums,
    labels: Sequence[Label],
) -> tuple[Charge, ...]:
    """As the ledger would answer: usage by span and labels, then charges."""
    starts = {pool: [span.span.start for span in found] for pool, found in spans.items()}
    cluster = {pool.name: pool.cluster for pool in case.fleet.pools}
    usage: dict[tuple[int, Supply, tuple[str, ...]], int] = {}
    for (hour, holder), seconds in sums.items():
        if not window.start <= hour < window.end or not seconds:
            continue
        supply, team, user = case.holders[holder]
        day = case.stage.hours[bisect_right(case.stage.starts, hour) - 1].day
        words = {
            Label.TEAM: team,
            Label.USER: user,
            Label.POOL: supply.pool,
            Label.CLUSTER: cluster[supply.pool],
            Label.SLICE: supply.slice or "",
            Label.DAY: day.isoformat(),
        }
        key = (
            bisect_right(starts[supply.pool], hour) - 1,
            supply,
            tuple(words[label] for label in labels),
        )
        usage[key] = usage.get(key, 0) + seconds
    rows = [UsageSum(span, supply, who, seconds) for (span, supply, who), seconds in usage.items()]
    return charges.charges(case.fleet, calendar, window, capacity, spans, rows, labels)


def _place(case: World, charge: Charge) -> Place:
    place = charge.cluster if charge.supply is None else charge.supply.pool
    return place, case.stage.hours[bisect_right(case.stage.starts, charge.span.start) - 1].day


def _total(amounts: Iterable[Fraction]) -> Fraction:
    """Their sum; not by Fairway, and faster than one by one."""
    known = list(amounts)
    common = lcm(*{amount.denominator for amount in known})
    return Fraction(sum([a.numerator * (common // a.denominator) for a in known]), common)


def _same_by_day(made: Sequence[Charge], places: Sequence[Place], wanted: Mapping[Place, Fraction]) -> None:
    found: dict[Place, list[Fraction]] = {place: [] for place in wanted}
    for charge, place in zip(made, places, strict=True):
        found[place].append(charge.amount)
    for place, amounts in found.items():
        if _total(amounts) != wanted[place]:
            raise NotConserved(f"{place}: charged {_total(amounts)}, cost {wanted[place]}")


def _same_rounded(
    made: Sequence[Charge],
    places: Sequence[Place],
    wanted: Mapping[Place, Fraction],
    cent: Decimal,
    seed: int,
) -> None:
    """Each month's document by pool, day and line, and one day's. Parts sum to the whole, none is far off."""
    days = sorted({day for _, day in wanted})
    months = sorted({(day.year, day.month) for day in days})
    documents = [{day for day in days if (day.year, day.month) == month} for month in months]
    if len(days) > 1:
        documents.append({days[seed % len(days)]})
    for its_days in documents:
        lines: dict[tuple[object, ...], Fraction] = {}
        for charge, (place, day) in zip(made, places, strict=True):
            if day in its_days:
                lines[place, day, charge.kind, charge.supply, charge.labels] = charge.amount
        told = rounding.apportion_paths(lines, cent)
        due = _total(amount for (_, day), amount in wanted.items() if day in its_days)
        if sum(told.values(), Decimal(0)) != half_even(due, cent):
            raise NotConserved(f"a document sums to {sum(told.values())}, must be {half_even(due, cent)}")
        _near(told, lines, wanted, cent)


def _near(
    told: Mapping[tuple[object, ...], Decimal],
    lines: Mapping[tuple[object, ...], Fraction],
    wanted: Mapping[Place, Fraction],
    cent: Decimal,
) -> None:
    by_day: dict[Place, Decimal] = {}
    for line, amount in told.items():
        if not _within_a_cent(amount, lines[line], cent):
            raise NotConserved(f"{line} is {lines[line]}, told as {amount}")
        place, day = line[:2]
        assert isinstance(place, str) and isinstance(day, date)
        by_day[place, day] = by_day.get((place, day), Decimal(0)) + amount
    for place_and_day, amount in by_day.items():
        if not _within_a_cent(amount, wanted[place_and_day], cent):
            raise NotConserved(f"{place_and_day} cost {wanted[place_and_day]}, told as {amount}")


def _within_a_cent(told: Decimal, exact: Fraction, cent: Decimal) -> bool:
    whole = int(1 / cent)
    cents, one = int(told * whole), exact.denominator
    return cents * cent == told and abs(cents * one - exact.numerator * whole) < one


def _same_corrected(
    before: Sequence[Charge],
    made: Sequence[Charge],
    labels: Sequence[Label],
    cent: Decimal,
) -> None:
    """A month closed on what was first told, and its correction, come to what it truly cost."""
    closed = corrections.statement_amounts(before, labels, cent)
    anew = corrections.statement_amounts(made, labels, cent)
    later = corrections.correction(anew, closed)
    sum_told = sum((line.amount for line in (*closed, *later)), Decimal(0))
    # Each column is rounded once; that charges are complete, by day and place, was found out before.
    columns: dict[str, list[Fraction]] = {}
    for charge in made:
        columns.setdefault(report.column_of(charge.kind), []).append(charge.amount)
    fine = (half_even(_total(amounts), Decimal("0.000001")) for amounts in columns.values())
    due = sum((half_even(Fraction(amount), cent) for amount in fine), Decimal(0))
    if sum_told != due:
        raise NotConserved(f"closed and corrected {sum_told}, must be {due}")
    if corrections.correction(anew, (*closed, *later)):
        raise NotConserved("a correction does not correct")


def _same_in_parts(
    case: World,
    calendar: Calendar,
    capacity: Sequence[CapacitySum],
    sums: Sums,
    labels: Sequence[Label],
    made: Sequence[Charge],
) -> None:
    """A window is the sum of its days, charge by charge."""
    found: dict[object, Fraction] = {}
    for day in sorted({hour.day for hour in case.hours}):
        its = [hour for hour in case.hours if hour.day == day]
        window = Span(its[0].start, its[-1].end)
        there = [row for row in capacity if window.start <= row.start < window.end]
        spans = rates.rate_spans(case.fleet, calendar, window, there, case.points)
        for c in _charged(case, calendar, window, there, spans, sums, labels):
            key = (c.kind, c.cluster, c.supply, c.span, c.labels)
            found[key] = found.get(key, ZERO) + c.amount
    whole = {(c.kind, c.cluster, c.supply, c.span, c.labels): c.amount for c in made}
    if found != whole:
        raise NotConserved("a window is not the sum of its days")


def _about(case: World, made: Sequence[Charge]) -> Counter[str]:
    """What the case has, for the record."""
    fleet = case.fleet
    days = {hour.day for hour in case.hours}
    seen = {
        "more than one day": len(days) > 1,
        "more than one month": len({day.month for day in days}) > 1,
        "clocks change": len({h.end - h.start for h in case.hours} - {3600}) > 0
        or len({_offset(case, h.start) for h in case.hours}) > 1,
        "leap day": any((day.month, day.day) == (2, 29) for day in days),
        "slices": any(pool.slices for pool in fleet.pools),
        "slices at own prices": any(pool.pricing.slices for pool in fleet.pools),
        "commitments": any(pool.pricing.commitments for pool in fleet.pools),
        "spot": bool(case.points),
        "corrected": any(len(story) > 1 for story in case.stories),
        "capacity unknown": not all(case.stocks.values()),
        "idle shared": any(c.labels is not None and c.kind.value != "usage" and c.supply for c in made),
        "overhead shared": any(c.labels is not None and c.supply is None for c in made),
        "nothing used": not case.stories,
    }
    return Counter(name for name, is_so in seen.items() if is_so)


def _offset(case: World, at: int) -> object:
    from datetime import datetime

    return datetime.fromtimestamp(at, case.stage.zone).utcoffset()


def main() -> int:
    """Run cases; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    options = parser.parse_args()
    about: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(options.first, options.first + options.cases):
        try:
            about += check(seed)
        except Exception as error:
            print(f"case {seed}: {error!r}", file=sys.stderr)  # noqa: T201
            return 1
        done = seed - options.first + 1
        if done % 10_000 == 0 or done == options.cases:
            seconds = time.perf_counter() - began
            print(f"{done} cases in {seconds:.0f} s, {done / seconds:.0f} a second", flush=True)  # noqa: T201
    print("of every tenth case:")  # noqa: T201
    for name, count in about.most_common():
        print(f"{count:>9}  {name}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
