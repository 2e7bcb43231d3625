"""Read what became of held GPU time, hour by hour or day by day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.cost.efficiency import divided
from fairway.cost.rates import parts
from fairway.ledger import Ledger, Token, UsageFilter, UsageView
from fairway.model.charge import CapacitySum, Span, UsageSum
from fairway.model.fleet import Fleet, Pool
from fairway.model.gpu_use import GpuUseSum, HeldKind, MetricCode
from fairway.model.names import PoolName, SliceName
from fairway.services.fleets import Fleets
from fairway.services.rights import usage_filter
from fairway.wire import gpu_use as wire

MAX_DAYS: Final = 31
MAX_DAYS_BY_HOUR: Final = 7
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """What became of the GPU-seconds held in an hour or on a day; a slice counts as its part of a GPU."""

    span: Span
    seconds: Mapping[HeldKind, float]


@dataclass(frozen=True, slots=True)
class UseHistory:
    """Held time over time, up to when metrics are read."""

    spans: tuple[HeldSpan, ...]
    by_day: bool
    read_to: int


async def use_history(
    ledger: Ledger,
    fleet: Fleet,
    days: int,
    *,
    pool: PoolName | None = None,
    teams: frozenset[str] | None = None,
) -> UseHistory | None:
    """Read the last days, up to seven by hour, of a pool or all. Returns None if no metrics are read there.

    `teams`: only what these held.
    """
    pools = {p.name: p for p in fleet.pools if pool in (None, p.name)}
    read_to = await ledger.use_views.read_to({p.cluster for p in pools.values()})
    if read_to is None:
        return None
    calendar = calendar_of(fleet)
    by_day = days > MAX_DAYS_BY_HOUR
    if by_day:
        first = calendar.day_start(calendar.day_of(read_to - 1 - (days - 1) * _DAY))
        window = Span(first, calendar.day_end(calendar.day_of(read_to - 1)))
    else:
        window = Span(calendar.hour_start(read_to - days * _DAY), calendar.next_hour(read_to - 1))
    return await use_between(ledger, fleet, window, read_to, by_day=by_day, pool=pool, teams=teams)


async def use_between(
    ledger: Ledger,
    fleet: Fleet,
    window: Span,
    read_to: int,
    *,
    by_day: bool,
    pool: PoolName | None = None,
    teams: frozenset[str] | None = None,
) -> UseHistory:
    """Read a window, up to when metrics are read."""
    calendar = calendar_of(fleet)
    pools = {p.name: p for p in fleet.pools if pool in (None, p.name)}
    window = Span(window.start, min(window.end, calendar.next_hour(read_to - 1)))
    if window.start >= window.end:
        return UseHistory((), by_day, read_to)
    spans = calendar.days(window) if by_day else calendar.hours(window)
    view = UsageView(dict.fromkeys(pools, spans), (), UsageFilter(teams=teams))
    # What runs is counted as far as metrics are read: of the time since nothing is known yet.
    held = await ledger.usage.sums(view.spans, (), view.which, read_to, local=calendar)
    used = await ledger.gpu_use_totals.sums(view, (MetricCode.ENGINE,), local=calendar)
    capacity = await ledger.capacity.sums(
        Span(spans[0].start, spans[-1].end),
        local=calendar,
        by_day=by_day,
        clusters={p.cluster for p in pools.values() if p.slices},
        live_until=read_to,
    )
    cut = [Span(span.start, min(span.end, read_to)) for span in spans]
    return UseHistory(held_spans(pools, cut, held, used, capacity), by_day, read_to)


def held_spans(
    pools: Mapping[PoolName, Pool],
    spans: Sequence[Span],
    held: Iterable[UsageSum],
    used: Iterable[GpuUseSum],
    capacity: Iterable[CapacitySum],
) -> tuple[HeldSpan, ...]:
    """Divide what was held in each span by what was measured in it. Pure.

    Slices count as in reports: as the part of a GPU that each was in that span, by the capacity.
    """
    measured = {(row.span, row.supply): row for row in used}
    devices: dict[tuple[int, PoolName], dict[SliceName | None, int]] = {}
    gpus: dict[tuple[int, PoolName], int] = {}
    for there in capacity:
        key = (there.start, there.supply.pool)
        devices.setdefault(key, {})[there.supply.slice] = there.total
        gpus[key] = gpus.get(key, 0) + there.gpu_seconds
    found: list[dict[HeldKind, Fraction]] = [{} for _ in spans]
    for row in held:
        key = (spans[row.span].start, row.supply.pool)
        totals = {row.supply.slice: 0} | devices.get(key, {})
        part = parts(pools[row.supply.pool].gpu, totals, gpus.get(key, 0))[row.supply.slice]
        for kind, seconds in divided(row.device_seconds, measured.get((row.span, row.supply))).items():
            sums = found[row.span]
            sums[kind] = sums.get(kind, Fraction(0)) + seconds * part
    return tuple(
        HeldSpan(span, {kind: float(seconds) for kind, seconds in sums.items()})
        for span, sums in zip(spans, found, strict=True)
    )


async def report_history(
    ledger: Ledger, fleets: Fleets, caller: Token, days: int, pool: str | None, team: str | None
) -> wire.UseHistory:
    """Report held time of all, of a pool, or of a team whose costs the caller may see."""
    fleet = await fleets.current()
    which = usage_filter(caller, fleet, team, None, pool)  # raises if there is no such team or pool
    teams = None if team is None else which.teams
    found = await use_history(ledger, fleet, days, pool=PoolName(pool) if pool else None, teams=teams)
    if found is None:
        return wire.UseHistory(by_day=days > MAX_DAYS_BY_HOUR, read_to=None, spans=[])
    return wire.UseHistory(
        by_day=found.by_day,
        read_to=datetime.fromtimestamp(found.read_to, UTC),
        spans=[
            wire.HeldSpan(
                start=datetime.fromtimestamp(held.span.start, UTC),
                end=datetime.fromtimestamp(held.span.end, UTC),
                held_gpu_seconds=sum(held.seconds.values()),
                gpu_seconds=dict(held.seconds),
            )
            for held in found.spans
        ],
    )
