"""Format reports and statements as tables. Pure: wire types in, a TableView or lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeVar

from fairway.cli.output.format import Column, Fit, TableView
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Dimension, Label
from fairway.model.cost_unit import divisor_text, parse_divisor
from fairway.model.gpu_use import HeldKind
from fairway.views.costs import HELD_WORDS, KIND_WORDS, AnyRow, row_names
from fairway.wire import costs as wire

Row = TypeVar("Row", bound=AnyRow | wire.EfficiencyRow)

_TOTAL: Final = "TOTAL"
_HELD_COLUMNS: Final = {
    HeldKind.BUSY: "BUSY",
    HeldKind.POOR: "POOR",
    HeldKind.IDLE: "IDLE",
    HeldKind.UNMEASURED: "UNMEAS.",
}
_MEAN_COLUMNS: Final = {"engine": "ENG%", "sm": "SM%", "tensor": "TENSOR%"}
_NOTHING_YET: Final = "list pools:  fairway get pools   list running jobs:  fairway get jobs --state running"


def cost_view(report: wire.CostReport, *, wide: bool) -> TableView:
    """Return a table with one row for each set of labels, then unallocated cost, the total last."""
    per = _divisor_title(report)
    # Where others need the width, hours, parts and percentages are left to -o wide.
    labels = len(report.by)
    columns = [
        *(_label_column(label) for label in report.by),
        *([Column("GPU-HOURS", right=True)] if wide or labels < 4 else []),
        *(
            [
                Column("USAGE", right=True),
                Column("IDLE SHARE", right=True, hide_if_empty=True),
                Column("OVERHEAD", right=True, hide_if_empty=True),
            ]
            if wide or per is None
            else []
        ),
        Column(f"TOTAL {report.currency}", right=True),
        *([Column("%", right=True)] if wide or labels < 3 else []),
        *([Column("PER GPU-HOUR", right=True)] if wide else []),
        *(Column.numbers("COUNT", per) if per is not None else []),
    ]
    titles = {column.title for column in columns}
    total = report.total
    rows = []
    for names, row in _named_rows(report.rows, total, report.by):
        cells = {
            "GPU-HOURS": _or_dash(row.gpu_hours),
            "USAGE": _or_dash(row.usage),
            "IDLE SHARE": _or_dash(row.idle) if total.idle else "",
            "OVERHEAD": _or_dash(row.overhead) if total.overhead else "",
            f"TOTAL {report.currency}": figure(row.total),
            "%": percent(row.total, total.total),
            "PER GPU-HOUR": f"{row.total / row.gpu_hours:,.4f}" if row.gpu_hours else "-",
            "COUNT": _or_dash(row.count or 0),
            per or "": "-" if row.per_unit is None else f"{row.per_unit:,.4f}",
        }
        rows.append([*names, *(text for title, text in cells.items() if title in titles)])
    return TableView(
        columns,
        rows,
        empty=f"no usage and no cost {during(report.window)}",
        hint=_NOTHING_YET,
        notes=document_notes(report),
    )


def _divisor_title(report: wire.CostReport) -> str | None:
    """Return the title of the column with the cost of a unit, `USD/1,000 STEPS`; None: it has none."""
    divisor = parse_divisor(report.per) if report.per is not None else None
    return None if divisor is None else f"{report.currency}/{divisor_text(divisor).upper()}"


def usage_view(report: wire.UsageReport, *, wide: bool) -> TableView:
    """Return a table of GPU-hours, slices as fractions of a GPU; adds slice-hours if there are any."""
    labels = [_label_column(label) for label in report.by]
    slices = report.total.slice_seconds != 0
    columns = [*labels, Column("GPU-HOURS", right=True), Column("%", right=True)]
    if slices:
        columns += [Column("SLICE-HOURS", right=True), Column("SLICE-SECONDS", right=True)]
    if wide:
        columns.append(Column("DEVICE-SECONDS", right=True))
    rows = []
    for names, row in _named_rows(report.rows, report.total, report.by):
        cells = [*names, figure(row.gpu_hours), percent(row.gpu_hours, report.total.gpu_hours)]
        if slices:
            cells += [_or_dash(row.slice_hours), _or_dash(row.slice_seconds)]
        if wide:
            cells.append(figure(row.device_seconds))
        rows.append(cells)
    return TableView(
        columns,
        rows,
        empty=f"no usage {during(report.window)}",
        hint=_NOTHING_YET,
        notes=document_notes(report),
    )


def commitments_view(report: wire.CommitmentReport, *, wide: bool) -> TableView:
    """Return a table with one row for each commitment; `wide` adds what its GPU-hours became."""
    columns = [
        Column("COMMITMENT", fit=Fit.MIDDLE),
        Column("GPUS", right=True),
        Column("UNTIL"),
        *Column.numbers("PRICE", "LIST", "COVERAGE", "UTILISED", "BREAK-EVEN", f"SAVED {report.currency}"),
        *(Column.numbers("USED H", "IDLE H", "ABSENT H", "UNCOVERED H") if wide else []),
    ]
    rows = []
    for row in report.commitments:
        shares = (row.coverage, row.utilisation, row.break_even)
        cells = [
            row.id,
            str(row.gpus),
            row.until.isoformat(),
            f"{row.price:f}",
            f"{row.list_price:f}",
            *("-" if share is None else f"{share:.0f} %" for share in shares),
            figure(row.saved),
        ]
        hours = (row.used_hours, row.idle_hours, row.absent_hours, row.uncovered_hours)
        rows.append([*cells, *(figure(each) for each in hours if wide)])
    return TableView(
        columns,
        rows,
        empty=f"no commitment was in force {during(report.window)}",
        hint="commitments are in the fleet file, under the prices of a pool",
        alarming=frozenset(i for i, row in enumerate(report.commitments) if row.saved < 0),
    )


def waste_view(report: wire.WasteReport, *, wide: bool) -> TableView:
    """Return a table of unused device-hours by reason, and their cost; `wide` adds each reason's cost."""
    zero = Decimal(0)
    kinds = [k for k in UNUSED_KINDS if k is not ChargeKind.COMMITMENT and report.total.hours.get(k)]
    cost_kinds = [k for k in UNUSED_KINDS if report.total.amounts.get(k)] if wide else []
    held = _held_kinds(report)
    columns = [
        *(_label_column(label) for label in report.by),
        *Column.numbers("HOURS", "USED"),
        *(Column("FRAGM." if k is ChargeKind.FRAGMENTED else k.value.upper(), right=True) for k in kinds),
        *Column.numbers("UNUSED %", f"COST {report.currency}"),
        *(Column(f"{k.value.upper()} {report.currency}", right=True) for k in cost_kinds),
        *(Column(HELD_WORDS[k].upper(), right=True) for k in held if wide),
        *(Column(f"{HELD_WORDS[k].upper()} {report.currency}", right=True) for k in held if wide),
    ]
    rows = [
        [
            *names,
            _hours(row.capacity_hours, report),
            _hours(row.used_hours, report),
            *(_hours(row.hours.get(k, zero), report) for k in kinds),
            percent(row.capacity_hours - row.used_hours, row.capacity_hours),
            figure(row.amount),
            *(_or_dash(row.amounts.get(k, zero)) for k in cost_kinds),
            *(_hours(row.held_hours.get(k, zero), report) for k in held if wide),
            *(_or_dash(row.held_amounts.get(k, zero)) for k in held if wide),
        ]
        for names, row in _named_rows(report.rows, report.total, report.by)
    ]
    notes = document_notes(report)
    if rows:
        notes.append(
            "Hours are GPU-hours, or slice-hours of pools with slices. -o wide shows the cost by reason."
        )
    if held:
        notes += _held_notes("used", report.total.held_hours, report.total.held_amounts, report.currency)
    if absent := report.total.amounts.get(ChargeKind.COMMITMENT):
        notes.append(
            f"{figure(absent)} {report.currency} of the cost is for committed GPUs that did not exist"
        )
    return TableView(
        columns,
        rows,
        empty=f"no capacity was recorded {during(report.window)}",
        hint="capacity is recorded while a server observes the pool:  fairway get pools",
        notes=notes,
    )


def efficiency_view(report: wire.EfficiencyReport, *, wide: bool) -> TableView:
    """Return a table of held GPU-hours by what the GPUs did, with means; `wide` has every figure.

    What is not measured is a dash, never 0.
    """
    zero, total, currency = Decimal(0), report.total, report.currency
    labels = len(report.by)
    kinds = [k for k in HeldKind if total.hours.get(k)]
    # Where the width is needed, busy hours are left to -o wide: the mean of the engine tells them.
    brief = {HeldKind.IDLE} if labels > 1 else {*_HELD_COLUMNS} - {HeldKind.BUSY}
    shown = kinds if wide else [k for k in kinds if k in brief]
    amounts = kinds if wide else [k for k in kinds if k is HeldKind.IDLE]
    means = ("engine", "sm", "tensor") if wide or labels < 3 else ("engine",)
    has_co2 = wide and total.co2_kg is not None
    columns = [
        *(_label_column(label) for label in report.by),
        Column("HELD", right=True),
        *(Column(_HELD_COLUMNS[k], right=True) for k in shown),
        *(Column(_MEAN_COLUMNS[name], right=True) for name in means),
        *(Column.numbers("MEMORY GIB", "PEAK GIB", "WATTS") if wide else ()),
        Column(f"COST {currency}", right=True),
        *(
            Column(f"{HELD_WORDS[k].upper()} {currency}" if wide else "OF IT IDLE", right=True)
            for k in amounts
        ),
        *(Column.numbers("KWH") if wide else ()),
        *(Column.numbers("CO2 KG") if has_co2 else ()),
    ]
    rows = []
    for names, row in _named_rows(report.rows, total, report.by):
        cells = [
            *names,
            *(_whole_if(x, total.held_hours) for x in (row.held_hours, *_parts(row.hours, shown))),
        ]
        cells += [_mean(getattr(row, name), 100) for name in means]
        if wide:
            cells += [_mean(value, 1) for value in (row.memory_gib, row.memory_peak_gib, row.watts)]
        cells += [_whole_if(x, total.amount) for x in (row.amount, *_parts(row.amounts, amounts))]
        if wide:
            cells.append(_or_dash(row.energy_kwh))
        if has_co2:
            cells.append(_or_dash(row.co2_kg or zero))
        rows.append(cells)
    notes = document_notes(report)
    notes += _held_notes("held", total.hours, total.amounts, currency) if rows else []
    if total.energy_kwh:
        co2 = "" if total.co2_kg is None else f", {figure(total.co2_kg)} kg of CO2"
        notes.append(f"Measured energy: {figure(total.energy_kwh)} kWh{co2}")
    return TableView(
        columns,
        rows,
        empty=f"no usage {during(report.window)}",
        hint=_NOTHING_YET,
        notes=notes,
    )


def statements_view(found: wire.Statements) -> TableView:
    """Return a table with the lines of each team's statement, followed by their total."""
    columns = [
        Column("TEAM", fit=Fit.MIDDLE),
        Column("MONTH"),
        Column("FOR"),
        Column("POOL", fit=Fit.MIDDLE),
        Column("HOURS", right=True),
        Column(found.currency, right=True),
    ]
    rows: list[list[str]] = []
    alarming: set[int] = set()
    for statement in found.statements:
        name = statement.team or "(nobody)"
        for line in statement.lines:
            correction = line.used_in != found.month
            if correction:
                alarming.add(len(rows))
            what = KIND_WORDS[line.kind] + (
                " share" if statement.team and line.kind is not ChargeKind.USAGE else ""
            )
            where = (
                line.pool + (f"/{line.slice}" if line.slice else "")
                if line.pool
                else f"{line.cluster} (cluster)"
            )
            rows.append(
                [
                    name,
                    line.used_in,
                    f"correction: {what}" if correction else what,
                    where,
                    _or_dash(line.hours),
                    figure(line.amount),
                ]
            )
            name = ""
        rows.append([name, "", f"total {statement.team or '(nobody)'}", "", "", figure(statement.total)])
        rows.append([""] * len(columns))
    if rows:
        rows.append([_TOTAL, found.month, "", "", "", figure(found.total)])
    return TableView(
        columns,
        rows,
        empty=f"no usage and no cost in {found.month}",
        hint=_NOTHING_YET,
        notes=[*_restricted(found.of_teams), *found.notes, *statement_state(found)],
        alarming=frozenset(alarming),
    )


def price_points_view(found: wire.PricePoints, *, history: bool) -> TableView:
    """Return a table with one row for each spot price, newest first."""
    columns = [
        Column("AT"),
        Column(f"{found.currency}/GPU-HOUR", right=True),
        *Column.names("STORED", "BY"),
        Column("STATE", hide_if_empty=True),
    ]
    rows = [
        [
            f"{p.at:%Y-%m-%d %H:%M:%SZ}",
            "" if p.per_gpu_hour is None else figure(p.per_gpu_hour),
            f"{p.stored_at:%Y-%m-%d %H:%MZ}",
            p.by,
            _point_state(p) if history else "",
        ]
        for p in found.points
    ]
    return TableView(
        columns,
        rows,
        empty=f"no spot prices are stored for {found.pool}",
        hint=f"import some:  fairway price points {found.pool} FILE",
    )


def _point_state(point: wire.PricePointReport) -> str:
    if point.per_gpu_hour is None:
        return "withdrawal"
    return "in force" if point.in_force else "replaced"


def prices_view(found: wire.Prices) -> TableView:
    """Return a table with one row for each pool; slices with a price of their own follow it."""
    columns = [
        *Column.names("POOL", "CLUSTER", "GPU"),
        Column("CAPACITY"),
        Column(f"{found.currency}/GPU-HOUR", right=True),
        Column("DISCOUNT", right=True, hide_if_empty=True),
        Column("COMMITTED", right=True, hide_if_empty=True),
        Column("THEN", right=True, hide_if_empty=True),
        Column("NOTE", fit=Fit.END, hide_if_empty=True),
    ]
    rows = []
    for p in found.pools:
        committed = (
            f"{p.committed_gpus} at {figure(p.commitment_price or Decimal(0))}" if p.committed_gpus else ""
        )
        rows.append(
            [
                p.pool,
                p.cluster,
                p.gpu,
                p.capacity.value,
                figure(p.list_price if p.spot is None else p.spot),
                percent(p.discount, Decimal(1)) if p.discount else "",
                committed,
                f"{figure(p.next_price)} from {p.next_since}" if p.next_price is not None else "",
                f"spot since {p.spot_at:%Y-%m-%d %H:%MZ}, list {figure(p.list_price)}" if p.spot_at else "",
            ]
        )
        rows += [
            ["", "", "", f"a {s}", figure(price), "", "", "", "its own price"]
            for s, price in p.slices.items()
        ]
    return TableView(
        columns,
        rows,
        empty="no pools yet",
        hint="add prices of pools to the fleet file:  fairway apply -f fleet.yaml",
    )


def statement_state(found: wire.Statements) -> list[str]:
    """Format whether the statement can still change: closed, open, or month not over."""
    if found.closed_at is not None:
        return [
            f"{found.month} was closed {found.closed_at:%Y-%m-%d %H:%MZ} by {found.closed_by}. It does "
            "not change; later findings are corrected in the next month."
        ]
    if found.over:
        return [
            f"{found.month} is open. Close it with:  fairway report chargeback --month {found.month} --close"
        ]
    return [f"{found.month} has not ended: these are the charges so far."]


def document_notes(report: wire.Document) -> list[str]:
    """Return the notes of a report: its window, the teams it is restricted to, and its own notes."""
    return [
        f"{during(report.window)}, {report.window.timezone}",
        *_restricted(report.of_teams),
        *report.notes,
    ]


def during(window: wire.Window) -> str:
    """Format a window: `on 2026-10-03`, `from 2026-10-01 to 2026-10-15`."""
    if window.first_day == window.last_day:
        return f"on {window.first_day}"
    return f"from {window.first_day} to {window.last_day}"


def figure(value: Decimal | int) -> str:
    """Format a number with thousands separators."""
    return f"{value:,}"


def percent(part: Decimal, total: Decimal) -> str:
    """Format `part` as a percentage of `total`, e.g. `12.5`; a dash if `total` is zero."""
    return f"{part / total * 100:.1f}" if total else "-"


def _named_rows(rows: Sequence[Row], total: Row, by: Sequence[Dimension]) -> list[tuple[list[str], Row]]:
    """Return the rows with their names, the total last."""
    named = [(row_names(row, by), row) for row in rows]
    return [*named, ([_TOTAL, *[""] * (len(by) - 1)], total)] if named else []


def _label_column(label: Dimension) -> Column:
    return Column(label.value.upper(), fit=Fit.KEEP if label is Label.DAY else Fit.MIDDLE)


def _or_dash(value: Decimal | int) -> str:
    return figure(value) if value else "-"


def _hours(value: Decimal, report: wire.WasteReport) -> str:
    """Format hours; for a large fleet as whole hours, so that the table fits."""
    if report.total.capacity_hours >= 100_000:
        return f"{value:,.0f}" if value else "-"
    return _or_dash(value)


def _held_kinds(report: wire.WasteReport) -> list[HeldKind]:
    """Return what became of the used hours; nothing where no GPU was measured."""
    found = [kind for kind in HeldKind if report.total.held_hours.get(kind)]
    return [] if found == [HeldKind.UNMEASURED] else found


def _held_notes(
    what: str, hours: Mapping[HeldKind, Decimal], amounts: Mapping[HeldKind, Decimal], currency: str
) -> list[str]:
    """Return a line for each part of the held hours, with its money."""
    words = {kind: kind.value.replace("_", " ") for kind in HeldKind if hours.get(kind)}
    return [
        f"{what}: {word} {figure(hours[kind])} hours, {figure(amounts[kind])} {currency}"
        for kind, word in words.items()
    ]


def _parts(values: Mapping[HeldKind, Decimal], kinds: Sequence[HeldKind]) -> list[Decimal]:
    return [values.get(kind, Decimal(0)) for kind in kinds]


def _whole_if(value: Decimal, largest: Decimal) -> str:
    """Format a figure; whole where the largest one is large, so that the table fits."""
    if largest >= 100_000:
        return f"{value:,.0f}" if value else "-"
    return _or_dash(value)


def _mean(value: float | None, factor: int) -> str:
    """Format a mean. Returns a dash for what was not measured."""
    return "-" if value is None else f"{value * factor:.0f}"


def _restricted(teams: Sequence[str] | None) -> list[str]:
    if teams is None:
        return []
    return [f"Only the teams that you may see: {', '.join(teams) or 'none'}. Operators see all teams."]
