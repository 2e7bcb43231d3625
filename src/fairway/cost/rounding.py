"""From exact amounts to amounts that can be paid, such that parts still sum to the whole.

Amounts stay fractions until a document is made. Its total is the exact total rounded once, half to even; the
parts get what is left by largest remainder, so none is further than one quantum from what it exactly is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import TypeVar

Path = TypeVar("Path", bound=tuple[object, ...])


def exact_sum(amounts: Iterable[Fraction]) -> Fraction:
    """Their sum. Over one denominator from the start: adding one by one would reduce each time."""
    known = list(amounts)
    if len(known) == 1:
        return known[0]
    common = lcm(*{amount.denominator for amount in known})
    return Fraction(sum([a.numerator * (common // a.denominator) for a in known]), common)


def rounded(amount: Fraction, quantum: Decimal) -> Decimal:
    """`amount` to the nearest quantum, half to even."""
    return round(amount / Fraction(quantum)) * quantum


def apportion(parts: Sequence[Fraction], total: Decimal, quantum: Decimal) -> list[Decimal]:
    """Each part in whole quanta, summing to `total`: the exact sum as somebody rounded it.

    Each is cut down to a quantum; what is then missing goes, a quantum each, to those that lost most, the
    earlier of two that lost the same. Where `total` is a quantum or more from the exact sum (quanta finer
    than what it was rounded to), the difference is first spread by size.
    """
    sizes, one = _over_one(parts, quantum)
    return [quantum * quanta for quanta in _apportion(sizes, one, _in_quanta(total, quantum))]


def apportion_paths(
    amounts: Mapping[Path, Fraction], quantum: Decimal, total: Decimal | None = None
) -> dict[Path, Decimal]:
    """Amounts by path, such as (team, pool, kind), rounded so that the parts sum to the whole at every level.

    The total is rounded first, then shared by the first words of the paths, each of those by the second, and
    so on: whichever level a document sums up to, no sum is further than a quantum from what it exactly is.
    """
    paths = list(amounts)
    if not paths:
        return {}
    sizes, one = _over_one([amounts[path] for path in paths], quantum)
    quanta = _half_even(sum(sizes), one) if total is None else _in_quanta(total, quantum)
    found = [0] * len(paths)
    _share_down(paths, range(len(paths)), 0, sizes, one, quanta, found)
    return {path: quantum * quanta for path, quanta in zip(paths, found, strict=True)}


# Below, amounts are whole numbers: so many of which `one` make a quantum.


def _over_one(amounts: Sequence[Fraction], quantum: Decimal) -> tuple[list[int], int]:
    unit = Fraction(quantum)
    common = lcm(*{amount.denominator for amount in amounts})
    sizes = [amount.numerator * (common // amount.denominator) * unit.denominator for amount in amounts]
    return sizes, common * unit.numerator


def _in_quanta(total: Decimal, quantum: Decimal) -> int:
    quanta = Fraction(total) / Fraction(quantum)
    if quanta.denominator != 1:
        raise ValueError(f"{total} is not a multiple of {quantum}")
    return quanta.numerator


def _half_even(size: int, one: int) -> int:
    quanta, rest = divmod(size, one)
    return quanta + (2 * rest > one or (2 * rest == one and quanta % 2 == 1))


def _apportion(sizes: Sequence[int], one: int, quanta: int) -> list[int]:
    gap = quanta * one - sum(sizes)
    if abs(gap) >= one:
        sizes, one = _spread(sizes, one, gap)
    floors = [size // one for size in sizes]
    missing = quanta - sum(floors)
    if missing:
        rests = [size % one for size in sizes]
        # Sorting is stable: of equal rests the earlier is first.
        for i in sorted(range(len(sizes)), key=rests.__getitem__, reverse=True)[:missing]:
            floors[i] += 1
    return floors


def _spread(sizes: Sequence[int], one: int, gap: int) -> tuple[list[int], int]:
    whole = sum(map(abs, sizes))
    if not whole:
        raise ValueError("parts that are nothing cannot share something")
    return [size * whole + gap * abs(size) for size in sizes], one * whole


def _share_down(
    paths: Sequence[Path],
    some: Sequence[int],
    depth: int,
    sizes: Sequence[int],
    one: int,
    quanta: int,
    found: list[int],
) -> None:
    """Share `quanta` by the words that `some` of the paths have at `depth`; one that ends there alone."""
    if len(some) == 1:
        found[some[0]] = quanta
        return
    branches: dict[tuple[object, ...], list[int]] = {}
    for i in some:
        branches.setdefault(paths[i][depth : depth + 1], []).append(i)
    parts = [quanta]
    if len(branches) > 1:
        sums = [sum([sizes[i] for i in branch]) for branch in branches.values()]
        parts = _apportion(sums, one, quanta)
    for branch, share in zip(branches.values(), parts, strict=True):
        _share_down(paths, branch, depth + 1, sizes, one, share, found)
