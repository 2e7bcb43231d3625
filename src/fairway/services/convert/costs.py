"""Convert reports, statements and prices to wire types. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from fairway.cost.calendar import Window
from fairway.cost.commitments import CommitmentUse
from fairway.cost.efficiency import EfficiencyRow
from fairway.cost.report import ReportColumn, ReportRow
from fairway.cost.rounding import HUNDREDTH, rounded
from fairway.cost.unit_cost import cost_per
from fairway.ledger.records.costs import StoredPricePoint
from fairway.model.cost_unit import CostDivisor, size_of
from fairway.model.fleet import Fleet, Pool
from fairway.model.gpu_use import HeldKind, MetricCode
from fairway.model.names import PoolName
from fairway.model.price import Commitment, PricePoint, cent, commitment_ids
from fairway.services.reports import (
    CapacityDay,
    EfficiencyResult,
    ReportQuery,
    ReportResult,
    WasteResult,
    WasteRow,
)
from fairway.services.statements import Statement, StatementEntry
from fairway.wire import costs as wire

_EXACT: Final = Decimal("0.000000000001")
_PRICE_STEP: Final = Decimal("0.0001")


def cost(
    fleet: Fleet, query: ReportQuery, result: ReportResult, common: Mapping[str, Any]
) -> wire.CostReport:
    """Convert a report of cost; `common` are the fields that every report has for its caller."""
    return wire.CostReport(
        **_document(fleet, query, result.window),
        **common,
        per=None if query.per is None else str(query.per),
        rows=[_cost_row(row, query.per) for row in result.table.rows],
        total=_cost_row(result.table.total, query.per),
    )


def usage(
    fleet: Fleet, query: ReportQuery, result: ReportResult, common: Mapping[str, Any]
) -> wire.UsageReport:
    """Convert a report of usage."""
    return wire.UsageReport(
        **_document(fleet, query, result.window),
        **common,
        rows=[_usage_row(row) for row in result.table.rows],
        total=_usage_row(result.table.total),
    )


def waste(
    fleet: Fleet, query: ReportQuery, result: WasteResult, common: Mapping[str, Any]
) -> wire.WasteReport:
    """Convert a report of unused capacity."""
    return wire.WasteReport(
        **_document(fleet, query, result.window),
        **common,
        rows=[_waste_row(row) for row in result.rows],
        total=_waste_row(result.total),
    )


def efficiency(
    fleet: Fleet, query: ReportQuery, result: EfficiencyResult, common: Mapping[str, Any]
) -> wire.EfficiencyReport:
    """Convert a report of what became of the held GPU time."""
    known = [c.name for c in fleet.clusters if c.energy.co2_grams_per_kwh is not None]
    unknown = sorted({c.name for c in fleet.clusters} - set(known))
    notes = []
    if known and unknown:
        notes.append(f"no CO2 of {', '.join(unknown)}: the fleet file has no co2_grams_per_kwh for it")
    if not result.table.total.use.measured and result.table.rows:
        notes.append(
            "nothing was measured yet: metrics are read in windows of five minutes, a minute after each"
            if any(c.telemetry is not None for c in fleet.clusters)
            else "nothing was measured: clusters.NAME.telemetry of the fleet file says where metrics are"
        )
    return wire.EfficiencyReport(
        **_document(fleet, query, result.window),
        **common,
        notes=notes,
        rows=[_efficiency_row(row, co2=bool(known)) for row in result.table.rows],
        total=_efficiency_row(result.table.total, co2=bool(known)),
    )


def capacity(fleet: Fleet, window_: Window, days: Iterable[CapacityDay]) -> wire.CapacityReport:
    """Convert the capacity by day and pool."""
    return wire.CapacityReport(
        fleet=fleet.name,
        currency=fleet.currency,
        window=window(fleet, window_),
        days=[
            wire.CapacityDay(day=d.day, pool=d.pool, gpu_seconds=d.gpu_seconds, cost=_exact(d.cost))
            for d in days
        ],
    )


def commitments(
    fleet: Fleet, window_: Window, uses: Iterable[tuple[PoolName, Commitment, CommitmentUse]]
) -> wire.CommitmentReport:
    """Convert the use of commitments."""
    quantum = cent(fleet.currency)
    ids = {p.name: commitment_ids(p.name, p.pricing.commitments) for p in fleet.pools}
    return wire.CommitmentReport(
        fleet=fleet.name,
        currency=fleet.currency,
        window=window(fleet, window_),
        commitments=[
            wire.CommitmentRow(
                pool=pool,
                id=ids.get(pool, {}).get(c) or c.id or f"{pool}-{c.since}",
                gpus=c.gpus,
                since=c.since,
                until=c.until,
                price=c.per_gpu_hour,
                list_price=rounded(use.list_price, _PRICE_STEP),
                used_hours=rounded(use.used, HUNDREDTH),
                idle_hours=rounded(use.idle, HUNDREDTH),
                absent_hours=rounded(use.absent, HUNDREDTH),
                uncovered_hours=rounded(use.uncovered, HUNDREDTH),
                coverage=_percent(use.coverage),
                utilisation=_percent(use.utilisation),
                break_even=_percent(use.break_even),
                saved=rounded(use.saved, quantum),
            )
            for pool, c, use in uses
        ],
    )


def _percent(part: Fraction | None) -> Decimal | None:
    return None if part is None else rounded(100 * part, Decimal("0.1"))


def statements(
    fleet: Fleet, found: Statement, visible: frozenset[str] | None, wanted: frozenset[str] | None
) -> wire.Statements:
    """Convert a month's statement by team, for the `wanted` teams; None is all."""
    entries = [entry for entry in found.lines if wanted is None or entry.billed.is_of(wanted)]
    by_team: dict[str, list[wire.StatementLine]] = {}
    # Teams by name, lines that nobody pays last; this month before the months it corrects.
    for entry in sorted(entries, key=lambda entry: _entry_order(entry, found.month)):
        by_team.setdefault(entry.billed.team, []).append(_line(entry))
    teams = [_team_statement(team, _merged(lines), found.month) for team, lines in by_team.items()]
    return wire.Statements(
        fleet=fleet.name,
        month=_month(found.month),
        currency=found.currency,
        timezone=found.timezone,
        closed_at=found.closed.closed_at if found.closed else None,
        closed_by=found.closed.by if found.closed else None,
        over=found.over,
        of_teams=None if visible is None else sorted(visible),
        statements=teams,
        total=sum((t.total for t in teams), Decimal(0)),
    )


def price_points(fleet: Fleet, pool: str, points: Iterable[StoredPricePoint]) -> wire.PricePoints:
    """Convert the price series of a pool."""
    return wire.PricePoints(
        pool=pool,
        currency=fleet.currency,
        points=[
            wire.PricePointReport(
                at=p.at,
                per_gpu_hour=p.per_gpu_hour,
                by=p.by,
                stored_at=p.kept_at,
                in_force=p.newest and p.per_gpu_hour is not None,
            )
            for p in points
        ],
    )


def prices(fleet: Fleet, today: date, points: Mapping[PoolName, Sequence[PricePoint]]) -> wire.Prices:
    """Convert today's price of each pool."""
    return wire.Prices(
        currency=fleet.currency,
        day=today,
        pools=[_price(p, today, points.get(p.name, ())) for p in sorted(fleet.pools, key=lambda p: p.name)],
    )


def window(fleet: Fleet, found: Window) -> wire.Window:
    """Convert the window of a report."""
    return wire.Window(
        first_day=found.first,
        last_day=found.until - timedelta(days=1),
        start=datetime.fromtimestamp(found.span.start, UTC),
        end=datetime.fromtimestamp(found.end, UTC),
        timezone=fleet.cost.timezone,
    )


def _document(fleet: Fleet, query: ReportQuery, found: Window) -> dict[str, Any]:
    return {
        "fleet": fleet.name,
        "currency": fleet.currency,
        "window": window(fleet, found),
        "by": list(query.by),
    }


def _cost_row(row: ReportRow, per: CostDivisor | None) -> wire.CostRow:
    return wire.CostRow(
        labels=list(row.labels),
        kind=row.kind,
        others=row.others,
        gpu_hours=row.gpu_hours,
        usage=row.amounts[ReportColumn.USAGE],
        idle=row.amounts[ReportColumn.IDLE],
        overhead=row.amounts[ReportColumn.OVERHEAD],
        total=row.total,
        count=row.work.count or None,
        per_unit=cost_per(row.total, row.work.count, size_of(per)) if per else None,
    )


def _usage_row(row: ReportRow) -> wire.UsageRow:
    return wire.UsageRow(
        labels=list(row.labels),
        others=row.others,
        gpu_hours=row.gpu_hours,
        slice_hours=row.slice_hours,
        device_seconds=row.device_seconds,
        slice_seconds=row.slice_seconds,
    )


def _waste_row(row: WasteRow) -> wire.WasteRow:
    return wire.WasteRow(
        labels=list(row.labels),
        others=row.others,
        capacity_hours=row.capacity_hours,
        used_hours=row.used_hours,
        hours=dict(row.hours),
        amounts=dict(row.amounts),
        amount=row.amount,
        held_hours=dict(row.held_hours),
        held_amounts=dict(row.held_amounts),
    )


def _efficiency_row(row: EfficiencyRow, *, co2: bool) -> wire.EfficiencyRow:
    use = row.use
    unmeasured = row.hours.get(HeldKind.UNMEASURED, Decimal(0))
    watts = use.ratio(MetricCode.POWER)
    memory = use.ratio(MetricCode.MEMORY)
    return wire.EfficiencyRow(
        labels=list(row.labels),
        others=row.others,
        held_hours=row.held_hours,
        measured_hours=row.held_hours - unmeasured,
        hours=dict(row.hours),
        amount=row.amount,
        amounts=dict(row.amounts),
        engine=_ratio(use.ratio(MetricCode.ENGINE)),
        sm=_ratio(use.ratio(MetricCode.SM)),
        tensor=_ratio(use.ratio(MetricCode.TENSOR)),
        memory_gib=None if memory is None else round(memory / 1024, 2),
        memory_peak_gib=None if use.peak_memory_mib is None else round(use.peak_memory_mib / 1024, 2),
        watts=None if watts is None else round(watts, 1),
        energy_kwh=row.kwh,
        co2_kg=row.co2_kg if co2 else None,
    )


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, max(0.0, value)), 4)


def _entry_order(entry: StatementEntry, month: date) -> tuple[Any, ...]:
    a = entry.billed
    kind = list(type(a.kind)).index(a.kind)
    supply = str(a.supply) if a.supply else ""
    return (a.team == "", a.team, entry.used_in != month, entry.used_in, kind, supply, a.cluster)


def _line(entry: StatementEntry) -> wire.StatementLine:
    a = entry.billed
    return wire.StatementLine(
        used_in=_month(entry.used_in),
        kind=a.kind,
        cluster=a.cluster,
        pool=a.supply.pool if a.supply else "",
        slice=(a.supply.slice or "") if a.supply else "",
        hours=rounded(Fraction(a.device_seconds, 3600), HUNDREDTH),
        amount=a.amount,
    )


def _merged(lines: list[wire.StatementLine]) -> list[wire.StatementLine]:
    """Add up lines that differ only in what the team was inside of."""
    found: dict[tuple[str, ...], wire.StatementLine] = {}
    for line in lines:
        key = (line.used_in, line.kind, line.cluster, line.pool, line.slice)
        same = found.setdefault(key, line)
        if same is not line:
            sums = {"hours": same.hours + line.hours, "amount": same.amount + line.amount}
            found[key] = line.model_copy(update=sums)
    return list(found.values())


def _team_statement(team: str, lines: list[wire.StatementLine], month: date) -> wire.TeamStatement:
    zero = Decimal(0)
    return wire.TeamStatement(
        team=team,
        lines=lines,
        corrections=sum((x.amount for x in lines if x.used_in != _month(month)), zero),
        total=sum((x.amount for x in lines), zero),
    )


def _price(pool: Pool, today: date, points: Sequence[PricePoint]) -> wire.PoolPrice:
    commitments = [c for c in pool.pricing.commitments if c.since <= today < c.until]
    gpus = sum(c.gpus for c in commitments)
    upcoming = next((s for s in pool.pricing.steps if s.since > today), None)
    last = points[-1] if points else None
    return wire.PoolPrice(
        pool=pool.name,
        cluster=pool.cluster,
        gpu=pool.gpu.name,
        capacity=pool.capacity,
        list_price=pool.list_price(today),
        discount=pool.pricing.discount,
        spot=last.per_gpu_hour if last else None,
        spot_at=last.at if last else None,
        slices={str(s): price for s, price in pool.pricing.slices.items()},
        committed_gpus=gpus,
        commitment_price=_mean([(c.gpus, c.per_gpu_hour) for c in commitments]) if gpus else None,
        next_price=upcoming.per_gpu_hour if upcoming else None,
        next_since=upcoming.since if upcoming else None,
    )


def _mean(weighted: Sequence[tuple[int, Decimal]]) -> Decimal:
    mean = sum((n * price for n, price in weighted), Decimal(0)) / sum(n for n, _ in weighted)
    return mean.quantize(Decimal("0.0001")).normalize() + Decimal("0.00")


def _exact(amount: Fraction) -> Decimal:
    return round(amount / Fraction(_EXACT)) * _EXACT


def _month(day: date) -> str:
    return f"{day:%Y-%m}"
