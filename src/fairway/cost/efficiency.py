"""Divide held GPU time by what the GPUs did in it, and group it into the rows of a report. Pure.

The kinds of held time always add up to what was held: time that nobody measured is a kind of its own. Hours,
amounts and energy are rounded as in every report, so that rows sum to the totals shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.report import hours
from fairway.cost.rounding import exact_sum, millionths
from fairway.model.gpu_use import GpuUse, GpuUseSum, HeldKind, MetricCode, merged

_JOULES_PER_KWH: Final = 3_600_000
_ZERO: Final = Decimal(0)
_NONE: Final = Fraction(0)


def divided(held: int, found: GpuUseSum | None) -> dict[HeldKind, Fraction]:
    """Divide held device-seconds by what was measured in them; the parts sum to `held` exactly.

    What was measured beyond what was held is left out: an attempt's ends are stored in whole seconds.
    """
    if found is None or held <= 0:
        return {HeldKind.UNMEASURED: Fraction(held)}
    most = Fraction(held)
    measured = min(_exact(found.use.measured), most)
    idle = min(_exact(found.idle), measured)
    busy = min(_exact(found.use.integrals.get(MetricCode.ENGINE, 0.0)), measured - idle)
    parts = {
        HeldKind.BUSY: busy,
        HeldKind.POOR: measured - idle - busy,
        HeldKind.IDLE: idle,
        HeldKind.UNMEASURED: most - measured,
    }
    return {kind: seconds for kind, seconds in parts.items() if seconds}


def _exact(seconds: float) -> Fraction:
    """Convert a stored sum, in milliseconds: the sums of two groupings differ by less than is ever shown."""
    return Fraction(round(max(0.0, seconds) * 1000), 1000)


@dataclass(frozen=True, slots=True)
class EfficiencyEntry:
    """Held time with the labels that a report groups by. A slice counts as its part of a GPU."""

    labels: tuple[str, ...]
    seconds: Mapping[HeldKind, Fraction]
    """GPU-seconds."""
    amounts: Mapping[HeldKind, Fraction]
    """What the held time cost, without shares of idle capacity and overhead."""
    use: GpuUse
    energy: Energy


@dataclass(frozen=True, slots=True)
class Energy:
    """Measured energy, and the carbon dioxide of its generation where the grid's factor is known."""

    joules: Fraction = _NONE
    co2_grams: Fraction = _NONE


def energy_of(use: GpuUse, pue: Decimal, co2_grams_per_kwh: Decimal | None) -> Energy:
    """Return the energy of devices, with what the site adds to it (PUE)."""
    joules = round(use.integrals.get(MetricCode.POWER, 0.0)) * Fraction(pue)
    factor = Fraction(co2_grams_per_kwh) if co2_grams_per_kwh is not None else _NONE
    return Energy(joules, joules / _JOULES_PER_KWH * factor)


def scaled(use: GpuUse, part: Fraction) -> GpuUse:
    """Return what devices did, counted as their part of a GPU."""
    if part == 1:
        return use
    found = merged((use,))
    found.scale(float(part))
    return found


@dataclass(frozen=True, slots=True)
class EfficiencyRow:
    """A rounded row of a report: hours and amounts of each kind sum to those held."""

    labels: tuple[str, ...]
    hours: Mapping[HeldKind, Decimal]
    amounts: Mapping[HeldKind, Decimal]
    use: GpuUse
    kwh: Decimal
    co2_kg: Decimal
    others: int = 0
    """The number of rows merged into this one beyond the limit; 0 for a single row."""

    @property
    def held_hours(self) -> Decimal:
        return sum(self.hours.values(), _ZERO)

    @property
    def amount(self) -> Decimal:
        return sum(self.amounts.values(), _ZERO)


@dataclass(frozen=True, slots=True)
class EfficiencyTable:
    """The rows of a report and their total."""

    rows: tuple[EfficiencyRow, ...]
    total: EfficiencyRow


@dataclass(slots=True)
class _RowTotal:
    """The parts of a row: one sum at the end is many times faster than adding fractions one by one."""

    seconds: dict[HeldKind, list[Fraction]] = field(default_factory=dict)
    amounts: dict[HeldKind, list[Fraction]] = field(default_factory=dict)
    uses: list[GpuUse] = field(default_factory=list)
    joules: list[Fraction] = field(default_factory=list)
    co2_grams: list[Fraction] = field(default_factory=list)


def efficiency_table(
    entries: Iterable[EfficiencyEntry], *, max_rows: int, sort_labels: Sequence[int] = ()
) -> EfficiencyTable:
    """Build one row per set of labels, what cost most for nothing first: at most `max_rows`, and the rest.

    `sort_labels`: indices of labels to sort rows by first, so that e.g. days are in order.
    """
    sums: dict[tuple[str, ...], _RowTotal] = {}
    for entry in entries:
        row = sums.setdefault(entry.labels, _RowTotal())
        for kind, seconds in entry.seconds.items():
            row.seconds.setdefault(kind, []).append(seconds)
            row.amounts.setdefault(kind, []).append(entry.amounts[kind])
        row.uses.append(entry.use)
        row.joules.append(entry.energy.joules)
        row.co2_grams.append(entry.energy.co2_grams)
    rows = [_row(labels, found) for labels, found in sums.items()]
    ranked = sorted(rows, key=_by_waste)
    first = sorted(ranked[:max_rows], key=lambda r: ([r.labels[i] for i in sort_labels], *_by_waste(r)))
    rest = ranked[max_rows:]
    others = [_sum_of(rest, ("",) * len(rest[0].labels), len(rest))] if rest else []
    return EfficiencyTable((*first, *others), _row((), _whole(sums.values())))


def _row(labels: tuple[str, ...], row: _RowTotal) -> EfficiencyRow:
    kinds = [kind for kind in HeldKind if kind in row.seconds]
    return EfficiencyRow(
        labels,
        {kind: hours(exact_sum(row.seconds[kind])) for kind in kinds},
        {kind: millionths(exact_sum(row.amounts[kind])) for kind in kinds},
        merged(row.uses),
        millionths(exact_sum(row.joules) / _JOULES_PER_KWH),
        millionths(exact_sum(row.co2_grams) / 1000),
    )


def _whole(rows: Iterable[_RowTotal]) -> _RowTotal:
    found = _RowTotal()
    for row in rows:
        for kind, seconds in row.seconds.items():
            found.seconds.setdefault(kind, []).extend(seconds)
            found.amounts.setdefault(kind, []).extend(row.amounts[kind])
        found.uses.extend(row.uses)
        found.joules.extend(row.joules)
        found.co2_grams.extend(row.co2_grams)
    return found


def _by_waste(row: EfficiencyRow) -> tuple[Decimal, Decimal, Decimal, tuple[str, ...]]:
    idle, poor = (row.amounts.get(kind, _ZERO) for kind in (HeldKind.IDLE, HeldKind.POOR))
    return -(idle + poor), -row.amount, -row.held_hours, row.labels


def _sum_of(rows: Sequence[EfficiencyRow], labels: tuple[str, ...], others: int = 0) -> EfficiencyRow:
    kinds = [kind for kind in HeldKind if any(kind in row.hours for row in rows)]
    return EfficiencyRow(
        labels,
        {kind: sum((row.hours.get(kind, _ZERO) for row in rows), _ZERO) for kind in kinds},
        {kind: sum((row.amounts.get(kind, _ZERO) for row in rows), _ZERO) for kind in kinds},
        merged(row.use for row in rows),
        sum((row.kwh for row in rows), _ZERO),
        sum((row.co2_kg for row in rows), _ZERO),
        others,
    )
