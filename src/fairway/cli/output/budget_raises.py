"""Format raises of budgets as a table and as sentences. Pure: wire types in, text out."""

from __future__ import annotations

from fairway.cli.output.format import Column, Fit, TableView, moment
from fairway.cost.budget_text import day_text, money_text, period_text
from fairway.wire import budget_raises as wire


def raises_view(found: wire.BudgetRaises, *, wide: bool) -> TableView:
    """Return a table with one row for each raise."""
    columns = [
        *Column.numbers("ID"),
        Column("TEAM", fit=Fit.MIDDLE),
        Column("FOR"),
        *Column.numbers("AMOUNT"),
        Column("STATE"),
        *Column.names("REQUESTED BY", "DECIDED BY"),
        Column("REASON", fit=Fit.END),
    ]
    if wide:
        columns += [Column("REQUESTED"), Column("DECIDED"), Column("COMMENT", fit=Fit.END)]
    rows = []
    for one in found.raises:
        row = [
            str(one.id),
            one.team,
            period_text(one.period, one.every),
            _amount(one),
            one.state,
            one.requested_by,
            one.decided_by or "",
            one.reason,
        ]
        if wide:
            row += [moment(one.requested_at, ""), moment(one.decided_at, ""), one.comment]
        rows.append(row)
    mine = [one for one in found.raises if one.may_approve]
    return TableView(
        columns,
        rows,
        notes=[f"hint: fairway budget approve {mine[-1].id}"] if mine else [],
        empty="no requests wait for a decision",
        hint="request more for a team:  fairway budget raise TEAM AMOUNT --reason TEXT",
    )


def requested_text(one: wire.BudgetRaise) -> list[str]:
    """Say what was requested, and what happens next."""
    return [
        f"requested {_amount(one)} more for {one.team} until {day_text(one.until)} (request {one.id})",
        f"an operator or a lead of a parent team decides:  fairway budget approve {one.id}",
    ]


def decided_text(one: wire.BudgetRaise) -> str:
    """Say what was decided."""
    if one.state == "approved":
        return f"{one.team} may spend {_amount(one)} more until {day_text(one.until)}"
    return f"request {one.id} of {one.team} is denied"


def _amount(one: wire.BudgetRaise) -> str:
    return f"{money_text(one.amount, like=one.amount)} {one.currency}"
