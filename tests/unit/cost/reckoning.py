"""What a world must cost: capacity × price and overhead, from the drawn numbers alone.

Nothing of `fairway.cost` is used. Money is counted in whole numbers wherever it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.model.charge import CapacitySum
from fairway.model.fleet import Pool
from fairway.model.price import Commitment
from fairway.model.team import Supply
from fairway.model.usage import AttemptUsage
from tests.unit.cost.worlds import MEMORY_EIGHTHS, MICRO, Hour, World, days_in_month

SCALE: Final = 3600 * 1_000_000 * 1000
"""Amounts are counted in thousandths of a millionth of money per hour, times seconds."""
ZERO: Final = Fraction(0)
Place = tuple[str, date]
"""A pool or cluster, and a day."""
Used = dict[Supply, list[int]]
"""Device-seconds by hour of the window."""


def held(case: World, truths: Sequence[AttemptUsage | None]) -> Used:
    """Device-seconds by supply and hour, straight from what is true."""
    found: Used = {supply: [0] * len(case.hours) for supply in case.supplies}
    for truth in truths:
        if truth is None:
            continue
        row = found[case.holders[truth.holder][0]]
        for i, hour in enumerate(case.hours):
            row[i] += truth.devices * max(0, min(hour.end, truth.end) - max(hour.start, truth.start))
    return found


def expected(case: World, capacity: Sequence[CapacitySum], used: Used) -> dict[Place, Fraction]:
    """Capacity × price of every pool and day, and the overhead of every cluster and day."""
    found: dict[Place, Fraction] = {}
    rows: dict[tuple[Supply, int], CapacitySum] = {(row.supply, row.start): row for row in capacity}
    for pool in case.fleet.pools:
        paid: dict[date, Fraction | int] = {}
        for hour in case.hours:
            there = [rows[supply, hour.start] for supply in pool.supplies if (supply, hour.start) in rows]
            paid[hour.day] = paid.get(hour.day, 0) + hour_cost(case, pool, hour, there)
        for day, extra in _beyond(case, pool, rows, used).items():
            paid[day] += extra
        for day, units in paid.items():
            found[pool.name, day] = Fraction(units, SCALE)
    for cluster in case.fleet.clusters:
        monthly = sum((Fraction(amount) for amount in cluster.overhead.values()), ZERO)
        seconds: dict[date, int] = {}
        for hour in case.hours:
            seconds[hour.day] = seconds.get(hour.day, 0) + hour.end - hour.start
        for day, there_seconds in seconds.items():
            whole = case.stage.day_seconds[day] * days_in_month(case.stage.zone, day)
            found[cluster.name, day] = Fraction(monthly * there_seconds, whole) if monthly else ZERO
    return found


def _market(case: World, pool: Pool, hour: Hour) -> int:
    """What one GPU costs through the hour without commitments."""
    micro = MICRO[pool.price]
    for step in pool.pricing.steps:
        if step.since <= hour.day:
            micro = MICRO[step.per_gpu_hour]
    price, since, cost = micro * (1000 - int(pool.pricing.discount * 1000)), hour.start, 0
    for point in case.points.get(pool.name, ()):
        at = int(point.at.timestamp())
        if at >= hour.end:
            break
        if at > since:
            cost += price * (at - since)
            since = at
        price = MICRO[point.per_gpu_hour] * 1000
    return cost + price * (hour.end - since)


def hour_cost(case: World, pool: Pool, hour: Hour, there: Sequence[CapacitySum]) -> Fraction | int:
    """Commitments whether or not they are there, and the rest of what is there at the market's price."""
    seconds = hour.end - hour.start
    gpu_seconds = sum(row.gpu_seconds for row in there)
    market = _market(case, pool, hour)
    committed = cost = absent = 0
    for c in pool.pricing.commitments:
        if c.since <= hour.day < c.until:
            wanted = c.gpus * seconds
            missing = min(wanted, max(0, committed + wanted - gpu_seconds))
            committed += wanted
            cost += wanted * MICRO[c.per_gpu_hour] * 1000
            absent += missing * MICRO[c.per_gpu_hour] * 1000
    rest = max(0, gpu_seconds - committed) * market
    paid: Fraction | int = cost + (rest // seconds if rest % seconds == 0 else Fraction(rest, seconds))
    own = pool.pricing.slices
    if not own:
        return paid
    # Slices with a price of their own cost that; the others their part of what the GPUs cost.
    eighths = sum(row.total * _eighths(row.supply) for row in there)
    others = sum(row.total * _eighths(row.supply) for row in there if row.supply.slice not in own)
    priced = sum(
        row.total * MICRO[own[row.supply.slice]] * 1000
        for row in there
        if row.supply.slice is not None and row.supply.slice in own
    )
    return absent + priced + (Fraction((paid - absent) * others, eighths) if others else 0)


def _eighths(supply: Supply) -> int:
    return 8 if supply.slice is None else MEMORY_EIGHTHS[supply.slice]


def _beyond(
    case: World, pool: Pool, rows: Mapping[tuple[Supply, int], CapacitySum], used: Used
) -> dict[date, Fraction]:
    """What was held beyond what was seen to be there costs what the rest does, and was there after all.

    Compared over as long as the rate stays the same within a day: late news of a node is no loss elsewhere.
    """
    found: dict[date, Fraction] = {}
    totals = {
        supply: [rows[supply, h.start].total if (supply, h.start) in rows else 0 for h in case.hours]
        for supply in pool.supplies
    }
    if all(u <= t for s in pool.supplies for u, t in zip(used[s], totals[s], strict=True)):
        return found
    known = any((supply, case.hours[0].start) in rows for supply in pool.supplies)
    steady = not (pool.slices or pool.pricing.commitments or case.points.get(pool.name))
    run: dict[Supply, list[int]] = {}
    before: object = None
    rates: dict[Supply, Fraction] = {}
    day = case.hours[0].day

    def close() -> None:
        for supply, (held_there, had) in run.items():
            if held_there > had:
                found[day] = found.get(day, ZERO) + (held_there - had) * rates[supply]

    for i, hour in enumerate(case.hours):
        there = [rows[s, hour.start] for s in pool.supplies] if known else []
        now = worth(case, pool, hour, there)
        key = hour.day if steady else (hour.day, now, covered(pool, hour, there))
        if key != before:
            close()
            run, before, day, rates = {}, key, hour.day, now[0]
        for supply in pool.supplies:
            sums = run.setdefault(supply, [0, 0])
            sums[0] += used[supply][i]
            sums[1] += totals[supply][i]
    close()
    return found


def worth(
    case: World, pool: Pool, hour: Hour, there: Sequence[CapacitySum]
) -> tuple[dict[Supply, Fraction], Fraction, Fraction]:
    """What a device-second of each supply costs in an hour, what a GPU-second does, and what an eighth is."""
    seconds = hour.end - hour.start
    gpu_seconds = sum(row.gpu_seconds for row in there)
    per_gpu = Fraction(_market(case, pool, hour), seconds)
    taken = _taken(pool, hour, gpu_seconds)
    left = gpu_seconds - sum(n for _, n in taken)
    cost = sum((n * MICRO[c.per_gpu_hour] * 1000 for c, n in taken), ZERO)
    if gpu_seconds:
        per_gpu = (cost + left * per_gpu) / gpu_seconds
    eighths = sum(row.total * _eighths(row.supply) for row in there)
    eighth = Fraction(gpu_seconds, eighths) if eighths and pool.slices else Fraction(1, 8)
    found = {supply: per_gpu * eighth * _eighths(supply) for supply in pool.supplies}
    for slice_, own in pool.pricing.slices.items():
        found[Supply(pool.name, slice_)] = Fraction(MICRO[own] * 1000)
    return found, per_gpu, eighth


def _taken(pool: Pool, hour: Hour, gpu_seconds: int) -> list[tuple[Commitment, int]]:
    """Which commitments cover how many GPU-seconds of an hour, in the order of the file."""
    found = []
    for c in pool.pricing.commitments:
        if c.since <= hour.day < c.until and (taken := min(gpu_seconds, c.gpus * (hour.end - hour.start))):
            gpu_seconds -= taken
            found.append((c, taken))
    return found


def covered(pool: Pool, hour: Hour, there: Sequence[CapacitySum]) -> tuple[object, ...]:
    """What share of an hour's GPUs each commitment covers: such hours are charged one by one."""
    gpu_seconds = sum(row.gpu_seconds for row in there)
    return tuple((c, Fraction(taken, gpu_seconds)) for c, taken in _taken(pool, hour, gpu_seconds))


def half_even(amount: Fraction, cent: Decimal) -> Decimal:
    """To the nearest cent, half to the even one: by whole numbers."""
    one = amount.denominator
    cents, rest = divmod(amount.numerator * int(1 / cent), one)
    if 2 * rest > one or (2 * rest == one and cents % 2):
        cents += 1
    return cents * cent
