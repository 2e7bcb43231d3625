"""Compute charges: read totals of a window from the ledger, price them, cache what is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from fairway.cost.calendar import Calendar
from fairway.cost.charges import RateSpan, charges, hourly_pools, rate_spans, unused, usage_charges
from fairway.cost.rates import over_days
from fairway.cost.report import ReportEntry
from fairway.ledger import Ledger, UsageFilter, UsageView
from fairway.model.charge import CapacitySum, Charge, ChargeKind, Label, Span, UsageSum
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import PoolName, TeamName
from fairway.model.price import PricePoint, Sharing
from fairway.model.team import TeamTree

EVERYBODY: Final = UsageFilter()

_FROM_SPANS: Final = frozenset({Label.POOL, Label.SLICE, Label.DAY})
"""Labels that sums of everybody's usage tell by themselves."""

NOBODY: Final = ""
"""Carries what is a line of its own, and what work under no team cost."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A window's capacity and what it cost a second, ready for usage."""

    fleet: Fleet
    calendar: Calendar
    span: Span
    until: int
    """Up to when running work counts."""
    capacity: tuple[CapacitySum, ...]
    rates: Mapping[PoolName, tuple[RateSpan, ...]]
    pools: Mapping[PoolName, Pool]

    @property
    def spans(self) -> dict[PoolName, tuple[Span, ...]]:
        """What usage is to be summed over."""
        return {pool: tuple(r.span for r in rates) for pool, rates in self.rates.items()}

    def over_days(self) -> Priced:
        """The same for usage alone, which need not be cut where days begin: far fewer spans to sum over."""
        return replace(self, rates={pool: over_days(spans) for pool, spans in self.rates.items()})

    def of_places(self, usage: Iterable[UsageSum], by: Sequence[Label]) -> tuple[UsageSum, ...]:
        """All usage, told apart by what its span and its supply say; `by` only of `_FROM_SPANS`."""
        return tuple(replace(row, labels=tuple(self._place(row, label) for label in by)) for row in usage)

    def _place(self, row: UsageSum, label: Label) -> str:
        match label:
            case Label.POOL:
                return row.supply.pool
            case Label.SLICE:
                return row.supply.slice or ""
            case _:
                return self.calendar.day_of(self.rates[row.supply.pool][row.span].span.start).isoformat()

    def held(self, row: UsageSum, labels: int) -> ReportEntry:
        """What was held, as a report counts it: without money, under the first so many labels.

        Slices count as the part of a GPU that they were, by how the GPUs were cut then.
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
class Charged:
    """The charges of a part of a window, and the usage among them."""

    charges: tuple[Charge, ...]
    usage: tuple[UsageSum, ...]
    by: Priced
    """By whose spans the usage was summed."""


class History(Protocol):
    """Knows which fleet held when."""

    async def fleets(self, newest: Fleet, period: Span) -> Sequence[tuple[Span, Fleet]]:
        """The period in whole days of `newest`'s, each part with the fleet that held then."""
        ...


class Costs:
    """Charges of any window, exact. Holds nothing: any number of them may serve one ledger."""

    def __init__(self, ledger: Ledger, history: History | None = None) -> None:
        """Without a history, whatever fleet is asked about held always."""
        self._ledger = ledger
        self._history = history

    async def spent(self, fleet: Fleet, team: TeamName, period: Span, now: int | None = None) -> Fraction:
        """What a team with all teams inside it is charged in a period up to now, running work included."""
        each = await self.by_team(fleet, period, now)
        tree = TeamTree(fleet.teams)
        return sum((each.get(t.name, Fraction(0)) for t in tree.subtree(tree[team])), Fraction(0))

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        """The same of each team itself, without those inside it; one read for any number of budgets."""
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
        """Every charge of a period, as far as it is over or under way; with a filter, only theirs."""
        found: list[Charge] = []
        for priced in await self.priced(fleet, period, now):
            found += (await self._charged(priced, by, which)).charges
        return tuple(found)

    async def entries(
        self, priced: Priced, by: Sequence[Label], which: UsageFilter = EVERYBODY
    ) -> list[ReportEntry]:
        """Charges, and what was held, as a report counts them."""
        made = await self._charged(priced, by, which)
        found = [_entry(charge, by, priced.calendar) for charge in made.charges]
        return [*found, *(made.by.held(row, len(by)) for row in made.usage)]

    async def unused(self, priced: Priced) -> tuple[Charge, ...]:
        """What nobody used, by day and supply, whoever carries it."""
        usage = await self.everyone(priced)
        return unused(priced.fleet, priced.calendar, priced.span, priced.capacity, priced.rates, usage)

    async def usage(
        self, priced: Priced, by: Sequence[Label], which: UsageFilter = EVERYBODY
    ) -> tuple[UsageSum, ...]:
        """Device-seconds in each span of the rates."""
        if which == EVERYBODY and _FROM_SPANS.issuperset(by):
            return priced.of_places(await self.everyone(priced), by)
        return (await self._views(priced, UsageView(priced.spans, tuple(by), which)))[0]

    async def everyone(self, priced: Priced) -> tuple[UsageSum, ...]:
        """All usage in each span of the rates, told apart by nothing else: nobody's in particular."""
        return (await self._views(priced, UsageView(priced.spans)))[0]

    async def _views(self, priced: Priced, *views: UsageView) -> tuple[tuple[UsageSum, ...], ...]:
        return await self._ledger.usage.views(views, priced.until, local=priced.calendar)

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[Priced, ...]:
        """What there was in a period, with what it cost: a part for each fleet that held meanwhile.

        Nothing is known of the future: a period that has not ended is cut where this hour ends.
        """
        calendar = calendar_of(fleet)
        now = second(now)
        end = min(period.end, calendar.next_hour(now))
        if period.start >= end:
            return ()
        cut = Span(period.start, end)
        parts = ((cut, fleet),) if self._history is None else await self._history.fleets(fleet, cut)
        return tuple([await self._priced(held, calendar, span, now) for span, held in parts])

    async def _priced(self, fleet: Fleet, calendar: Calendar, span: Span, now: int) -> Priced:
        until = min(now, span.end)
        points = await self._ledger.prices.points([p.name for p in fleet.pools], span)
        capacity = await self._capacity(fleet, calendar, span, until, points)
        rates = rate_spans(fleet, calendar, span, capacity, points, until=until)
        return Priced(fleet, calendar, span, until, capacity, rates, {p.name: p for p in fleet.pools})

    async def _charged(self, priced: Priced, by: Sequence[Label], which: UsageFilter) -> Charged:
        fleet = priced.fleet
        days_matter = Label.DAY in by or Sharing.BY_USAGE in (fleet.cost.idle, fleet.cost.overhead)
        if _of_people(which) and _own_lines_only(fleet):
            # Nobody shares anything: what others did makes no difference.
            cut = priced if days_matter else priced.over_days()
            usage = await self.usage(cut, by, which)
            made = usage_charges(fleet, cut.calendar, cut.span, cut.rates, usage, by)
            return Charged(made, usage, cut)
        if which == EVERYBODY and (days_matter or _FROM_SPANS.issuperset(by)):
            usage = await self.usage(priced, by)
            return Charged(_all(priced, usage, by), usage, priced)
        labels = (*by, *(label for label in _filtered_by(which) if label not in by))
        cut = priced if days_matter else priced.over_days()
        usage, everyone = await self._with_everyone(priced, UsageView(cut.spans, labels, which))
        if days_matter:
            made = _all(priced, usage, labels, everyone)
        else:
            # Shares do not depend on who used what: usage is charged over days, the rest by day.
            made = (
                *usage_charges(fleet, cut.calendar, cut.span, cut.rates, usage, labels),
                *_all(priced, (), labels, everyone),
            )
        if which != EVERYBODY:
            made = tuple(_narrowed(made, labels, which, len(by)))
        return Charged(made, usage, cut)

    async def _with_everyone(
        self, priced: Priced, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        """Some usage and all usage of one moment: else what was metered in between would be counted twice."""
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
        """By hour where prices change within a day, else by day."""
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


def _all(
    priced: Priced,
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


def second(given: int | None) -> int:
    """The one that was given, or this one."""
    return int(time.time()) if given is None else given


def calendar_of(fleet: Fleet) -> Calendar:
    """The days of a fleet; its file was checked to name a time zone that exists."""
    return Calendar(ZoneInfo(fleet.cost.timezone))


def own_labels(charge: Charge, by: Sequence[Label], calendar: Calendar) -> tuple[str, ...]:
    """What can be said of something nobody carries: where and when it was."""
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
    """Whether it is about somebody: what nobody carries is none of theirs."""
    return which.teams is not None or which.users is not None


def _own_lines_only(fleet: Fleet) -> bool:
    return fleet.cost.idle is Sharing.OWN_LINE and fleet.cost.overhead is Sharing.OWN_LINE


def _filtered_by(which: UsageFilter) -> list[Label]:
    """Labels that charges need so that shares can be told to be somebody's."""
    asked = ((Label.TEAM, which.teams), (Label.USER, which.users))
    return [label for label, names in asked if names is not None]


def _narrowed(
    made: Iterable[Charge], labels: Sequence[Label], which: UsageFilter, keep: int
) -> Iterable[Charge]:
    """Only what is theirs, with the first `keep` labels."""
    wanted = {Label.TEAM: which.teams, Label.USER: which.users}
    checks = [(i, names) for i, label in enumerate(labels) if (names := wanted.get(label)) is not None]
    for charge in made:
        if which.pools is not None and charge.pool not in which.pools:
            continue
        if charge.labels is None:
            if not _of_people(which):
                yield charge
        elif all(charge.labels[i] in names for i, names in checks):
            yield replace(charge, labels=charge.labels[:keep])


SECONDS: Final = 20
"""How old it may be."""

WINDOWS: Final = 24


class CachedCosts(Costs):
    """Remembers windows with their capacity and rates for some seconds.

    Nothing of it is anybody's: who used what, and what it cost them, is read each time. What all together
    used of each pool is kept as long as the window it is of.
    """

    def __init__(
        self, ledger: Ledger, history: History | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ledger, history)
        self._clock = clock
        self._known: dict[Span, tuple[float, int, Fleet, tuple[Priced, ...]]] = {}
        self._everyone: dict[int, tuple[Priced, tuple[UsageSum, ...]]] = {}

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[Priced, ...]:
        """As it was a few seconds ago at the most; running work counts up to then."""
        now = second(now)
        if (known := self._known.get(period)) is not None:
            at, asked, of_fleet, parts = known
            # A fleet is read once for each revision: another one is another object.
            if of_fleet is fleet and self._clock() - at < SECONDS and 0 <= now - asked < SECONDS:
                return parts
        parts = await super().priced(fleet, period, now)
        while len(self._known) >= WINDOWS:
            self._known.pop(next(iter(self._known)))
        self._known[period] = (self._clock(), now, fleet, parts)
        return parts

    async def everyone(self, priced: Priced) -> tuple[UsageSum, ...]:
        """As it was read first of that very window."""
        known = self._everyone.get(id(priced))
        if known is not None and known[0] is priced:
            return known[1]
        return self._keep(priced, await super().everyone(priced))

    async def _with_everyone(
        self, priced: Priced, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        usage, everyone = await super()._with_everyone(priced, view)
        return usage, self._keep(priced, everyone)

    def _keep(self, priced: Priced, usage: tuple[UsageSum, ...]) -> tuple[UsageSum, ...]:
        while len(self._everyone) >= WINDOWS:
            self._everyone.pop(next(iter(self._everyone)))
        self._everyone[id(priced)] = priced, usage  # which stays, so nothing else gets its number
        return usage
