"""Reports, statements and prices in wire types. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from fairway.cost.calendar import Window
from fairway.cost.report import HUNDREDTH, ReportColumn, ReportRow
from fairway.cost.rounding import rounded
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import PoolName
from fairway.model.price import PricePoint
from fairway.services.reports import CapacityDay, ReportQuestion, ReportResult, WasteResult, WasteRow
from fairway.services.statements import Statement, StatementEntry
from fairway.wire import costs as wire

_EXACT: Final = Decimal("0.000000000001")


def cost(
    fleet: Fleet, question: ReportQuestion, answer: ReportResult, said: Mapping[str, Any]
) -> wire.CostReport:
    """`said`: what every document says of who asked and what for."""
    return wire.CostReport(
        **_document(fleet, question, answer.window),
        **said,
        rows=[_cost_row(row) for row in answer.table.rows],
        total=_cost_row(answer.table.total),
    )


def usage(
    fleet: Fleet, question: ReportQuestion, answer: ReportResult, said: Mapping[str, Any]
) -> wire.UsageReport:
    """What was held."""
    return wire.UsageReport(
        **_document(fleet, question, answer.window),
        **said,
        rows=[_usage_row(row) for row in answer.table.rows],
        total=_usage_row(answer.table.total),
    )


def waste(
    fleet: Fleet, question: ReportQuestion, answer: WasteResult, said: Mapping[str, Any]
) -> wire.WasteReport:
    """What nobody used."""
    return wire.WasteReport(
        **_document(fleet, question, answer.window),
        **said,
        rows=[_waste_row(row) for row in answer.rows],
        total=_waste_row(answer.total),
    )


def capacity(fleet: Fleet, window_: Window, days: Iterable[CapacityDay]) -> wire.CapacityReport:
    """What was there by day and pool."""
    return wire.CapacityReport(
        fleet=fleet.name,
        currency=fleet.currency,
        window=window(fleet, window_),
        days=[
            wire.CapacityDay(day=d.day, pool=d.pool, gpu_seconds=d.gpu_seconds, cost=_exact(d.cost))
            for d in days
        ],
    )


def statements(
    fleet: Fleet, found: Statement, seen: frozenset[str] | None, wanted: frozenset[str] | None
) -> wire.Statements:
    """A month by team: those wanted (None: all), or seen."""
    lines = [line for line in found.lines if wanted is None or line.told.team in wanted]
    by_team: dict[str, list[wire.StatementLine]] = {}
    # Teams by name, what nobody carries last; this month before what it corrects.
    for i in sorted(range(len(lines)), key=lambda i: _line_order(lines[i], found.month)):
        by_team.setdefault(lines[i].told.team, []).append(_line(lines[i]))
    teams = [_team_statement(team, each, found.month) for team, each in by_team.items()]
    return wire.Statements(
        fleet=fleet.name,
        month=_month(found.month),
        currency=found.currency,
        timezone=found.timezone,
        closed_at=found.closed.closed_at if found.closed else None,
        closed_by=found.closed.by if found.closed else None,
        over=found.over,
        of_teams=None if seen is None else sorted(seen),
        statements=teams,
        total=sum((t.total for t in teams), Decimal(0)),
    )


def prices(fleet: Fleet, today: date, points: Mapping[PoolName, Sequence[PricePoint]]) -> wire.Prices:
    """What each pool costs today."""
    return wire.Prices(
        currency=fleet.currency,
        day=today,
        pools=[_price(p, today, points.get(p.name, ())) for p in sorted(fleet.pools, key=lambda p: p.name)],
    )


def window(fleet: Fleet, found: Window) -> wire.Window:
    """The time a document is about."""
    return wire.Window(
        first_day=found.first,
        last_day=found.until - timedelta(days=1),
        start=datetime.fromtimestamp(found.span.start, UTC),
        end=datetime.fromtimestamp(found.end, UTC),
        timezone=fleet.cost.timezone,
    )


def _document(fleet: Fleet, question: ReportQuestion, found: Window) -> dict[str, Any]:
    return {
        "fleet": fleet.name,
        "currency": fleet.currency,
        "window": window(fleet, found),
        "by": list(question.by),
    }


def _cost_row(row: ReportRow) -> wire.CostRow:
    return wire.CostRow(
        labels=list(row.labels),
        kind=row.kind,
        others=row.others,
        gpu_hours=row.gpu_hours,
        usage=row.amounts[ReportColumn.USAGE],
        idle=row.amounts[ReportColumn.IDLE],
        overhead=row.amounts[ReportColumn.OVERHEAD],
        total=row.total,
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
        capacity_hours=row.capacity_hours,
        used_hours=row.used_hours,
        hours=dict(row.hours),
        amounts=dict(row.amounts),
        amount=row.amount,
    )


def _line_order(line: StatementEntry, month: date) -> tuple[Any, ...]:
    t = line.told
    supply = str(t.supply) if t.supply else ""
    return (
        t.team == "",
        t.team,
        line.used_in != month,
        line.used_in,
        list(type(t.kind)).index(t.kind),
        supply,
        t.cluster,
    )


def _line(line: StatementEntry) -> wire.StatementLine:
    t = line.told
    return wire.StatementLine(
        used_in=_month(line.used_in),
        kind=t.kind,
        cluster=t.cluster,
        pool=t.supply.pool if t.supply else "",
        slice=(t.supply.slice or "") if t.supply else "",
        hours=rounded(Fraction(t.device_seconds, 3600), HUNDREDTH),
        amount=t.amount,
    )


def _team_statement(team: str, lines: list[wire.StatementLine], month: date) -> wire.TeamStatement:
    zero = Decimal(0)
    return wire.TeamStatement(
        team=team,
        lines=lines,
        corrections=sum((x.amount for x in lines if x.used_in != _month(month)), zero),
        total=sum((x.amount for x in lines), zero),
    )


def _price(pool: Pool, today: date, points: Sequence[PricePoint]) -> wire.PoolPrice:
    held = [c for c in pool.pricing.commitments if c.since <= today < c.until]
    gpus = sum(c.gpus for c in held)
    coming = next((s for s in pool.pricing.steps if s.since > today), None)
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
        commitment_price=_mean([(c.gpus, c.per_gpu_hour) for c in held]) if gpus else None,
        next_price=coming.per_gpu_hour if coming else None,
        next_since=coming.since if coming else None,
    )


def _mean(weighted: Sequence[tuple[int, Decimal]]) -> Decimal:
    whole = sum(n for n, _ in weighted)
    mean = sum((n * price for n, price in weighted), Decimal(0)) / whole
    return mean.quantize(Decimal("0.0001")).normalize() + Decimal("0.00")


def _exact(amount: Fraction) -> Decimal:
    return round(amount / Fraction(_EXACT)) * _EXACT


def _month(day: date) -> str:
    return f"{day:%Y-%m}"
