"""Compute reports of cost, usage, waste and capacity, whose rows sum to the totals shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from fairway.advise.right_size import name_pattern
from fairway.cost.calendar import Window, calendar_of, parse_window
from fairway.cost.efficiency import (
    EfficiencyEntry,
    EfficiencyTable,
    Energy,
    divided,
    efficiency_table,
    energy_of,
    scaled,
)
from fairway.cost.report import ReportEntry, ReportTable, hours, table
from fairway.cost.rounding import millionths
from fairway.ledger import UsageFilter, UsageView
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Dimension, Label, UsageSum
from fairway.model.cost_unit import CostDivisor
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import GpuUse, GpuUseSum, HeldKind, MetricCode, merged
from fairway.model.names import PoolName
from fairway.model.team import Supply
from fairway.services.charges import EVERYBODY, Costs, PricedWindow, or_now, own_labels
from fairway.services.work_done import work_entries

PLACE_LABELS: Final = (Label.POOL, Label.CLUSTER, Label.SLICE, Label.DAY)
"""Labels that unused devices can have."""
_USED: Final = "used"
MAX_DAYS: Final = 20_000
"""Rows of a report by day: ten years of days, with a few names each."""

_ByPath: TypeAlias = dict[tuple[str, ...], Fraction]


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """The window, labels and filter of a report."""

    window: str
    by: tuple[Dimension, ...]
    which: UsageFilter = EVERYBODY
    max_rows: int = 1000
    """Further rows are summed in one."""
    per: CostDivisor | None = None
    """What the cost of each row is divided by, too."""


@dataclass(frozen=True, slots=True)
class ReportResult:
    """A report of cost or usage, and its window."""

    window: Window
    table: ReportTable


@dataclass(frozen=True, slots=True)
class WasteRow:
    """Used and unused device-hours of one set of labels, and the cost of the unused ones."""

    labels: tuple[str, ...]
    used_hours: Decimal
    hours: Mapping[ChargeKind, Decimal]
    amounts: Mapping[ChargeKind, Decimal]
    held_hours: Mapping[HeldKind, Decimal]
    """What became of the used hours; they sum to `used_hours`."""
    held_amounts: Mapping[HeldKind, Decimal]
    others: int = 0
    """The number of rows beyond the limit that this one sums up."""

    @property
    def capacity_hours(self) -> Decimal:
        """Return the hours of all devices that existed; committed GPUs that did not exist do not count."""
        unused = (hours for kind, hours in self.hours.items() if kind is not ChargeKind.COMMITMENT)
        return sum(unused, self.used_hours)

    @property
    def amount(self) -> Decimal:
        """Return the cost of the unused hours."""
        return sum(self.amounts.values(), Decimal(0))


@dataclass(frozen=True, slots=True)
class WasteResult:
    """A report of unused capacity, and its window."""

    window: Window
    rows: tuple[WasteRow, ...]
    total: WasteRow


@dataclass(frozen=True, slots=True)
class EfficiencyResult:
    """A report of what became of the held GPU time, and its window."""

    window: Window
    table: EfficiencyTable


@dataclass(frozen=True, slots=True)
class CapacityDay:
    """The capacity of one pool on one day and its cost, used or not."""

    day: date
    pool: PoolName
    gpu_seconds: int
    cost: Fraction


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """Who held GPUs that did nothing; a slice counts as its part of a GPU."""

    labels: tuple[str, ...]
    idle_hours: float
    measured_hours: float
    amount: float
    """What the idle time cost, without shares of idle capacity and overhead."""


class CostReports:
    """Computes reports from the charges and usage of a fleet."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    async def cost(self, fleet: Fleet, query: ReportQuery, now: int | None = None) -> ReportResult:
        """Report the cost of usage, with shares of unused capacity and overhead."""
        window = window_of(fleet, query.window, now)
        return ReportResult(window, _table(fleet, query, await self._cost(fleet, window, query)))

    async def usage(self, fleet: Fleet, query: ReportQuery, now: int | None = None) -> ReportResult:
        """Report usage without amounts."""
        window = window_of(fleet, query.window, now)
        return ReportResult(window, _table(fleet, query, await self._usage(fleet, window, query)))

    async def cost_by_day(
        self, fleet: Fleet, query: ReportQuery, label: Dimension | None, now: int | None = None
    ) -> tuple[ReportResult, ReportResult]:
        """Report the cost by the query's labels, and by `label` and day, from one read of the ledger.

        `label` should have few values.
        """
        window, finer = window_of(fleet, query.window, now), _finer(query, label)
        return _both(fleet, window, query, finer, label, await self._cost(fleet, window, finer))

    async def usage_by_day(
        self, fleet: Fleet, query: ReportQuery, label: Dimension | None, now: int | None = None
    ) -> tuple[ReportResult, ReportResult]:
        """Report usage as `cost_by_day` does, without amounts."""
        window, finer = window_of(fleet, query.window, now), _finer(query, label)
        return _both(fleet, window, query, finer, label, await self._usage(fleet, window, finer))

    async def efficiency(self, fleet: Fleet, query: ReportQuery, now: int | None = None) -> EfficiencyResult:
        """Report what the GPUs did that were held. Names of jobs are grouped by their pattern: `train-*`."""
        window = window_of(fleet, query.window, now)
        entries: list[EfficiencyEntry] = []
        for priced in await self._costs.priced(fleet, window.span, window.now):
            entries += await self._efficiency(
                priced if Label.DAY in query.by else priced.over_days(), query.by, query.which
            )
        days = [i for i, label in enumerate(query.by) if label is Label.DAY]
        table = efficiency_table(entries, max_rows=query.max_rows, sort_labels=days)
        return EfficiencyResult(window, table)

    async def idle_holders(
        self, fleet: Fleet, query: ReportQuery, most: int, now: int | None = None
    ) -> list[IdleHolder]:
        """Return who held most idle GPU time, by its cost: for a page, without the rows of all others."""
        window = window_of(fleet, query.window, now)
        sums: dict[tuple[str, ...], list[float]] = {}
        for each in await self._costs.priced(fleet, window.span, window.now):
            priced = each.over_days()
            view = UsageView(priced.spans, query.by, query.which)
            for row in await self._costs.gpu_use(priced, view, (MetricCode.ENGINE,)):
                if row.idle > 0:
                    pool, rates = priced.pools[row.supply.pool], priced.rates[row.supply.pool][row.span]
                    part = float(rates.part(pool, row.supply.slice)) / 3600
                    of_labels = sums.setdefault(row.labels, [0.0, 0.0, 0.0])
                    of_labels[0] += row.idle * part
                    of_labels[1] += row.use.measured * part
                    of_labels[2] += row.idle * float(rates.rate(pool, row.supply.slice))
        largest = sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][0], item[0]))[:most]
        return [IdleHolder(labels, *figures) for labels, figures in largest]

    async def waste(self, fleet: Fleet, query: ReportQuery, now: int | None = None) -> WasteResult:
        """Report unused capacity by reason; `query.by` has only labels of PLACE_LABELS."""
        window = window_of(fleet, query.window, now)
        return _waste_result(fleet, window, query, *await self._waste(fleet, window, query))

    async def waste_by_day(
        self, fleet: Fleet, query: ReportQuery, now: int | None = None
    ) -> tuple[WasteResult, WasteResult]:
        """Report unused capacity by the query's labels, and by day, from one read of the ledger."""
        window, finer = window_of(fleet, query.window, now), _finer(query, None)
        sums = await self._waste(fleet, window, finer)
        coarse, by_day = (
            _waste_result(fleet, window, each, *(_summed(by_path, each, finer) for by_path in sums))
            for each in (query, _daily(query, None))
        )
        return coarse, by_day

    async def _cost(self, fleet: Fleet, window: Window, query: ReportQuery) -> list[ReportEntry]:
        parts = await self._costs.priced(fleet, window.span, window.now)
        found: list[ReportEntry] = []
        for priced in parts:
            found += await self._costs.entries(priced, query.by, query.which)
        if query.per is not None:
            found += await work_entries(self._costs, parts, query.per, query.by, query.which)
        return found

    async def _usage(self, fleet: Fleet, window: Window, query: ReportQuery) -> list[ReportEntry]:
        found: list[ReportEntry] = []
        for priced in await self._costs.priced(fleet, window.span, window.now):
            usage = await self._costs.usage(priced, query.by, query.which)
            found += [priced.usage_entry(row, len(query.by)) for row in usage]
        return found

    async def _efficiency(
        self, priced: PricedWindow, by: tuple[Dimension, ...], which: UsageFilter
    ) -> list[EfficiencyEntry]:
        # What was measured is read first: what is added to it meanwhile was held already.
        measured = await self._measured(priced, by, which, tuple(MetricCode))
        sites = {cluster.name: cluster.energy for cluster in priced.fleet.clusters}
        usage = await self._costs.usage(priced, by, which)
        found = []
        for row in usage if Label.NAME not in by else _by_pattern(usage, by):
            pool, rates = priced.pools[row.supply.pool], priced.rates[row.supply.pool][row.span]
            part, rate = rates.part(pool, row.supply.slice), rates.rate(pool, row.supply.slice)
            one = measured.get((row.span, row.supply, row.labels))
            kinds = divided(row.device_seconds, one)
            site = sites[pool.cluster]
            found.append(
                EfficiencyEntry(
                    row.labels,
                    {kind: seconds * part for kind, seconds in kinds.items()},
                    {kind: seconds * rate for kind, seconds in kinds.items()},
                    GpuUse() if one is None else scaled(one.use, part),
                    Energy() if one is None else energy_of(one.use, site.pue, site.co2_grams_per_kwh),
                )
            )
        return found

    async def _measured(
        self, priced: PricedWindow, by: tuple[Dimension, ...], which: UsageFilter, codes: Sequence[MetricCode]
    ) -> dict[tuple[int, Supply, tuple[str, ...]], GpuUseSum]:
        rows = await self._costs.gpu_use(priced, UsageView(priced.spans, by, which), codes)
        if Label.NAME not in by:
            return {(row.span, row.supply, row.labels): row for row in rows}
        pattern = _LabelPatterns(by)
        same: dict[tuple[int, Supply, tuple[str, ...]], list[GpuUseSum]] = {}
        for row in rows:
            same.setdefault((row.span, row.supply, pattern(row.labels)), []).append(row)
        return {
            key: GpuUseSum(*key, merged(row.use for row in alike), sum(row.idle for row in alike))
            for key, alike in same.items()
        }

    async def _waste(
        self, fleet: Fleet, window: Window, query: ReportQuery
    ) -> tuple[_ByPath, _ByPath, _ByPath]:
        """Sum device-seconds and amounts by labels and then reason; and amounts of what was held, by kind.

        The seconds of what was held have two elements after the labels: `used`, and the kind.
        """
        pools = query.which.pools
        seconds: _ByPath = {}
        amounts: _ByPath = {}
        held: _ByPath = {}
        for priced in await self._costs.priced(fleet, window.span, window.now):
            # The usage of all users: capacity does not depend on who reads the report.
            which = UsageFilter(pools=pools)
            measured = await self._measured(priced, query.by, which, (MetricCode.ENGINE,))
            for row in await self._costs.usage(priced, query.by, which):
                one = measured.get((row.span, row.supply, row.labels))
                rate = priced.rates[row.supply.pool][row.span].rate(
                    priced.pools[row.supply.pool], row.supply.slice
                )
                for kind, part in divided(row.device_seconds, one).items():
                    _add(seconds, (*row.labels, _USED, kind.value), part)
                    _add(held, (*row.labels, kind.value), part * rate)
            for charge in await self._costs.unused(priced):
                if pools is None or charge.pool in pools:
                    path = (*own_labels(charge, query.by, priced.calendar), charge.kind.value)
                    _add(seconds, path, Fraction(charge.device_seconds))
                    _add(amounts, path, charge.amount)
        return seconds, amounts, held

    async def capacity(
        self, fleet: Fleet, query: ReportQuery, now: int | None = None
    ) -> tuple[Window, tuple[CapacityDay, ...]]:
        """Report the capacity by day and pool, used or not, as a provider would bill it: without overhead."""
        window = window_of(fleet, query.window, now)
        by = (Label.POOL, Label.DAY)
        costs: dict[tuple[str, ...], Fraction] = {}
        seconds: dict[tuple[str, ...], int] = {}
        for priced in await self._costs.priced(fleet, window.span, window.now):
            for row in priced.capacity:
                day = priced.calendar.day_of(row.start).isoformat()
                key = (day, row.supply.pool)
                seconds[key] = seconds.get(key, 0) + row.gpu_seconds
            for entry in await self._costs.entries(priced, by):
                if entry.kind is not ChargeKind.OVERHEAD:
                    pool, day = entry.labels
                    _add(costs, (day, pool), entry.amount)
        pools = query.which.pools
        found = [
            CapacityDay(
                date.fromisoformat(day),
                PoolName(pool),
                seconds.get((day, pool), 0),
                costs.get((day, pool), Fraction(0)),
            )
            for day, pool in sorted({*costs, *seconds})
            if pools is None or pool in pools
        ]
        return window, tuple(found)


class _LabelPatterns:
    """Replaces names of jobs in labels by their pattern: `train-12` by `train-*`."""

    def __init__(self, by: Sequence[Dimension]) -> None:
        self._names = [i for i, label in enumerate(by) if label is Label.NAME]
        self._patterns: dict[str, str] = {}

    def __call__(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        found = list(labels)
        for i in self._names:
            name = labels[i]
            if name not in self._patterns:
                self._patterns[name] = name_pattern(name)
            found[i] = self._patterns[name]
        return tuple(found)


def _by_pattern(usage: Iterable[UsageSum], by: Sequence[Dimension]) -> list[UsageSum]:
    """Sum the usage of names of one pattern: there is a sum for every job and hour before."""
    pattern = _LabelPatterns(by)
    sums: dict[tuple[int, Supply, tuple[str, ...]], int] = {}
    for row in usage:
        key = (row.span, row.supply, pattern(row.labels))
        sums[key] = sums.get(key, 0) + row.device_seconds
    return [UsageSum(*key, seconds) for key, seconds in sums.items()]


def window_of(fleet: Fleet, text: str, now: int | None = None) -> Window:
    """Parse a window in the fleet's time zone."""
    return parse_window(text, calendar_of(fleet), or_now(now))


def daily_labels(label: Dimension | None) -> tuple[Dimension, ...]:
    """Return the labels of a report by `label`, if any, and day."""
    return (Label.DAY,) if label is None else (label, Label.DAY)


def _daily(query: ReportQuery, label: Dimension | None) -> ReportQuery:
    return replace(query, by=daily_labels(label), max_rows=MAX_DAYS)


def _finer(query: ReportQuery, label: Dimension | None) -> ReportQuery:
    """Add a label and the day to the labels of a query."""
    return replace(query, by=tuple(dict.fromkeys((*query.by, *daily_labels(label)))))


def _both(
    fleet: Fleet,
    window: Window,
    query: ReportQuery,
    finer: ReportQuery,
    label: Dimension | None,
    found: Sequence[ReportEntry],
) -> tuple[ReportResult, ReportResult]:
    def coarser(each: ReportQuery) -> ReportResult:
        kept = [finer.by.index(label) for label in each.by]
        entries = [replace(entry, labels=tuple(entry.labels[i] for i in kept)) for entry in found]
        return ReportResult(window, _table(fleet, each, entries))

    return coarser(query), coarser(_daily(query, label))


def _summed(by_path: _ByPath, query: ReportQuery, finer: ReportQuery) -> _ByPath:
    """Sum over the labels of `finer` that `query` does not have; what follows the labels stays last."""
    kept = [finer.by.index(label) for label in query.by]
    sums: _ByPath = {}
    for path, value in by_path.items():
        _add(sums, (*(path[i] for i in kept), *path[len(finer.by) :]), value)
    return sums


def _waste_result(
    fleet: Fleet, window: Window, query: ReportQuery, seconds: _ByPath, amounts: _ByPath, held: _ByPath
) -> WasteResult:
    rows = _waste_rows(len(query.by), seconds, amounts, held)
    count = len(query.by)
    whole = _waste_rows(0, *(_without_labels(sums, count) for sums in (seconds, amounts, held)))
    days = [i for i, label in enumerate(query.by) if label is Label.DAY]
    ranked = sorted(rows, key=lambda r: (-r.amount, r.labels))
    first = sorted(ranked[: query.max_rows], key=lambda r: ([r.labels[i] for i in days], -r.amount, r.labels))
    if rest := ranked[query.max_rows :]:
        first.append(replace(_waste_sum(rest), labels=("",) * len(query.by), others=len(rest)))
    return WasteResult(window, tuple(first), _waste_sum(whole))


def _without_labels(sums: _ByPath, count: int) -> _ByPath:
    found: _ByPath = {}
    for path, value in sums.items():
        _add(found, path[count:], value)
    return found


def _table(fleet: Fleet, query: ReportQuery, found: Iterable[ReportEntry]) -> ReportTable:
    days = [i for i, label in enumerate(query.by) if label is Label.DAY]
    return table(found, max_rows=query.max_rows, sort_labels=days)


def _waste_rows(count: int, seconds: _ByPath, amounts: _ByPath, held: _ByPath) -> list[WasteRow]:
    """Build rows of sums whose paths begin with `count` labels; without labels, the one of the total."""
    paths = sorted({*seconds, *amounts})
    rows = []
    for labels in dict.fromkeys(path[:count] for path in paths):
        held_kinds = [k for k in HeldKind if (*labels, k.value) in held]
        held_hours = {k: hours(seconds[*labels, _USED, k.value]) for k in held_kinds}
        kinds = [k for k in UNUSED_KINDS if (*labels, k.value) in seconds or (*labels, k.value) in amounts]
        rows.append(
            WasteRow(
                labels,
                sum(held_hours.values(), Decimal(0)),
                {k: hours(seconds.get((*labels, k.value), Fraction(0))) for k in kinds},
                {k: millionths(amounts.get((*labels, k.value), Fraction(0))) for k in kinds},
                held_hours,
                {k: millionths(held[*labels, k.value]) for k in held_kinds},
            )
        )
    return rows


def _waste_sum(rows: Sequence[WasteRow]) -> WasteRow:
    zero = Decimal(0)
    return WasteRow(
        (),
        sum((r.used_hours for r in rows), zero),
        {k: sum((r.hours.get(k, zero) for r in rows), zero) for k in UNUSED_KINDS},
        {k: sum((r.amounts.get(k, zero) for r in rows), zero) for k in UNUSED_KINDS},
        {k: sum((r.held_hours.get(k, zero) for r in rows), zero) for k in HeldKind},
        {k: sum((r.held_amounts.get(k, zero) for r in rows), zero) for k in HeldKind},
    )


def _add(sums: dict[tuple[str, ...], Fraction], path: tuple[str, ...], value: Fraction) -> None:
    sums[path] = sums.get(path, Fraction(0)) + value
