"""Reports as files for programs: CSV and Parquet. Rows sum to the report's total, which is no row itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairway.api.cost_records import Record, Report, Value, csv_text, report_records, statement_records
from fairway.model.errors import PermanentError

__all__ = [
    "Record",
    "Report",
    "csv_text",
    "not_written",
    "parquet_bytes",
    "report_records",
    "statement_records",
    "write_file",
]


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


def _type(name: str, value: Value) -> Any:
    import polars as pl

    if isinstance(value, str):
        return pl.String
    if isinstance(value, int):
        return pl.Int64
    return pl.Decimal(None, 2 if name.endswith("hours") else 3)
