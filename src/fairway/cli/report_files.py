"""Reports as files for programs: CSV and Parquet. Rows sum to the report's total, which is no row itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from fairway.api import cost_wire as wire
from fairway.cost.cells import plain
from fairway.model.charge import UNUSED_KINDS
from fairway.model.errors import PermanentError

Value: TypeAlias = str | int | Decimal
Record: TypeAlias = dict[str, Value]
Report: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport


def report_records(report: Report) -> list[Record]:
    """A row each, labels first."""
    return [_record(report, row) for row in report.rows]


def statement_records(found: wire.Statements) -> list[Record]:
    """A row for each line of each team."""
    return [
        {
            "month": found.month,
            "team": statement.team,
            "used_in": line.used_in,
            "kind": line.kind.value,
            "cluster": line.cluster,
            "pool": line.pool,
            "slice": line.slice,
            "hours": line.hours,
            "amount": line.amount,
            "currency": found.currency,
        }
        for statement in found.statements
        for line in statement.lines
    ]


def csv_text(records: Sequence[Record]) -> str:
    """With a heading; empty without records."""
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: plain(value) for key, value in record.items()} for record in records)
    return out.getvalue()


def parquet_bytes(records: Sequence[Record]) -> bytes:
    """Amounts and hours as decimals: exact, and summed as such."""
    import polars as pl

    out = io.BytesIO()
    schema = {name: _type(name, value) for name, value in records[0].items()} if records else {}
    pl.DataFrame(list(records), schema=schema).write_parquet(out)
    return out.getvalue()


def write_file(path: Path, data: str | bytes) -> None:
    """Whole or not at all; what was there is replaced."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(data.encode() if isinstance(data, str) else data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> PermanentError:
    """Why a file could not be written."""
    return PermanentError(
        "FileNotWritten", f"cannot write {path}: {error.strerror or error}", "choose another --out FILE"
    )


def _record(report: Report, row: wire.CostRow | wire.UsageRow | wire.WasteRow) -> Record:
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
    return record


def _type(name: str, value: Value) -> Any:
    import polars as pl

    if isinstance(value, str):
        return pl.String
    if isinstance(value, int):
        return pl.Int64
    return pl.Decimal(None, 2 if name.endswith("hours") else 3)
