"""Round exact amounts to payable amounts such that the parts still sum to the whole.

Amounts stay fractions until they leave. Machines get six digits. In a document for people each column is the
exact total rounded once, half to even; its parts are rounded by the largest remainder method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Final, TypeVar

HUNDREDTH: Final = Decimal("0.01")
"""The precision of hours for people."""
MILLIONTH: Final = Decimal("0.000001")
"""The precision of amounts and hours in JSON, CSV and FOCUS, where every figure is rounded by itself."""

Path = TypeVar("Path", bound=tuple[object, ...])


def exact_sum(amounts: Iterable[Fraction]) -> Fraction:
    """Sum fractions over one common denominator; adding one by one would reduce the fraction each time."""
    addends = list(amounts)
    if len(addends) == 1:
        return addends[0]
    common = lcm(*{a.denominator for a in addends})
    return Fraction(sum([a.numerator * (common // a.denominator) for a in addends]), common)


def rounded(amount: Fraction, quantum: Decimal) -> Decimal:
    """Round `amount` to the nearest quantum, half to even."""
    return round(amount / Fraction(quantum)) * quantum


def millionths(amount: Fraction) -> Decimal:
    """Round a figure for machines."""
    return rounded(amount, MILLIONTH)


def apportion(parts: Sequence[Fraction], total: Decimal, quantum: Decimal) -> list[Decimal]:
    """Round each part to whole quanta that sum to `total`, which is the exact sum as rounded by the caller.

    Each part is rounded down; the missing quanta go one each to the parts with the largest remainders, the
    earlier part first on a tie. If `total` differs from the exact sum by a quantum or more (it was rounded to
    a coarser quantum), the difference is first spread in proportion to size.
    """
    sizes, one = _over_one(parts, quantum)
    return [quantum * quanta for quanta in _apportion(sizes, one, _in_quanta(total, quantum))]


def apportion_paths(
    amounts: Mapping[Path, Fraction], quantum: Decimal, total: Decimal | None = None
) -> dict[Path, Decimal]:
    """Round amounts by path, e.g. (team, pool, kind), so that the parts sum to the whole at every level.

    The total is rounded first, then distributed by the first element of the paths, each of those by the
    second, and so on: a sum at any level is within one quantum of its exact amount.
    """
    paths = list(amounts)
    if not paths:
        return {}
    sizes, one = _over_one([amounts[path] for path in paths], quantum)
    quanta = _half_even(sum(sizes), one) if total is None else _in_quanta(total, quantum)
    result = [0] * len(paths)
    _distribute(paths, range(len(paths)), 0, sizes, one, quanta, result)
    return {path: quantum * quanta for path, quanta in zip(paths, result, strict=True)}


def round_cells(
    cells: Mapping[Path, Fraction], quantum: Decimal, totals: Mapping[object, Decimal] | None = None
) -> dict[Path, Decimal]:
    """Round the cells of a document by path: column, kind of line, row.

    The total of each column is rounded once and then divided by kind and by row, level by level, so that a
    column or kind is the same figure in every document of a window, whatever its rows are. Everything is
    rounded from millionths, as machines get it; `totals` are those of columns whose cells are millionths.
    """
    columns: dict[object, dict[Path, Fraction]] = {}
    for path in sorted(cells):  # whatever order they came in: equal remainders go to the first
        columns.setdefault(path[0], {})[path] = cells[path]
    found: dict[Path, Decimal] = {}
    for column, exact in columns.items():
        total = rounded(exact_sum(exact.values()), MILLIONTH) if totals is None else totals[column]
        fine = {path: Fraction(rounded(amount, MILLIONTH)) for path, amount in exact.items()}
        whole = rounded(Fraction(total), quantum) if any(fine.values()) else 0 * quantum
        found |= apportion_paths(fine, quantum, whole)
    return found


# Below, amounts are integers in a unit of which `one` make a quantum.


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


def _distribute(
    paths: Sequence[Path],
    indices: Sequence[int],
    depth: int,
    sizes: Sequence[int],
    one: int,
    quanta: int,
    result: list[int],
) -> None:
    """Distribute `quanta` among `some` paths by their element at `depth`; an ended path is a branch too."""
    if len(indices) == 1:
        result[indices[0]] = quanta
        return
    branches: dict[tuple[object, ...], list[int]] = {}
    for i in indices:
        branches.setdefault(paths[i][depth : depth + 1], []).append(i)
    parts = [quanta]
    if len(branches) > 1:
        sums = [sum([sizes[i] for i in branch]) for branch in branches.values()]
        parts = _apportion(sums, one, quanta)
    for branch, share in zip(branches.values(), parts, strict=True):
        _distribute(paths, branch, depth + 1, sizes, one, share, result)
