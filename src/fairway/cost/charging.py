"""Usage × price, and who carries what nobody used. Exact; a window is the sum of its days.

rates = rate_spans(fleet, calendar, window, capacity, points)
usage = ...what was held in those spans, from the ledger...
charges(fleet, calendar, window, capacity, rates, usage, labels)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.cost.rates import RateSpan, hourly_pools, rate_spans
from fairway.cost.rounding import exact_sum
from fairway.cost.sharing import Guarantees, Labels, Shares, labels_of_team
from fairway.model.charge import UNUSED_KINDS, CapacitySum, Charge, ChargeKind, Label, Span, UsageSum
from fairway.model.fleet import Cluster, Fleet
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.price import Sharing
from fairway.model.team import Supply

__all__ = ["RateSpan", "charges", "hourly_pools", "rate_spans", "unused", "usage_charges"]

_ZERO: Final = Fraction(0)
Rates = Mapping[PoolName, Sequence[RateSpan]]


def usage_charges(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    rates: Rates,
    usage: Sequence[UsageSum],
    labels: Sequence[Label],
) -> tuple[Charge, ...]:
    """Usage × price alone: no shares, nothing of what was unused. `rates` need not be cut by day.

    One charge for each supply and label; its span is the day if `labels` tell days, else the window.
    """
    found = _Sums(calendar, window, by_day=Label.DAY in labels)
    clusters = {pool.name: pool.cluster for pool in fleet.pools}
    for row, at, amount in _priced(fleet, rates, usage):
        cluster = clusters[row.supply.pool]
        found.add(ChargeKind.USAGE, cluster, row.supply, at, row.labels, row.device_seconds, amount)
    return found.charges()


def unused(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    rates: Rates,
    usage: Sequence[UsageSum],
) -> tuple[Charge, ...]:
    """What nobody used and what it cost, by day and supply, whoever carries it: labels are None.

    `usage` of everyone, with whatever labels; `rates` cut by day.
    """
    found = _Sums(calendar, window, by_day=True)
    for line in _unused(fleet, capacity, rates, usage):
        found.add(line.kind, line.cluster, line.supply, line.at, None, line.device_seconds, line.amount)
    return found.charges()


def charges(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    rates: Rates,
    usage: Sequence[UsageSum],
    labels: Sequence[Label],
    *,
    everyone: Sequence[UsageSum] | None = None,
) -> tuple[Charge, ...]:
    """All that the window cost, and who carries it: usage, what was unused, commitments, overhead.

    They sum to capacity × price + overhead. `labels` are those of `usage`. If `usage` is only of some,
    `everyone` is all usage of the same spans, with whatever labels (none will do): shares are of the whole,
    and the charges are of those some, beside the lines that nobody carries and what teams carry by their
    guarantees. One charge for each kind, supply and label; its span is the day if `labels` tell days, else
    the window.
    """
    found = _Sums(calendar, window, by_day=Label.DAY in labels)
    clusters = {pool.name: pool.cluster for pool in fleet.pools}
    costs = _Costs(calendar, by_pool=fleet.cost.idle, by_cluster=fleet.cost.overhead)
    for row, at, amount in _priced(fleet, rates, usage):
        cluster = clusters[row.supply.pool]
        found.add(ChargeKind.USAGE, cluster, row.supply, at, row.labels, row.device_seconds, amount)
        costs.add(cluster, row.supply.pool, at, row.labels, amount)
    if everyone is None:
        everyone, whole = usage, costs
    else:
        whole = _Costs(calendar, by_pool=fleet.cost.idle, by_cluster=fleet.cost.overhead)
        for row, at, amount in _priced(fleet, rates, everyone):
            whole.add(clusters[row.supply.pool], row.supply.pool, at, (), amount)
    lines = [*_unused(fleet, capacity, rates, everyone), *_overhead(fleet, calendar, window)]
    _share(fleet, lines, costs, whole, found, labels)
    return found.charges()


@dataclass(frozen=True, slots=True)
class _Line:
    """An amount that belongs to no job."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    at: int
    device_seconds: int
    amount: Fraction


_Key = tuple[ChargeKind, ClusterName, Supply | None, int, Labels | None]


class _Sums:
    """Charges as they add up, by day or for the window as a whole."""

    def __init__(self, calendar: Calendar, window: Span, *, by_day: bool) -> None:
        self.by_day = by_day
        self._days = calendar.days(window) if by_day else (window,)
        self._starts = [day.start for day in self._days]
        self._texts = [calendar.day_of(day.start).isoformat() for day in self._days] if by_day else [""]
        self._seconds: dict[_Key, int] = {}
        self._amounts: dict[_Key, list[Fraction]] = {}

    def day_text(self, at: int) -> str:
        """The day as a label; empty when days are not told apart."""
        return self._texts[self._index(at)]

    def _index(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1 if len(self._starts) > 1 else 0

    def add(
        self,
        kind: ChargeKind,
        cluster: ClusterName,
        supply: Supply | None,
        at: int,
        labels: Labels | None,
        device_seconds: int,
        amount: Fraction,
    ) -> None:
        key = (kind, cluster, supply, self._index(at), labels)
        amounts = self._amounts.get(key)
        if amounts is None:
            self._amounts[key], self._seconds[key] = [amount], device_seconds
        else:
            amounts.append(amount)
            self._seconds[key] += device_seconds

    def charges(self) -> tuple[Charge, ...]:
        """Amounts are added up only now: at once that is many times as fast as one by one."""
        found = []
        for key, amounts in self._amounts.items():
            kind, cluster, supply, day, labels = key
            seconds, amount = self._seconds[key], exact_sum(amounts)
            if seconds or amount:
                found.append(Charge(kind, cluster, supply, self._days[day], labels, seconds, amount))
        return tuple(found)


_Place = tuple[str, bool, int]
"""A pool (True) or cluster (False) by name, and the day by when it begins."""


class _Costs:
    """What was used cost, by day and labels, of each pool and each cluster: where a rule asks for it."""

    def __init__(self, calendar: Calendar, *, by_pool: Sharing, by_cluster: Sharing) -> None:
        self._calendar = calendar
        self._by_pool = by_pool is Sharing.BY_USAGE
        self._by_cluster = by_cluster is Sharing.BY_USAGE
        self._days: dict[int, int] = {}
        self._costs: dict[_Place, dict[Labels, Fraction]] = {}
        self._shares: dict[_Place, Sequence[tuple[Labels, Fraction]] | None] = {}

    def add(self, cluster: ClusterName, pool: PoolName, at: int, labels: Labels, amount: Fraction) -> None:
        if not (self._by_pool or self._by_cluster):
            return
        day = self._day(at)
        if self._by_pool:
            self._add((pool, True, day), labels, amount)
        if self._by_cluster:
            self._add((cluster, False, day), labels, amount)

    def _day(self, at: int) -> int:
        if at not in self._days:
            self._days[at] = self._calendar.day_start(self._calendar.day_of(at))
        return self._days[at]

    def _add(self, key: _Place, labels: Labels, amount: Fraction) -> None:
        costs = self._costs.setdefault(key, {})
        costs[labels] = costs.get(labels, _ZERO) + amount

    def shares(self, line: _Line, whole: _Costs) -> Sequence[tuple[Labels, Fraction]] | None:
        """Each one's part of what `whole` used of the line's pool or cluster that day; None: nothing was."""
        place = line.cluster if line.supply is None else line.supply.pool
        key = (place, line.supply is not None, self._day(line.at))
        if key not in self._shares:
            cost = exact_sum(whole._costs.get(key, {}).values())
            own = self._costs.get(key, {})
            self._shares[key] = [(who, used / cost) for who, used in own.items()] if cost > 0 else None
        return self._shares[key]


def _priced(
    fleet: Fleet, rates: Rates, usage: Iterable[UsageSum]
) -> Iterable[tuple[UsageSum, int, Fraction]]:
    """Each row with when its span begins and what it cost."""
    pools = {pool.name: pool for pool in fleet.pools}
    for row in usage:
        span = rates[row.supply.pool][row.span]
        rate = span.rate(pools[row.supply.pool], row.supply.slice)
        yield row, span.span.start, rate * row.device_seconds


def _unused(
    fleet: Fleet, capacity: Sequence[CapacitySum], rates: Rates, usage: Sequence[UsageSum]
) -> Iterable[_Line]:
    """What nobody used, by span and supply, and committed GPUs that were not there."""
    had = _by_span(rates, capacity)
    used: dict[tuple[PoolName, int, SliceName | None], int] = {}
    for row in usage:
        key = (row.supply.pool, row.span, row.supply.slice)
        used[key] = used.get(key, 0) + row.device_seconds
    pools = {pool.name: pool for pool in fleet.pools}
    for key, (total, drained, down, fragmented) in had.items():
        name, index, slice_ = key
        pool, span = pools[name], rates[name][index]
        left = total - used.get(key, 0)
        supply = Supply(name, slice_)
        for kind, most in (
            (ChargeKind.DOWN, down),
            (ChargeKind.DRAINED, drained),
            (ChargeKind.FRAGMENTED, fragmented),
            (ChargeKind.IDLE, left),
        ):
            seconds = min(most, left)
            if seconds <= 0:
                continue
            left -= seconds
            amount = span.rate(pool, slice_) * seconds
            yield _Line(kind, pool.cluster, supply, span.span.start, seconds, amount)
    for name, spans in rates.items():
        for span in spans:
            if span.absent or span.absent_gpu_seconds:
                at = span.span.start
                seconds, cluster = span.absent_gpu_seconds, pools[name].cluster
                yield _Line(ChargeKind.COMMITMENT, cluster, Supply(name), at, seconds, span.absent)


def _by_span(
    rates: Rates, capacity: Sequence[CapacitySum]
) -> dict[tuple[PoolName, int, SliceName | None], tuple[int, int, int, int]]:
    """Total, drained, down and fragmented device-seconds by pool, place of its span, and slice."""
    starts = {pool: [span.span.start for span in spans] for pool, spans in rates.items()}
    found: dict[tuple[PoolName, int, SliceName | None], tuple[int, int, int, int]] = {}
    for row in capacity:
        pool = row.supply.pool
        index = bisect_right(starts.get(pool, ()), row.start) - 1
        if index < 0 or row.start >= rates[pool][-1].span.end:
            continue
        key = (pool, index, row.supply.slice)
        total, drained, down, fragmented = found.get(key, (0, 0, 0, 0))
        found[key] = (
            total + row.total,
            drained + row.drained,
            down + row.down,
            fragmented + row.fragmented,
        )
    return found


def _overhead(fleet: Fleet, calendar: Calendar, window: Span) -> Iterable[_Line]:
    """What each cluster costs beside its GPUs, by day: the month's amount over the days of that month."""
    for cluster in fleet.clusters:
        monthly = _monthly(cluster)
        if not monthly:
            continue
        for span in calendar.days(window):
            day = calendar.day_of(span.start)
            whole = calendar.day_span(day)
            amount = monthly / calendar.days_in_month(day)
            if span != whole:
                amount *= Fraction(span.end - span.start, whole.end - whole.start)
            yield _Line(ChargeKind.OVERHEAD, cluster.name, None, span.start, 0, amount)


def _monthly(cluster: Cluster) -> Fraction:
    return sum((Fraction(amount) for amount in cluster.overhead.values()), _ZERO)


def _share(
    fleet: Fleet,
    lines: Iterable[_Line],
    costs: _Costs,
    whole: _Costs,
    found: _Sums,
    labels: Sequence[Label],
) -> None:
    """Each line to whoever carries it by the fleet's rules."""
    rules = dict.fromkeys(UNUSED_KINDS, fleet.cost.idle) | {ChargeKind.OVERHEAD: fleet.cost.overhead}
    guaranteed = _Guaranteed(fleet) if Sharing.BY_GUARANTEE in rules.values() else None
    for line in lines if found.by_day else _over_days(lines, rules):
        shares: Sequence[tuple[Labels, Fraction]] | None = None
        if rules[line.kind] is Sharing.BY_USAGE:
            shares = costs.shares(line, whole)
        elif guaranteed is not None and rules[line.kind] is Sharing.BY_GUARANTEE:
            day = found.day_text(line.at)
            shares = [
                (labels_of_team(labels, team, line.cluster, line.supply, day), part)
                for team, part in guaranteed.of(line)
            ] or None
        if shares is None:
            shares = ()
            found.add(line.kind, line.cluster, line.supply, line.at, None, line.device_seconds, line.amount)
        for who, part in shares:
            found.add(line.kind, line.cluster, line.supply, line.at, who, 0, line.amount * part)


def _over_days(lines: Iterable[_Line], rules: Mapping[ChargeKind, Sharing]) -> Iterable[_Line]:
    """Lines that are carried alike every day as one each."""
    alike: dict[tuple[ChargeKind, ClusterName, Supply | None], list[_Line]] = {}
    for line in lines:
        if rules[line.kind] is Sharing.BY_USAGE:
            yield line
        else:
            alike.setdefault((line.kind, line.cluster, line.supply), []).append(line)
    for (kind, cluster, supply), days in alike.items():
        seconds = sum(line.device_seconds for line in days)
        amount = exact_sum([line.amount for line in days])
        yield _Line(kind, cluster, supply, days[0].at, seconds, amount)


class _Guaranteed:
    """Who carries a line by guarantees: each supply, pool or cluster is worked out once."""

    def __init__(self, fleet: Fleet) -> None:
        self._guarantees = Guarantees(fleet)
        self._shares: dict[tuple[ClusterName, Supply | None, bool], Shares] = {}

    def of(self, line: _Line) -> Shares:
        key = (line.cluster, line.supply, line.kind is ChargeKind.COMMITMENT)
        if key not in self._shares:
            if line.supply is None:
                self._shares[key] = self._guarantees.of_cluster(line.cluster)
            elif line.kind is ChargeKind.COMMITMENT:
                self._shares[key] = self._guarantees.of_pool(line.supply.pool)
            else:
                self._shares[key] = self._guarantees.of_supply(line.supply)
        return self._shares[key]
