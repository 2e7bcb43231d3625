"""From exact amounts to amounts that can be paid, such that parts still sum to the whole.

Amounts stay fractions until a document is made. Its total is the exact total rounded once, half to even; the
parts get what is left by largest remainder, so none is further than one quantum from what it exactly is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

Path = TypeVar("Path", bound=tuple[object, ...])


def rounded(amount: Fraction, quantum: Decimal) -> Decimal:
    """`amount` to the nearest quantum, half to even."""
    return round(amount / Fraction(quantum)) * quantum


def apportion(parts: Sequence[Fraction], total: Decimal, quantum: Decimal) -> list[Decimal]:
    """Each part in whole quanta, summing to `total`: the exact sum as somebody rounded it.

    Each is cut down to a quantum; what is then missing goes, a quantum each, to those that lost most, the
    earlier of two that lost the same. Where `total` is a quantum or more from the exact sum (quanta finer
    than what it was rounded to), the difference is first spread by size.
    """
    unit = Fraction(quantum)
    wanted = Fraction(total) / unit
    if wanted.denominator != 1:
        raise ValueError(f"{total} is not a multiple of {quantum}")
    units = _spread([part / unit for part in parts], int(wanted))
    floors = [u.numerator // u.denominator for u in units]
    missing = int(wanted) - sum(floors)
    if missing:
        lost = [u - f for u, f in zip(units, floors, strict=True)]
        for i in sorted(range(len(units)), key=lambda i: -lost[i])[:missing]:
            floors[i] += 1
    return [quantum * f for f in floors]


def _spread(units: list[Fraction], wanted: int) -> list[Fraction]:
    gap = wanted - sum(units, Fraction(0))
    if abs(gap) < 1:
        return units
    size = sum((abs(u) for u in units), Fraction(0))
    if not size:
        raise ValueError(f"{wanted} quanta cannot be shared by parts that are nothing")
    return [u + gap * abs(u) / size for u in units]


def apportion_paths(
    amounts: Mapping[Path, Fraction], quantum: Decimal, total: Decimal | None = None
) -> dict[Path, Decimal]:
    """Amounts by path, such as (team, pool, kind), rounded so that the parts sum to the whole at every level.

    The total is rounded first, then shared by the first words of the paths, each of those by the second, and
    so on: whichever level a document sums up to, no sum is further than a quantum from what it exactly is.
    """
    if total is None:
        total = rounded(sum(amounts.values(), Fraction(0)), quantum)
    found = dict.fromkeys(amounts, Decimal(0))
    if found:
        _share_down(list(amounts), 0, amounts, total, quantum, found)
    return found


def _share_down(
    paths: list[Path],
    depth: int,
    amounts: Mapping[Path, Fraction],
    total: Decimal,
    quantum: Decimal,
    found: dict[Path, Decimal],
) -> None:
    """Share `total` by the words that `paths` have at `depth`; one that ends there is a part of its own."""
    if len(paths) == 1:
        found[paths[0]] = total
        return
    branches: dict[tuple[object, ...], list[Path]] = {}
    for path in paths:
        branches.setdefault(path[depth : depth + 1], []).append(path)
    if len(branches) == 1:
        _share_down(paths, depth + 1, amounts, total, quantum, found)
        return
    sums = [sum((amounts[path] for path in branch), Fraction(0)) for branch in branches.values()]
    for branch, share in zip(branches.values(), apportion(sums, total, quantum), strict=True):
        _share_down(branch, depth + 1, amounts, share, quantum, found)
