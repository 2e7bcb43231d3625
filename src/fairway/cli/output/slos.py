"""Format service level objectives as a table. Pure: wire types in, a TableView out."""

from __future__ import annotations

from fairway.cli.output.format import UNKNOWN, Column, Fit, TableView
from fairway.views.slos import budget_left_text, burn_text, compliance_text, target_text, tone
from fairway.wire import slos as wire


def slos_view(found: wire.Slos, *, wide: bool) -> TableView:
    """Return a table with one row for each objective."""
    columns = [
        Column("SLO", fit=Fit.MIDDLE),
        *Column.numbers("TARGET", "GOOD", "BUDGET LEFT", "BURN 1H", "6H", "1D"),
        Column("OUTLOOK", fit=Fit.END),
    ]
    if wide:
        columns += [*Column.numbers("EVENTS", "LATE"), Column("COUNTED TO"), Column("OBJECTIVE", fit=Fit.END)]
    behind = min((slo.counted_to for slo in found.slos if slo.counted_to is not None), default=None)
    return TableView(
        columns,
        [_row(slo, wide=wide) for slo in found.slos],
        notes=[] if behind is None else [f"counted up to {behind:%Y-%m-%d %H:%M} UTC"],
        alarming=frozenset(i for i, slo in enumerate(found.slos) if tone(slo) == "bad"),
        empty="no SLOs" if found.of_teams is None else "your teams have no SLOs",
        hint="add to the fleet file:  slos: { research: { team: research, starts_within: 1h, target: 95% } }",
    )


def _row(slo: wire.Slo, *, wide: bool) -> list[str]:
    row = [
        slo.name,
        target_text(slo),
        compliance_text(slo) or UNKNOWN,
        budget_left_text(slo) or UNKNOWN,
        *(burn_text(slo, window) or UNKNOWN for window in ("1h", "6h", "1d")),
        slo.outlook,
    ]
    if wide:
        counted_to = UNKNOWN if slo.counted_to is None else f"{slo.counted_to:%Y-%m-%d %H:%M}"
        row += [f"{slo.good + slo.bad:,} {slo.unit}", f"{slo.bad:,}", counted_to, slo.text]
    return row
