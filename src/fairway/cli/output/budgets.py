"""Format budgets as a table. Pure: wire types in, a TableView out."""

from __future__ import annotations

from decimal import Decimal

from fairway.cli.output.format import UNKNOWN, Column, Fit, TableView
from fairway.model.budget import Every
from fairway.wire import budgets as wire


def budgets_view(found: wire.Budgets, *, wide: bool) -> TableView:
    """Return a table with one row for each budget; holds and their remedies are notes below it."""
    columns = [
        Column("BUDGET", fit=Fit.MIDDLE),
        Column("PERIOD"),
        *Column.numbers("AMOUNT", "SPENT", "%"),
        Column("FORECAST"),
        Column("RANGE", hide_if_empty=True),
        Column("HOLD", hide_if_empty=True),
    ]
    if wide:
        columns += [
            Column("RAISED", right=True, hide_if_empty=True),
            *Column.numbers("PER DAY"),
            Column("RUNS OUT"),
            Column("AT LIMIT"),
            Column("RUNNING"),
            Column("WARN AT", right=True),
            Column("COUNTS"),
        ]
        columns += [Column("LAST", fit=Fit.END)]
    return TableView(
        columns,
        [_row(b, wide=wide) for b in found.budgets],
        notes=[line for b in found.budgets if b.summary for line in (b.summary, f"hint: {b.hint}")],
        alarming=frozenset(i for i, b in enumerate(found.budgets) if b.hold or b.outlook == "spent"),
        empty="no budgets" if found.of_teams is None else "your teams have no budgets",
        hint="give a team one in the fleet file:  budget: { amount: 120000, at_limit: low-only }",
    )


def forecasts_view(found: wire.Forecasts) -> TableView:
    """Return a table with one row for each payer."""
    checked = max((f.checked_at for f in found.forecasts), default=None)
    return TableView(
        [
            Column(found.by.upper(), fit=Fit.MIDDLE),
            *Column.numbers(f"SPENT {found.currency}", "EXPECTED"),
            Column("RANGE"),
        ],
        [
            [f.name, _money(f.spent), _money(f.expected.quantize(Decimal(1))), f.range]
            for f in found.forecasts
        ],
        notes=[] if checked is None else [f"computed {checked:%Y-%m-%d %H:%M} UTC"],
        empty="no forecasts yet: they follow from the first usage, and are computed every five minutes",
        hint="fairway report cost",
    )


def _row(b: wire.Budget, *, wide: bool) -> list[str]:
    row = [
        b.name,
        period_name(b),
        f"{_money(b.amount)} {b.currency}",
        UNKNOWN if b.spent is None else _money(b.spent),
        UNKNOWN if b.part is None else f"{b.part:.0f}",
        b.forecast or UNKNOWN,
        b.range,
        b.hold or "",
    ]
    if wide:
        last = b.events[0] if b.events else None
        row += [
            _money(b.raised) if b.raised else "",
            UNKNOWN if b.per_day is None else _money(b.per_day),
            f"not this {b.every}" if b.runs_out is None else b.runs_out.isoformat(),
            b.at_limit,
            b.running,
            f"{(b.warn_at * 100).normalize():f}%",
            b.scope,
            f"{last.at:%Y-%m-%d %H:%M} {last.text}" if last else UNKNOWN,
        ]
    return row


def period_name(b: wire.Budget) -> str:
    """Format the period of a budget: `2026-11`, `2026-Q4`."""
    if b.every is Every.MONTH:
        return f"{b.period:%Y-%m}"
    return f"{b.period:%Y}-Q{(b.period.month + 2) // 3}"


def _money(amount: Decimal) -> str:
    is_integer = amount == amount.to_integral_value()
    return f"{amount:,.0f}" if is_integer or abs(amount) >= 10_000 else f"{amount:,.2f}"
