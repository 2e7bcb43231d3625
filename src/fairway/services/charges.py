"""Compute charges: read the usage and capacity of a window from the ledger, price them, cache windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from typing import Final, TypeVar

from fairway.cost.calendar import Calendar, calendar_of
from fairway.cost.charges import charges, unused, usage_charges
from fairway.cost.fleet_history import FleetSpan, TeamPath, always
from fairway.cost.rates import RateSpan, hourly_pools, over_days, rate_spans
from fairway.cost.report import ReportEntry
from fairway.ledger import Ledger, UnitSum, UsageFilter, UsageView
from fairway.model.charge import CapacitySum, Charge, ChargeKind, Dimension, Label, Span, UsageSum
from fairway.model.fleet import Fleet, NamedBudget, Pool
from fairway.model.gpu_use import GpuUseSum, MetricCode
from fairway.model.names import PoolName, TeamName
from fairway.model.price import PricePoint, Sharing
from fairway.model.team import Supply
from fairway.services.fleet_history import FleetHistory

EVERYBODY: Final = UsageFilter()

_FROM_SPANS: Final = frozenset({Label.POOL, Label.SLICE, Label.DAY})
"""Labels that follow from the span and supply of a sum."""

NOBODY: Final = ""
"""The label of separate lines that nobody pays, and of jobs without a team."""

CACHE_SECONDS: Final = 20
"""How long `CachedCosts` caches a window."""
MAX_CACHED: Final = 24


_Labelled = TypeVar("_Labelled", UsageSum, GpuUseSum, UnitSum)


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
    held: FleetSpan
    """The fleet in force, with the names and paths of teams."""

    def teams_in(self, teams: Iterable[str]) -> frozenset[str]:
        """Return the names in the ledger of teams and of all that were inside them then."""
        roots = frozenset(teams)
        inside = {name for name, path in self.held.paths.items() if not roots.isdisjoint(path)}
        return frozenset(inside | (roots - self.held.paths.keys()))

    def current_teams(self, teams: Iterable[str]) -> frozenset[str]:
        """Return the current names of teams and of all that were inside them then."""
        return frozenset((self.held.path(name) or (name,))[-1] for name in self.teams_in(teams))

    def stored(self, which: UsageFilter) -> UsageFilter:
        """Return a filter by teams with the names that the ledger has of those inside them."""
        return which if which.teams is None else replace(which, teams=self.teams_in(which.teams))

    def current(self, rows: Sequence[_Labelled], by: Sequence[Dimension]) -> Iterator[_Labelled]:
        """Replace names of teams in rows from the ledger by those that they have now."""
        places = [n for n, label in enumerate(by) if label is Label.TEAM]
        names = {raw: path[-1] for raw, path in self.held.paths.items() if raw != path[-1]} if places else {}
        for row in rows:
            if names and any(row.labels[n] in names for n in places):
                labels = list(row.labels)
                for n in places:
                    labels[n] = names.get(labels[n], labels[n])
                yield replace(row, labels=tuple(labels))
            else:
                yield row

    @property
    def spans(self) -> dict[PoolName, tuple[Span, ...]]:
        """Return the spans over which usage must be summed."""
        return {pool: tuple(r.span for r in rates) for pool, rates in self.rates.items()}

    def over_days(self) -> PricedWindow:
        """Merge spans across days, which suffices to price usage: there are far fewer spans to sum over."""
        return replace(self, rates={pool: over_days(spans) for pool, spans in self.rates.items()})

    def labelled(self, usage: Iterable[UsageSum], by: Sequence[Dimension]) -> tuple[UsageSum, ...]:
        """Set the labels of usage from its spans and supplies; `by` has only labels of `_FROM_SPANS`."""
        return tuple(replace(row, labels=tuple(self._label(row, label) for label in by)) for row in usage)

    def _label(self, row: UsageSum, label: Dimension) -> str:
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

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None, which: UsageFilter = EVERYBODY
    ) -> Mapping[TeamName, Fraction]:
        """Return the charges of each team with those inside it when they were charged."""
        found: dict[TeamName, Fraction] = {}
        for path, charge in await self.by_path(fleet, period, now, which):
            for team in path:
                found[team] = found.get(team, Fraction(0)) + charge.amount
        return found

    async def by_path(
        self, fleet: Fleet, period: Span, now: int | None = None, which: UsageFilter = EVERYBODY
    ) -> list[tuple[TeamPath, Charge]]:
        """Return every charge of a period by team, with the path that the team had when it was charged.

        Everything that says what a team spent follows from this: budgets, statements and exports.
        """
        found: list[tuple[TeamPath, Charge]] = []
        for priced in await self.priced(fleet, period, now):
            paths = priced.held.current_paths
            for charge in (await self._charged(priced, (Label.TEAM,), which)).charges:
                team = TeamName(charge.labels[0]) if charge.labels else TeamName("")
                found.append((paths.get(team) or priced.held.path(team), charge))
        return found

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Mapping[date, Fraction]]:
        """Return what each budget counts of a period, by day: with the teams and pools that were there then.

        A budget without a team or project counts everything, what no team pays included.
        """
        found: dict[str, dict[date, Fraction]] = {named.name: {} for named in budgets}
        by_label = {
            label: [named for named in budgets if (named.project is not None) is (label is Label.PROJECT)]
            for label in (Label.TEAM, Label.PROJECT)
        }
        for priced in await self.priced(fleet, period, now):
            paths = {path[-1]: path for path in priced.held.paths.values()}
            for label, counting in by_label.items():
                if not counting:
                    continue
                for charge in (await self._charged(priced, (label, Label.DAY), EVERYBODY)).charges:
                    who = charge.labels[0] if charge.labels else None
                    path = () if who is None else paths.get(TeamName(who)) or (TeamName(who),)
                    pool = None if charge.supply is None else priced.pools[charge.supply.pool]
                    day = priced.calendar.day_of(charge.span.start)
                    for named in counting:
                        if counts(named, who, path, pool):
                            days = found[named.name]
                            days[day] = days.get(day, Fraction(0)) + charge.amount
        return found

    async def charges(
        self,
        fleet: Fleet,
        period: Span,
        by: Sequence[Dimension],
        which: UsageFilter = EVERYBODY,
        now: int | None = None,
    ) -> tuple[Charge, ...]:
        """Return every charge of a period up to now, or with a filter only those that match it."""
        found: list[Charge] = []
        for priced in await self.priced(fleet, period, now):
            found += (await self._charged(priced, by, which)).charges
        return tuple(found)

    async def itemised(
        self, fleet: Fleet, period: Span, by: Sequence[Dimension], now: int | None = None
    ) -> list[tuple[FleetSpan, tuple[Charge, ...]]]:
        """Return charges split by commitment, with quantities, by the fleet in force; `by` has DAY."""
        found = []
        for priced in await self.priced(fleet, period, now):
            usage = await self.usage(priced, by)
            found.append((priced.held, _all_charges(priced, usage, by, itemised=True)))
        return found

    async def entries(
        self, priced: PricedWindow, by: Sequence[Dimension], which: UsageFilter = EVERYBODY
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
        self, priced: PricedWindow, by: Sequence[Dimension], which: UsageFilter = EVERYBODY
    ) -> tuple[UsageSum, ...]:
        """Return the device-seconds in each span of the rates."""
        if which == EVERYBODY and _FROM_SPANS.issuperset(by):
            return priced.labelled(await self.everyone(priced), by)
        return (await self._views(priced, UsageView(priced.spans, tuple(by), which)))[0]

    async def gpu_use(
        self, priced: PricedWindow, view: UsageView, codes: Sequence[MetricCode]
    ) -> tuple[GpuUseSum, ...]:
        """Return what GPUs did in each span of the view, by its labels."""
        stored = replace(view, which=priced.stored(view.which))
        rows = await self._ledger.gpu_use_totals.sums(stored, codes, local=priced.calendar)
        found: dict[tuple[int, Supply, tuple[str, ...]], GpuUseSum] = {}
        for row in priced.current(rows, view.by):  # two names may be one team's
            key = (row.span, row.supply, row.labels)
            found[key] = found[key].plus(row) if key in found else row
        return tuple(found.values())

    async def units(
        self,
        priced: PricedWindow,
        days: tuple[date, date],
        unit: str,
        by: Sequence[Dimension],
        which: UsageFilter = EVERYBODY,
    ) -> tuple[UnitSum, ...]:
        """Return the units of work that jobs reported from the first to the last of two days."""
        rows = await self._ledger.units.sums(unit, days, by, priced.stored(which))
        return tuple(priced.current(rows, by))

    async def everyone(self, priced: PricedWindow) -> tuple[UsageSum, ...]:
        """Return all usage in each span of the rates, without labels."""
        return (await self._views(priced, UsageView(priced.spans)))[0]

    async def _views(self, priced: PricedWindow, *views: UsageView) -> tuple[tuple[UsageSum, ...], ...]:
        stored = [replace(view, which=priced.stored(view.which)) for view in views]
        found = await self._ledger.usage.views(stored, priced.until, local=priced.calendar)
        return tuple(tuple(priced.current(rows, view.by)) for rows, view in zip(found, views, strict=True))

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[PricedWindow, ...]:
        """Price the capacity of a period: one window for each fleet that was in force in it."""
        now = or_now(now)
        held = await self.held(fleet, period, now)
        return tuple([await self._priced(part, calendar_of(fleet), now) for part in held])

    async def held(self, fleet: Fleet, period: Span, now: int) -> tuple[FleetSpan, ...]:
        """Split a period by the fleets in force.

        There is no data of the future: a period that has not ended is cut at the end of the current hour.
        """
        past = Span(period.start, min(period.end, calendar_of(fleet).next_hour(now)))
        if past.start >= past.end:
            return ()
        return (always(fleet, past),) if self._history is None else await self._history.spans(fleet, past)

    async def _priced(self, held: FleetSpan, calendar: Calendar, now: int) -> PricedWindow:
        fleet, span = held.fleet, held.span
        until = min(now, span.end)
        points = await self._ledger.prices.points([p.name for p in fleet.pools], span)
        capacity = await self._capacity(held, calendar, until, points)
        rates = rate_spans(fleet, calendar, span, capacity, points, until=until)
        pools = {p.name: p for p in fleet.pools}
        return PricedWindow(fleet, calendar, span, until, capacity, rates, pools, held)

    async def _charged(
        self, priced: PricedWindow, by: Sequence[Dimension], which: UsageFilter
    ) -> ChargedWindow:
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
        labels = (*by, *(label for label in _filtered_by(which, fleet) if label not in by))
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
            made = tuple(_filtered(made, labels, priced, which, len(by)))
        return ChargedWindow(made, usage, merged)

    async def _with_everyone(
        self, priced: PricedWindow, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        """Read some usage and all usage in one snapshot: rows metered in between would count twice."""
        usage, everyone = await self._views(priced, view, UsageView(priced.spans))
        return usage, everyone

    async def _capacity(
        self,
        held: FleetSpan,
        calendar: Calendar,
        until: int,
        points: Mapping[PoolName, Sequence[PricePoint]],
    ) -> tuple[CapacitySum, ...]:
        """Read capacity by hour for parts of days and pools whose rates change within a day, else by day."""
        hourly = hourly_pools(held.fleet, points)
        pools = [p for p in held.fleet.pools if p.name not in held.removed]
        by_hour = {p.name: p.cluster for p in pools if p.name in hourly}
        by_day = {p.name: p.cluster for p in pools if p.name not in hourly}
        reads = [(by_hour, False, held.span)]
        reads += [(by_day, days, span) for days, span in _day_parts(held.span, calendar, until)]
        found: list[CapacitySum] = []
        for of_pools, days, span in reads:
            if of_pools:
                rows = await self._ledger.capacity.sums(
                    span, local=calendar, by_day=days, clusters=set(of_pools.values()), live_until=until
                )
                found += [r for r in rows if r.supply.pool in of_pools]
        return tuple(found)


def _day_parts(span: Span, calendar: Calendar, until: int) -> Iterator[tuple[bool, Span]]:
    """Split a span into its whole days (True) and what is before and after them; today counts as whole."""
    first, last = calendar.day_of(span.start), calendar.day_of(span.end)
    start = span.start if span.start == calendar.day_start(first) else calendar.day_end(first)
    end = span.end if until < span.end else calendar.day_start(last)
    if start >= end:
        yield False, span
        return
    for whole, part in (
        (False, Span(span.start, start)),
        (True, Span(start, end)),
        (False, Span(end, span.end)),
    ):
        if part.start < part.end:
            yield whole, part


def counts(named: NamedBudget, who: str | None, path: TeamPath, pool: Pool | None) -> bool:
    """Return whether a budget counts a charge; `pool` is None for a charge on a whole cluster."""
    if named.is_restricted and (pool is None or not named.counts(pool)):
        return False
    if named.project is not None:
        return who == named.project
    return named.team is None or named.team in path


def _all_charges(
    priced: PricedWindow,
    usage: Sequence[UsageSum],
    labels: Sequence[Dimension],
    everyone: Sequence[UsageSum] | None = None,
    *,
    itemised: bool = False,
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
        itemised=itemised,
    )


def or_now(at: int | None) -> int:
    """Return `at`, or the current time in seconds if it is None."""
    return int(time.time()) if at is None else at


def own_labels(charge: Charge, by: Sequence[Dimension], calendar: Calendar) -> tuple[str, ...]:
    """Return the labels of a charge that nobody pays: its pool, slice, cluster and day."""
    return tuple(_own_label(charge, label, calendar) for label in by)


def _entry(charge: Charge, by: Sequence[Dimension], calendar: Calendar) -> ReportEntry:
    labels = charge.labels if charge.labels is not None else own_labels(charge, by, calendar)
    return ReportEntry(labels, charge.kind, charge.labels is not None, charge.amount)


def _own_label(charge: Charge, label: Dimension, calendar: Calendar) -> str:
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
    """Return whether the filter selects teams, users or labels of jobs, which pay no separate lines."""
    return bool(which.by_dimension())


def _own_lines_only(fleet: Fleet) -> bool:
    return fleet.cost.idle is Sharing.OWN_LINE and fleet.cost.overhead is Sharing.OWN_LINE


def _filtered_by(which: UsageFilter, fleet: Fleet) -> list[Dimension]:
    """Return the labels that charges must have so that the filter can be applied to shares."""
    # Of a cluster's overhead, the share of the usage of a pool is that pool's.
    pools = which.pools is not None and fleet.cost.overhead is Sharing.BY_USAGE
    return [*which.by_dimension(), *((Label.POOL,) if pools else ())]


def _filtered(
    made: Iterable[Charge], labels: Sequence[Dimension], priced: PricedWindow, which: UsageFilter, keep: int
) -> Iterable[Charge]:
    """Yield the charges that match the filter, with the first `keep` labels."""
    filters = dict(which.by_dimension())
    if which.teams is not None:
        filters[Label.TEAM] = priced.current_teams(which.teams)
    pool_label = labels.index(Label.POOL) if Label.POOL in labels else None
    checks = [(i, names) for i, label in enumerate(labels) if (names := filters.get(label)) is not None]
    for charge in made:
        pool = charge.pool
        if charge.supply is None and charge.labels is not None and pool_label is not None:
            pool = charge.labels[pool_label]
        if which.pools is not None and pool not in which.pools:
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
