"""Price usage and distribute the cost of unused capacity. Exact: a window is the sum of its days.

rates = rate_spans(fleet, calendar, window, capacity, points)
usage = ...devices held in those spans, from the ledger...
charges(fleet, calendar, window, capacity, rates, usage, labels)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.cost.rates import Cover, RateSpan, memory_part, per_second
from fairway.cost.rounding import exact_sum
from fairway.model.charge import (
    UNUSED_KINDS,
    CapacitySum,
    Charge,
    ChargeKind,
    Dimension,
    Label,
    Span,
    UsageSum,
)
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import Commitment, Sharing
from fairway.model.team import Supply, TeamTree

Labels = tuple[str, ...]

Shares = tuple[tuple[TeamName, Fraction], ...]
"""Fractions that sum to 1, or none."""

Rates = Mapping[PoolName, Sequence[RateSpan]]

_ZERO: Final = Fraction(0)
_ONE: Final = Fraction(1)


class Guarantees:
    """Each team's share of the guarantees, net of what it passes on to its child teams."""

    def __init__(self, fleet: Fleet) -> None:
        tree = TeamTree(fleet.teams)
        self._pools: Final = {pool.name: pool for pool in fleet.pools}
        self._own: Final[dict[Supply, dict[TeamName, int]]] = {}
        for team in fleet.teams:
            for grant in team.grants:
                own = grant.guarantee and grant.guarantee - tree.guaranteed_to_children(team, grant.supply)
                if own > 0 and grant.supply.pool in self._pools:
                    of_supply = self._own.setdefault(grant.supply, {})
                    of_supply[team.name] = of_supply.get(team.name, 0) + own

    def of_supply(self, supply: Supply) -> Shares:
        """Return the shares of one supply."""
        return _parts(self._own.get(supply, {}))

    def of_pool(self, name: PoolName) -> Shares:
        """Return the shares of a whole pool, slices weighted by memory."""
        return self._of_gpus(lambda pool: pool.name == name)

    def of_cluster(self, name: ClusterName) -> Shares:
        """Return the shares of a whole cluster; every GPU counts the same."""
        return self._of_gpus(lambda pool: pool.cluster == name)

    def _of_gpus(self, is_in: Callable[[Pool], bool]) -> Shares:
        gpus: dict[TeamName, Fraction] = {}
        for supply, teams in self._own.items():
            pool = self._pools[supply.pool]
            if is_in(pool):
                part = memory_part(pool.gpu, supply.slice)
                for team, own in teams.items():
                    gpus[team] = gpus.get(team, _ZERO) + own * part
        return _parts(gpus)


def _parts(sums: Mapping[TeamName, Fraction | int]) -> Shares:
    total = sum(sums.values())
    return tuple((team, Fraction(own) / total) for team, own in sums.items())


def labels_of_team(
    labels: Sequence[Dimension], team: TeamName, cluster: ClusterName, supply: Supply | None, day: str
) -> Labels:
    """Return the label values of a team's share; labels of users and jobs stay empty."""
    by_label: dict[Dimension, str] = {Label.TEAM: team, Label.CLUSTER: cluster, Label.DAY: day}
    if supply is not None:
        by_label |= {Label.POOL: supply.pool, Label.SLICE: supply.slice or ""}
    return tuple(by_label.get(label, "") for label in labels)


def usage_charges(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    rates: Rates,
    usage: Sequence[UsageSum],
    labels: Sequence[Dimension],
) -> tuple[Charge, ...]:
    """Compute usage × price only, without shares of unused capacity. `rates` need not be split by day.

    Returns one charge per supply and labels; its span is the day if `labels` include DAY, else the window.
    """
    found = _ChargeTotals(calendar, window, by_day=Label.DAY in labels)
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
    """Return unused capacity and its cost by day and supply, regardless of who pays: labels are None.

    `usage` is that of all users, with any labels; `rates` are split by day.
    """
    found = _ChargeTotals(calendar, window, by_day=True)
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
    labels: Sequence[Dimension],
    *,
    everyone: Sequence[UsageSum] | None = None,
    itemised: bool = False,
) -> tuple[Charge, ...]:
    """Compute all charges of the window and who pays them: usage, unused capacity, commitments, overhead.

    They sum to capacity × price + overhead. `labels` are those of `usage`. If `usage` is filtered, `everyone`
    is all usage of the same spans, with any labels (or none): shares are computed from the whole, and the
    result has the charges of the filtered usage, the lines that nobody pays, and what teams pay by guarantee.
    Returns one charge per kind, supply and labels; its span is the day if `labels` include DAY, else the
    window. Itemised charges are split by commitment and have quantities; their `labels` include DAY.
    """
    found = _ChargeTotals(calendar, window, by_day=Label.DAY in labels)
    pools = {pool.name: pool for pool in fleet.pools}
    clusters = {pool.name: pool.cluster for pool in fleet.pools}
    costs = _Costs(calendar, by_pool=fleet.cost.idle, by_cluster=fleet.cost.overhead)
    for row, at, amount in _priced(fleet, rates, usage):
        cluster = clusters[row.supply.pool]
        if itemised and rates[row.supply.pool][row.span].covers:
            pool = pools[row.supply.pool]
            place = (ChargeKind.USAGE, cluster, row.supply, at, row.labels)
            for cover in rates[pool.name][row.span].covers_of(pool, row.supply.slice):
                part = row.device_seconds * cover.share
                found.add(*place, round(part), part * cover.rate, part, cover.commitment)
        else:
            found.add(ChargeKind.USAGE, cluster, row.supply, at, row.labels, row.device_seconds, amount)
        costs.add(cluster, row.supply.pool, at, row.labels, amount)
    if everyone is None:
        everyone, all_costs = usage, costs
    else:
        all_costs = _Costs(calendar, by_pool=fleet.cost.idle, by_cluster=fleet.cost.overhead)
        for row, at, amount in _priced(fleet, rates, everyone):
            all_costs.add(clusters[row.supply.pool], row.supply.pool, at, (), amount)
    unused_lines = _unused(fleet, capacity, rates, everyone, itemised=itemised)
    lines = [*unused_lines, *_overhead(fleet, calendar, window)]
    _share(fleet, lines, costs, all_costs, found, labels, itemised=itemised)
    return found.charges()


@dataclass(frozen=True, slots=True)
class _SharedAmount:
    """An amount that belongs to no job: unused capacity, a commitment or overhead."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    at: int
    device_seconds: int
    amount: Fraction
    quantity: Fraction
    """Device-seconds, or days of overhead."""
    commitment: Commitment | None = None


_Key = tuple[ChargeKind, ClusterName, Supply | None, int, Labels | None, Commitment | None]


class _ChargeTotals:
    """Sums of charges, by day or for the whole window."""

    def __init__(self, calendar: Calendar, window: Span, *, by_day: bool) -> None:
        self.by_day = by_day
        self._days = calendar.days(window) if by_day else (window,)
        self._starts = [day.start for day in self._days]
        self._texts = [calendar.day_of(day.start).isoformat() for day in self._days] if by_day else [""]
        self._seconds: dict[_Key, int] = {}
        self._amounts: dict[_Key, list[Fraction]] = {}
        self._quantities: dict[_Key, list[Fraction]] = {}

    def day_text(self, at: int) -> str:
        """Return the day as a label; empty if charges are not split by day."""
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
        quantity: Fraction | None = None,
        commitment: Commitment | None = None,
    ) -> None:
        """Add an amount; with its quantity, and the commitment that covers it, if it is itemised."""
        key = (kind, cluster, supply, self._index(at), labels, commitment)
        amounts = self._amounts.get(key)
        if amounts is None:
            self._amounts[key], self._seconds[key] = [amount], device_seconds
        else:
            amounts.append(amount)
            self._seconds[key] += device_seconds
        if quantity is not None:
            self._quantities.setdefault(key, []).append(quantity)

    def charges(self) -> tuple[Charge, ...]:
        """Return the charges. Amounts are summed only here: one sum is many times faster than adding each."""
        found = []
        for key, amounts in self._amounts.items():
            kind, cluster, supply, day, labels, commitment = key
            seconds, amount = self._seconds[key], exact_sum(amounts)
            quantities = self._quantities.get(key)
            quantity = exact_sum(quantities) if quantities else seconds
            if seconds or amount or quantity:
                of = (self._days[day], labels, seconds, amount, quantity, commitment)
                found.append(Charge(kind, cluster, supply, *of))
        return tuple(found)


_Place = tuple[str, bool, int]
"""Name of a pool (True) or cluster (False), and the start of the day."""


class _Costs:
    """Cost of usage by pool or cluster, day and labels; recorded only where a rule shares by usage."""

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

    def shares(self, line: _SharedAmount, all_costs: _Costs) -> Sequence[tuple[Labels, Fraction]] | None:
        """Return each label's share of the usage cost in `all_costs` for the line's place and day.

        Returns None if that place had no usage cost that day.
        """
        place = line.cluster if line.supply is None else line.supply.pool
        key = (place, line.supply is not None, self._day(line.at))
        if key not in self._shares:
            cost = exact_sum(all_costs._costs.get(key, {}).values())
            own = self._costs.get(key, {})
            self._shares[key] = [(who, amount / cost) for who, amount in own.items()] if cost > 0 else None
        return self._shares[key]


def _priced(
    fleet: Fleet, rates: Rates, usage: Iterable[UsageSum]
) -> Iterable[tuple[UsageSum, int, Fraction]]:
    """Yield each usage row with the start of its span and its cost."""
    pools = {pool.name: pool for pool in fleet.pools}
    for row in usage:
        span = rates[row.supply.pool][row.span]
        rate = span.rate(pools[row.supply.pool], row.supply.slice)
        yield row, span.span.start, rate * row.device_seconds


def _unused(
    fleet: Fleet,
    capacity: Sequence[CapacitySum],
    rates: Rates,
    usage: Sequence[UsageSum],
    *,
    itemised: bool = False,
) -> Iterable[_SharedAmount]:
    """Yield lines for unused capacity by span and supply, and for committed GPUs that did not exist."""
    by_span = _by_span(rates, capacity)
    used_seconds: dict[tuple[PoolName, int, SliceName | None], int] = {}
    for row in usage:
        key = (row.supply.pool, row.span, row.supply.slice)
        used_seconds[key] = used_seconds.get(key, 0) + row.device_seconds
    pools = {pool.name: pool for pool in fleet.pools}
    # Devices of a kind that the capacity does not count, such as shards of GPUs that it counts whole.
    uncounted: dict[tuple[PoolName, int], Fraction] = {}
    for (name, index, slice_), used in used_seconds.items():
        if (name, index, slice_) not in by_span:
            gpu_seconds = used * rates[name][index].part(pools[name], slice_)
            uncounted[name, index] = uncounted.get((name, index), _ZERO) + gpu_seconds
    for key, (total, drained, down, fragmented) in by_span.items():
        name, index, slice_ = key
        pool, span = pools[name], rates[name][index]
        left: Fraction | int = total - used_seconds.get(key, 0)
        if left > 0 and (gpu_seconds := uncounted.get((name, index), _ZERO)):
            part = span.part(pool, slice_)
            taken = min(gpu_seconds / part, left)
            uncounted[name, index] -= taken * part
            left -= taken
        supply = Supply(name, slice_)
        for kind, limit in (
            (ChargeKind.DOWN, down),
            (ChargeKind.DRAINED, drained),
            (ChargeKind.FRAGMENTED, fragmented),
            (ChargeKind.IDLE, left),
        ):
            seconds = min(limit, left)
            if seconds <= 0:
                continue
            left -= seconds
            whole = (Cover(None, _ONE, span.rate(pool, slice_)),)
            for cover in span.covers_of(pool, slice_) if itemised else whole:
                part = seconds * cover.share
                line = (kind, pool.cluster, supply, span.span.start, round(part), part * cover.rate)
                yield _SharedAmount(*line, part, cover.commitment)
    for name, spans in rates.items():
        for span in spans:
            for commitment, missing in span.absent.items():
                amount = per_second(commitment.per_gpu_hour) * missing
                place = (ChargeKind.COMMITMENT, pools[name].cluster, Supply(name), span.span.start)
                covered_by = commitment if itemised else None
                yield _SharedAmount(*place, round(missing), amount, missing, covered_by)


def _by_span(
    rates: Rates, capacity: Sequence[CapacitySum]
) -> dict[tuple[PoolName, int, SliceName | None], tuple[int, int, int, int]]:
    """Sum total, drained, down and fragmented device-seconds by pool, index of the rate span, and slice."""
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


def _overhead(fleet: Fleet, calendar: Calendar, window: Span) -> Iterable[_SharedAmount]:
    """Yield each cluster's overhead by day: the monthly amount divided by the days of that month."""
    for cluster in fleet.clusters:
        monthly = sum((Fraction(amount) for amount in cluster.overhead.values()), _ZERO)
        if not monthly:
            continue
        for span in calendar.days(window):
            day = calendar.day_of(span.start)
            full_day = calendar.day_span(day)
            part = Fraction(span.end - span.start, full_day.end - full_day.start)
            amount = monthly / calendar.days_in_month(day) * part
            yield _SharedAmount(ChargeKind.OVERHEAD, cluster.name, None, span.start, 0, amount, part)


def _share(
    fleet: Fleet,
    lines: Iterable[_SharedAmount],
    costs: _Costs,
    all_costs: _Costs,
    found: _ChargeTotals,
    labels: Sequence[Dimension],
    *,
    itemised: bool,
) -> None:
    """Assign each line to those who pay it under the fleet's cost rules."""
    rules = dict.fromkeys(UNUSED_KINDS, fleet.cost.idle) | {ChargeKind.OVERHEAD: fleet.cost.overhead}
    guaranteed = _Guaranteed(fleet) if Sharing.BY_GUARANTEE in rules.values() else None
    for line in lines if found.by_day else _over_days(lines, rules):
        shares: Sequence[tuple[Labels, Fraction]] | None = None
        if rules[line.kind] is Sharing.BY_USAGE:
            shares = costs.shares(line, all_costs)
        elif guaranteed is not None and rules[line.kind] is Sharing.BY_GUARANTEE:
            day = found.day_text(line.at)
            shares = [
                (labels_of_team(labels, team, line.cluster, line.supply, day), part)
                for team, part in guaranteed.of(line)
            ] or None
        place = (line.kind, line.cluster, line.supply, line.at)
        if shares is None:
            amounts = (line.device_seconds, line.amount, line.quantity if itemised else None)
            found.add(*place, None, *amounts, line.commitment)
            continue
        for who, part in shares:
            quantity = line.quantity * part if itemised else None
            found.add(*place, who, 0, line.amount * part, quantity, line.commitment)


def _over_days(
    lines: Iterable[_SharedAmount], rules: Mapping[ChargeKind, Sharing]
) -> Iterable[_SharedAmount]:
    """Merge the lines that are shared the same way every day into one line each."""
    alike: dict[tuple[ChargeKind, ClusterName, Supply | None], list[_SharedAmount]] = {}
    for line in lines:
        if rules[line.kind] is Sharing.BY_USAGE:
            yield line
        else:
            alike.setdefault((line.kind, line.cluster, line.supply), []).append(line)
    for (kind, cluster, supply), days in alike.items():
        seconds = sum(line.device_seconds for line in days)
        amount = exact_sum([line.amount for line in days])
        quantity = exact_sum([line.quantity for line in days])
        yield _SharedAmount(kind, cluster, supply, days[0].at, seconds, amount, quantity)


class _Guaranteed:
    """Shares of a line by guarantee, computed once per supply, pool or cluster."""

    def __init__(self, fleet: Fleet) -> None:
        self._guarantees = Guarantees(fleet)
        self._shares: dict[tuple[ClusterName, Supply | None, bool], Shares] = {}

    def of(self, line: _SharedAmount) -> Shares:
        key = (line.cluster, line.supply, line.kind is ChargeKind.COMMITMENT)
        if key not in self._shares:
            if line.supply is None:
                self._shares[key] = self._guarantees.of_cluster(line.cluster)
            elif line.kind is ChargeKind.COMMITMENT:
                self._shares[key] = self._guarantees.of_pool(line.supply.pool)
            else:
                self._shares[key] = self._guarantees.of_supply(line.supply)
        return self._shares[key]
