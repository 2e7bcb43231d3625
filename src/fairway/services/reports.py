"""Reports: what somebody asked, answered in rows that sum to what is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from fairway.cost.calendar import Window, parse_window
from fairway.cost.report import ReportEntry, ReportTable, hours, table
from fairway.cost.rounding import apportion_paths
from fairway.ledger import UsageFilter
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Label
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.price import cent
from fairway.services.charges import EVERYBODY, Costs, calendar_of, own_labels, second

PLACES: Final = (Label.POOL, Label.CLUSTER, Label.SLICE, Label.DAY)
"""What can be said of devices nobody used."""
_USED: Final = "used"
MOST_DAYS: Final = 20_000
"""Rows of an answer by day: ten years of days, of a few names each."""

_ByPath: TypeAlias = dict[tuple[str, ...], Fraction]


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """What a report is asked."""

    window: str
    by: tuple[Label, ...]
    which: UsageFilter = EVERYBODY
    most: int = 1000
    """Rows; what is beyond is summed up in one."""


@dataclass(frozen=True, slots=True)
class ReportResult:
    """A report with the time it is about."""

    window: Window
    table: ReportTable
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WasteRow:
    """What became of the devices of one place."""

    labels: tuple[str, ...]
    used_hours: Decimal
    hours: Mapping[ChargeKind, Decimal]
    amounts: Mapping[ChargeKind, Decimal]

    @property
    def capacity_hours(self) -> Decimal:
        """Committed GPUs that were not there are no capacity."""
        there = (hours for kind, hours in self.hours.items() if kind is not ChargeKind.COMMITMENT)
        return sum(there, self.used_hours)

    @property
    def amount(self) -> Decimal:
        return sum(self.amounts.values(), Decimal(0))


@dataclass(frozen=True, slots=True)
class WasteResult:
    """What nobody used, with the time it is about."""

    window: Window
    rows: tuple[WasteRow, ...]
    total: WasteRow


@dataclass(frozen=True, slots=True)
class CapacityDay:
    """What one pool's capacity was, and cost, on one day, whoever used it."""

    day: date
    pool: PoolName
    gpu_seconds: int
    cost: Fraction


class CostReports:
    """Answers questions about one fleet's money."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    async def cost(self, fleet: Fleet, question: ReportQuestion, now: int | None = None) -> ReportResult:
        """What it cost, with shares of what nobody used and of overhead."""
        window = window_of(fleet, question.window, now)
        return ReportResult(window, _table(fleet, question, await self._cost(fleet, window, question)))

    async def usage(self, fleet: Fleet, question: ReportQuestion, now: int | None = None) -> ReportResult:
        """What was held, without money."""
        window = window_of(fleet, question.window, now)
        return ReportResult(window, _table(fleet, question, await self._usage(fleet, window, question)))

    async def cost_by_day(
        self, fleet: Fleet, question: ReportQuestion, label: Label | None, now: int | None = None
    ) -> tuple[ReportResult, ReportResult]:
        """The same, and by a label and day; both from one look. For labels that have few names."""
        window, finer = window_of(fleet, question.window, now), _finer(question, label)
        return _both(fleet, window, question, finer, label, await self._cost(fleet, window, finer))

    async def usage_by_day(
        self, fleet: Fleet, question: ReportQuestion, label: Label | None, now: int | None = None
    ) -> tuple[ReportResult, ReportResult]:
        """As `cost_by_day`, without money."""
        window, finer = window_of(fleet, question.window, now), _finer(question, label)
        return _both(fleet, window, question, finer, label, await self._usage(fleet, window, finer))

    async def waste(self, fleet: Fleet, question: ReportQuestion, now: int | None = None) -> WasteResult:
        """What nobody used, by why; `question.by` only of PLACES."""
        window = window_of(fleet, question.window, now)
        return _waste_answer(fleet, window, question, *await self._waste(fleet, window, question))

    async def waste_by_day(
        self, fleet: Fleet, question: ReportQuestion, now: int | None = None
    ) -> tuple[WasteResult, WasteResult]:
        """The same, and by day; both from one look."""
        window, finer = window_of(fleet, question.window, now), _finer(question, None)
        seconds, amounts = await self._waste(fleet, window, finer)
        daily = replace(question, by=(Label.DAY,), most=MOST_DAYS)
        told = [
            _waste_answer(
                fleet, window, each, _of_places(seconds, each, finer), _of_places(amounts, each, finer)
            )
            for each in (question, daily)
        ]
        return told[0], told[1]

    async def _cost(self, fleet: Fleet, window: Window, question: ReportQuestion) -> list[ReportEntry]:
        found: list[ReportEntry] = []
        for priced in await self._costs.priced(fleet, window.span, window.now):
            found += await self._costs.entries(priced, question.by, question.which)
        return found

    async def _usage(self, fleet: Fleet, window: Window, question: ReportQuestion) -> list[ReportEntry]:
        found: list[ReportEntry] = []
        for priced in await self._costs.priced(fleet, window.span, window.now):
            usage = await self._costs.usage(priced, question.by, question.which)
            found += [priced.held(row, len(question.by)) for row in usage]
        return found

    async def _waste(self, fleet: Fleet, window: Window, question: ReportQuestion) -> tuple[_ByPath, _ByPath]:
        """Device-seconds and amounts, by labels and then why."""
        pools = question.which.pools
        seconds: _ByPath = {}
        amounts: _ByPath = {}
        for priced in await self._costs.priced(fleet, window.span, window.now):
            # Used by anybody: whoever asks, what was there is the same.
            for row in await self._costs.usage(priced, question.by, UsageFilter(pools=pools)):
                _add(seconds, (*row.labels, _USED), Fraction(row.device_seconds))
            for charge in await self._costs.unused(priced):
                if pools is None or charge.pool in pools:
                    path = (*own_labels(charge, question.by, priced.calendar), charge.kind.value)
                    _add(seconds, path, Fraction(charge.device_seconds))
                    _add(amounts, path, charge.amount)
        return seconds, amounts

    async def capacity(
        self, fleet: Fleet, question: ReportQuestion, now: int | None = None
    ) -> tuple[Window, tuple[CapacityDay, ...]]:
        """What a provider would bill: all that was there, by day and pool; no overhead."""
        window = window_of(fleet, question.window, now)
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
        pools = question.which.pools
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


def window_of(fleet: Fleet, text: str, now: int | None = None) -> Window:
    """The time a text means for a fleet."""
    return parse_window(text, calendar_of(fleet), second(now))


def _finer(question: ReportQuestion, label: Label | None) -> ReportQuestion:
    """Also told apart by a label, and by day."""
    more = (Label.DAY,) if label is None else (label, Label.DAY)
    return replace(question, by=tuple(dict.fromkeys((*question.by, *more))))


def _both(
    fleet: Fleet,
    window: Window,
    question: ReportQuestion,
    finer: ReportQuestion,
    label: Label | None,
    found: Sequence[ReportEntry],
) -> tuple[ReportResult, ReportResult]:
    daily = replace(question, by=(Label.DAY,) if label is None else (label, Label.DAY), most=MOST_DAYS)
    places = [[finer.by.index(label) for label in each.by] for each in (question, daily)]
    coarse, by_day = (
        [replace(entry, labels=tuple(entry.labels[i] for i in where)) for entry in found] for where in places
    )
    return ReportResult(window, _table(fleet, question, coarse)), ReportResult(
        window, _table(fleet, daily, by_day)
    )


def _of_places(found: _ByPath, question: ReportQuestion, finer: ReportQuestion) -> _ByPath:
    """Summed over what the question does not tell apart; why stays last."""
    where = [*(finer.by.index(label) for label in question.by), -1]
    sums: _ByPath = {}
    for path, value in found.items():
        _add(sums, tuple(path[i] for i in where), value)
    return sums


def _waste_answer(
    fleet: Fleet, window: Window, question: ReportQuestion, seconds: _ByPath, amounts: _ByPath
) -> WasteResult:
    rows = _waste_rows(seconds, amounts, cent(fleet.currency))
    total = _waste_total(rows)
    in_order = [i for i, label in enumerate(question.by) if label is Label.DAY]
    shown = sorted(rows, key=lambda r: ([r.labels[i] for i in in_order], -r.amount, r.labels))
    return WasteResult(window, tuple(shown[: question.most]), total)


def _table(fleet: Fleet, question: ReportQuestion, found: Iterable[ReportEntry]) -> ReportTable:
    days = [i for i, label in enumerate(question.by) if label is Label.DAY]
    return table(found, cent(fleet.currency), most=question.most, in_order=days)


def _waste_rows(
    seconds: Mapping[tuple[str, ...], Fraction], amounts: Mapping[tuple[str, ...], Fraction], quantum: Decimal
) -> list[WasteRow]:
    paths = sorted({*seconds, *amounts})
    told_hours = hours({path: seconds.get(path, Fraction(0)) for path in paths})
    told = apportion_paths({path: amounts.get(path, Fraction(0)) for path in paths}, quantum)
    rows = []
    for labels in dict.fromkeys(path[:-1] for path in paths):
        used = told_hours.get((*labels, _USED), Decimal(0))
        kinds = [k for k in UNUSED_KINDS if (*labels, k.value) in told]
        rows.append(
            WasteRow(
                labels,
                used,
                {k: told_hours[*labels, k.value] for k in kinds},
                {k: told[*labels, k.value] for k in kinds},
            )
        )
    return rows


def _waste_total(rows: Sequence[WasteRow]) -> WasteRow:
    zero = Decimal(0)
    return WasteRow(
        (),
        sum((r.used_hours for r in rows), zero),
        {k: sum((r.hours.get(k, zero) for r in rows), zero) for k in UNUSED_KINDS},
        {k: sum((r.amounts.get(k, zero) for r in rows), zero) for k in UNUSED_KINDS},
    )


def _add(sums: dict[tuple[str, ...], Fraction], path: tuple[str, ...], value: Fraction) -> None:
    sums[path] = sums.get(path, Fraction(0)) + value
