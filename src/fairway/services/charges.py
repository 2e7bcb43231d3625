"""Compute charges: read the usage and capacity of a window from the ledger, price them, cache windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import Calendar, calendar_of
from fairway.cost.charges import charges, unused, usage_charges
from fairway.cost.rates import RateSpan, hourly_pools, over_days, rate_spans
from fairway.cost.report import ReportEntry
from fairway.ledger import Ledger, UsageFilter, UsageView
from fairway.model.charge import CapacitySum, Charge, ChargeKind, Label, Span, UsageSum
from fairway.model.fleet import Fleet, Pool
from fairway.model.gpu_use import GpuUseSum, MetricCode
from fairway.model.names import PoolName, TeamName
from fairway.model.price import PricePoint, Sharing
from fairway.model.team import TeamTree
from fairway.services.fleets import FleetHistory

EVERYBODY: Final = UsageFilter()

_FROM_SPANS: Final = frozenset({Label.POOL, Label.SLICE, Label.DAY})
"""Labels that follow from the span and supply of a sum."""

NOBODY: Final = ""
"""The label of separate lines that nobody pays, and of jobs without a team."""

CACHE_SECONDS: Final = 20
"""How long `CachedCosts` caches a window."""
MAX_CACHED: Final = 24


@dataclass(frozen=True, slots=True)
class PricedWindow:
    """The capacity of a window and its rates, with which usage can be priced."""

    fleet: Fleet
    calendar: Calendar
    span: Span
    until: int
    """The time up to which running jobs count."""
    capacity: tuple[CapacitySum, ...]
    rates: Mapping[PoolName, tuple[RateSpan, ...]]
    pools: Mapping[PoolName, Pool]

    @property
    def spans(self) -> dict[PoolName, tuple[Span, ...]]:
        """Return the spans over which usage must be summed."""
        return {pool: tuple(r.span for r in rates) for pool, rates in self.rates.items()}

    def over_days(self) -> PricedWindow:
        """Merge spans across days, which suffices to price usage: there are far fewer spans to sum over."""
        return replace(self, rates={pool: over_days(spans) for pool, spans in self.rates.items()})

    def labelled(self, usage: Iterable[UsageSum], by: Sequence[Label]) -> tuple[UsageSum, ...]:
        """Set the labels of usage from its spans and supplies; `by` has only labels of `_FROM_SPANS`."""
        return tuple(replace(row, labels=tuple(self._label(row, label) for label in by)) for row in usage)

    def _label(self, row: UsageSum, label: Label) -> str:
        match label:
            case Label.POOL:
                return row.supply.pool
            case Label.SLICE:
                return row.supply.slice or ""
            case _:
                return self.calendar.day_of(self.rates[row.supply.pool][row.span].span.start).isoformat()

    def usage_entry(self, row: UsageSum, labels: int) -> ReportEntry:
        """Convert usage to a report entry without an amount, with the first `labels` labels.

        Slices count as the part of a GPU that they were when they were used.
        """
        pool = self.pools[row.supply.pool]
        part = self.rates[pool.name][row.span].part(pool, row.supply.slice)
        return ReportEntry(
            labels=row.labels[:labels],
            kind=ChargeKind.USAGE,
            carried=True,
            amount=Fraction(0),
            gpu_seconds=part * row.device_seconds,
            device_seconds=row.device_seconds,
            slice_seconds=row.device_seconds if row.supply.slice is not None else 0,
        )


@dataclass(frozen=True, slots=True)
class ChargedWindow:
    """The charges of a window, and the usage among them."""

    charges: tuple[Charge, ...]
    usage: tuple[UsageSum, ...]
    priced: PricedWindow
    """The window over whose spans the usage was summed."""


class Costs:
    """Computes the exact charges of any window. Stateless: any number of them may share one ledger."""

    def __init__(self, ledger: Ledger, history: FleetHistory | None = None) -> None:
        """Without a history, the fleet passed to a method is assumed to have been in force always."""
        self._ledger = ledger
        self._history = history

    async def spent(self, fleet: Fleet, team: TeamName, period: Span, now: int | None = None) -> Fraction:
        """Return the charges of a team and its descendants in a period up to now, with running jobs."""
        amounts = await self.by_team(fleet, period, now)
        tree = TeamTree(fleet.teams)
        return sum((amounts.get(t.name, Fraction(0)) for t in tree.subtree(tree[team])), Fraction(0))

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        """Return the charges of each team without its descendants; one read for any number of budgets."""
        found: dict[TeamName, Fraction] = {}
        for charge in await self.charges(fleet, period, (Label.TEAM,), now=now):
            if charge.labels is not None:
                team = TeamName(charge.labels[0])
                found[team] = found.get(team, Fraction(0)) + charge.amount
        return found

    async def charges(
        self,
        fleet: Fleet,
        period: Span,
        by: Sequence[Label],
        which: UsageFilter = EVERYBODY,
        now: int | None = None,
    ) -> tuple[Charge, ...]:
        """Return every charge of a period up to now, or with a filter only those that match it."""
        found: list[Charge] = []
        for priced in await self.priced(fleet, period, now):
            found += (await self._charged(priced, by, which)).charges
        return tuple(found)

    async def entries(
        self, priced: PricedWindow, by: Sequence[Label], which: UsageFilter = EVERYBODY
    ) -> list[ReportEntry]:
        """Return charges and usage as entries of a report."""
        charged = await self._charged(priced, by, which)
        found = [_entry(charge, by, priced.calendar) for charge in charged.charges]
        return [*found, *(charged.priced.usage_entry(row, len(by)) for row in charged.usage)]

    async def unused(self, priced: PricedWindow) -> tuple[Charge, ...]:
        """Return unused capacity by day and supply, regardless of who pays for it."""
        usage = await self.everyone(priced)
        return unused(priced.fleet, priced.calendar, priced.span, priced.capacity, priced.rates, usage)

    async def usage(
        self, priced: PricedWindow, by: Sequence[Label], which: UsageFilter = EVERYBODY
    ) -> tuple[UsageSum, ...]:
        """Return the device-seconds in each span of the rates."""
        if which == EVERYBODY and _FROM_SPANS.issuperset(by):
            return priced.labelled(await self.everyone(priced), by)
        return (await self._views(priced, UsageView(priced.spans, tuple(by), which)))[0]

    async def gpu_use(
        self, priced: PricedWindow, view: UsageView, codes: Sequence[MetricCode]
    ) -> tuple[GpuUseSum, ...]:
        """Return what GPUs did in each span of the view, by its labels."""
        return await self._ledger.gpu_use_totals.sums(view, codes, local=priced.calendar)

    async def everyone(self, priced: PricedWindow) -> tuple[UsageSum, ...]:
        """Return all usage in each span of the rates, without labels."""
        return (await self._views(priced, UsageView(priced.spans)))[0]

    async def _views(self, priced: PricedWindow, *views: UsageView) -> tuple[tuple[UsageSum, ...], ...]:
        return await self._ledger.usage.views(views, priced.until, local=priced.calendar)

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[PricedWindow, ...]:
        """Price the capacity of a period: one window for each fleet that was in force in it.

        There is no data of the future: a period that has not ended is cut at the end of the current hour.
        """
        calendar = calendar_of(fleet)
        now = or_now(now)
        end = min(period.end, calendar.next_hour(now))
        if period.start >= end:
            return ()
        past = Span(period.start, end)
        parts = ((past, fleet),) if self._history is None else await self._history.fleets(fleet, past)
        return tuple([await self._priced(then, calendar, span, now) for span, then in parts])

    async def _priced(self, fleet: Fleet, calendar: Calendar, span: Span, now: int) -> PricedWindow:
        until = min(now, span.end)
        points = await self._ledger.prices.points([p.name for p in fleet.pools], span)
        capacity = await self._capacity(fleet, calendar, span, until, points)
        rates = rate_spans(fleet, calendar, span, capacity, points, until=until)
        return PricedWindow(fleet, calendar, span, until, capacity, rates, {p.name: p for p in fleet.pools})

    async def _charged(self, priced: PricedWindow, by: Sequence[Label], which: UsageFilter) -> ChargedWindow:
        fleet = priced.fleet
        days_matter = Label.DAY in by or Sharing.BY_USAGE in (fleet.cost.idle, fleet.cost.overhead)
        if _of_people(which) and _own_lines_only(fleet):
            # Nothing is shared: the usage of others makes no difference.
            merged = priced if days_matter else priced.over_days()
            usage = await self.usage(merged, by, which)
            made = usage_charges(fleet, merged.calendar, merged.span, merged.rates, usage, by)
            return ChargedWindow(made, usage, merged)
        if which == EVERYBODY and (days_matter or _FROM_SPANS.issuperset(by)):
            usage = await self.usage(priced, by)
            return ChargedWindow(_all_charges(priced, usage, by), usage, priced)
        labels = (*by, *(label for label in _filtered_by(which) if label not in by))
        merged = priced if days_matter else priced.over_days()
        usage, everyone = await self._with_everyone(priced, UsageView(merged.spans, labels, which))
        if days_matter:
            made = _all_charges(priced, usage, labels, everyone)
        else:
            # Shares do not depend on who used what: usage is charged over days, the rest by day.
            made = (
                *usage_charges(fleet, merged.calendar, merged.span, merged.rates, usage, labels),
                *_all_charges(priced, (), labels, everyone),
            )
        if which != EVERYBODY:
            made = tuple(_filtered(made, labels, which, len(by)))
        return ChargedWindow(made, usage, merged)

    async def _with_everyone(
        self, priced: PricedWindow, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        """Read some usage and all usage in one snapshot: rows metered in between would count twice."""
        usage, everyone = await self._views(priced, view, UsageView(priced.spans))
        return usage, everyone

    async def _capacity(
        self,
        fleet: Fleet,
        calendar: Calendar,
        span: Span,
        until: int,
        points: Mapping[PoolName, Sequence[PricePoint]],
    ) -> tuple[CapacitySum, ...]:
        """Read capacity by hour for pools whose rates change within a day, otherwise by day."""
        hourly = hourly_pools(fleet, points)
        by_hour = {p.cluster for p in fleet.pools if p.name in hourly}
        by_day = {p.cluster for p in fleet.pools if p.name not in hourly}
        found: list[CapacitySum] = []
        for days, clusters in ((False, by_hour), (True, by_day)):
            if clusters:
                rows = await self._ledger.capacity.sums(
                    span, local=calendar, by_day=days, clusters=clusters, live_until=until
                )
                found += [r for r in rows if (r.supply.pool in hourly) is not days]
        return tuple(found)


def _all_charges(
    priced: PricedWindow,
    usage: Sequence[UsageSum],
    labels: Sequence[Label],
    everyone: Sequence[UsageSum] | None = None,
) -> tuple[Charge, ...]:
    return charges(
        priced.fleet,
        priced.calendar,
        priced.span,
        priced.capacity,
        priced.rates,
        usage,
        labels,
        everyone=everyone,
    )


def or_now(at: int | None) -> int:
    """Return `at`, or the current time in seconds if it is None."""
    return int(time.time()) if at is None else at


def own_labels(charge: Charge, by: Sequence[Label], calendar: Calendar) -> tuple[str, ...]:
    """Return the labels of a charge that nobody pays: its pool, slice, cluster and day."""
    return tuple(_own_label(charge, label, calendar) for label in by)


def _entry(charge: Charge, by: Sequence[Label], calendar: Calendar) -> ReportEntry:
    labels = charge.labels if charge.labels is not None else own_labels(charge, by, calendar)
    return ReportEntry(labels, charge.kind, charge.labels is not None, charge.amount)


def _own_label(charge: Charge, label: Label, calendar: Calendar) -> str:
    match label:
        case Label.POOL:
            return charge.pool
        case Label.SLICE:
            return (charge.supply.slice or "") if charge.supply else ""
        case Label.CLUSTER:
            return charge.cluster
        case Label.DAY:
            return calendar.day_of(charge.span.start).isoformat()
        case _:
            return NOBODY


def _of_people(which: UsageFilter) -> bool:
    """Return whether the filter selects teams or users, who do not pay separate lines."""
    return which.teams is not None or which.users is not None


def _own_lines_only(fleet: Fleet) -> bool:
    return fleet.cost.idle is Sharing.OWN_LINE and fleet.cost.overhead is Sharing.OWN_LINE


def _filtered_by(which: UsageFilter) -> list[Label]:
    """Return the labels that charges must have so that the filter can be applied to shares."""
    filters = ((Label.TEAM, which.teams), (Label.USER, which.users))
    return [label for label, names in filters if names is not None]


def _filtered(
    made: Iterable[Charge], labels: Sequence[Label], which: UsageFilter, keep: int
) -> Iterable[Charge]:
    """Yield the charges that match the filter, with the first `keep` labels."""
    filters = {Label.TEAM: which.teams, Label.USER: which.users}
    checks = [(i, names) for i, label in enumerate(labels) if (names := filters.get(label)) is not None]
    for charge in made:
        if which.pools is not None and charge.pool not in which.pools:
            continue
        if charge.labels is None:
            if not _of_people(which):
                yield charge
        elif all(charge.labels[i] in names for i, names in checks):
            yield replace(charge, labels=charge.labels[:keep])


class CachedCosts(Costs):
    """Costs that cache windows with their capacity and rates for some seconds.

    The usage and charges of teams and users are read each time. The total usage of each pool is cached as
    long as its window.
    """

    def __init__(
        self,
        ledger: Ledger,
        history: FleetHistory | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, history)
        self._clock = clock
        self._windows: dict[Span, tuple[float, int, Fleet, tuple[PricedWindow, ...]]] = {}
        self._everyone: dict[int, tuple[PricedWindow, tuple[UsageSum, ...]]] = {}

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[PricedWindow, ...]:
        """Return windows of a few seconds ago at most; running jobs count up to then."""
        now = or_now(now)
        if (cached := self._windows.get(period)) is not None:
            cached_at, cached_now, cached_fleet, parts = cached
            fresh = self._clock() - cached_at < CACHE_SECONDS and 0 <= now - cached_now < CACHE_SECONDS
            # Each revision is parsed once: another revision is another object.
            if cached_fleet is fleet and fresh:
                return parts
        parts = await super().priced(fleet, period, now)
        while len(self._windows) >= MAX_CACHED:
            self._windows.pop(next(iter(self._windows)))
        self._windows[period] = (self._clock(), now, fleet, parts)
        return parts

    async def everyone(self, priced: PricedWindow) -> tuple[UsageSum, ...]:
        """Return all usage as it was first read for this window."""
        cached = self._everyone.get(id(priced))
        if cached is not None and cached[0] is priced:
            return cached[1]
        return self._cache(priced, await super().everyone(priced))

    async def _with_everyone(
        self, priced: PricedWindow, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        usage, everyone = await super()._with_everyone(priced, view)
        return usage, self._cache(priced, everyone)

    def _cache(self, priced: PricedWindow, usage: tuple[UsageSum, ...]) -> tuple[UsageSum, ...]:
        while len(self._everyone) >= MAX_CACHED:
            self._everyone.pop(next(iter(self._everyone)))
        self._everyone[id(priced)] = priced, usage  # the window is kept alive, so its id stays unique
        return usage
