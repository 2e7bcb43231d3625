"""Convert reports to flat records for CSV and Parquet files. Pure.

The rows sum to the report's total, which is not a row itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from fairway.cost.csv_cells import escape_cell
from fairway.model.charge import UNUSED_KINDS
from fairway.model.gpu_use import HeldKind
from fairway.views.costs import AnyRow
from fairway.wire import costs as wire

_MEANS: Final = ("engine", "sm", "tensor", "memory_gib", "memory_peak_gib", "watts")

Value: TypeAlias = str | int | Decimal
Record: TypeAlias = dict[str, Value]
Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport


def report_records(report: Report | wire.EfficiencyReport) -> list[Record]:
    """Return one record for each row of the report, labels first."""
    return [_record(report, row) for row in report.rows]


def statement_records(statements: wire.Statements) -> list[Record]:
    """Return one record for each line of each team's statement."""
    return [
        {
            "month": statements.month,
            "team": statement.team,
            "used_in": line.used_in,
            "kind": line.kind.value,
            "cluster": line.cluster,
            "pool": line.pool,
            "slice": line.slice,
            "hours": line.hours,
            "amount": line.amount,
            "currency": statements.currency,
        }
        for statement in statements.statements
        for line in statement.lines
    ]


def csv_text(records: Sequence[Record]) -> str:
    """Format records as CSV with a header. Returns an empty string if there are none."""
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: escape_cell(value) for key, value in record.items()} for record in records)
    return out.getvalue()


def _record(report: Report | wire.EfficiencyReport, row: AnyRow | wire.EfficiencyRow) -> Record:
    record: Record = {label.value: text for label, text in zip(report.by, row.labels, strict=True)}
    match row:
        case wire.CostRow():
            record |= {
                "kind": row.kind.value if row.kind else "",
                "others": row.others,
                "gpu_hours": row.gpu_hours,
                "usage": row.usage,
                "idle_share": row.idle,
                "overhead_share": row.overhead,
                "total": row.total,
                "currency": report.currency,
            }
            if isinstance(report, wire.CostReport) and report.per is not None:
                # Without a count both are empty, never 0.
                counted = {"count": row.count, "per_unit": row.per_unit}
                record |= {name: "" if value is None else str(value) for name, value in counted.items()}
                record |= {"per": report.per}
        case wire.UsageRow():
            record |= {
                "others": row.others,
                "gpu_hours": row.gpu_hours,
                "slice_hours": row.slice_hours,
                "device_seconds": row.device_seconds,
                "slice_seconds": row.slice_seconds,
            }
        case wire.WasteRow():
            record |= {"capacity_hours": row.capacity_hours, "used_hours": row.used_hours}
            record |= {f"{k.value}_hours": row.hours.get(k, Decimal(0)) for k in UNUSED_KINDS}
            record |= {f"{k.value}_amount": row.amounts.get(k, Decimal(0)) for k in UNUSED_KINDS}
            record |= {"amount": row.amount, "currency": report.currency}
            record |= {f"held_{k.value}_hours": row.held_hours.get(k, Decimal(0)) for k in HeldKind}
            record |= {f"held_{k.value}_amount": row.held_amounts.get(k, Decimal(0)) for k in HeldKind}
        case wire.EfficiencyRow():
            record |= {"others": row.others, "held_hours": row.held_hours}
            record |= {f"{k.value}_hours": row.hours.get(k, Decimal(0)) for k in HeldKind}
            record |= {"amount": row.amount}
            record |= {f"{k.value}_amount": row.amounts.get(k, Decimal(0)) for k in HeldKind}
            record |= {"currency": report.currency}
            # Ratios and means of nothing are empty, never 0.
            means = {name: getattr(row, name) for name in _MEANS}
            record |= {name: "" if value is None else str(value) for name, value in means.items()}
            record |= {"energy_kwh": row.energy_kwh, "co2_kg": "" if row.co2_kg is None else str(row.co2_kg)}
    return record
