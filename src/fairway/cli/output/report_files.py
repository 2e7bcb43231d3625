"""Write the files of reports. Their rows sum to the report's total, which is not a row itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairway.model.errors import PermanentError
from fairway.views.cost_records import Record, Value


def parquet_bytes(records: Sequence[Record]) -> bytes:
    """Encode records as Parquet; amounts and hours are decimals, so that sums are exact."""
    import polars as pl

    out = io.BytesIO()
    schema = {name: _type(name, value) for name, value in records[0].items()} if records else {}
    pl.DataFrame(list(records), schema=schema).write_parquet(out)
    return out.getvalue()


def write_file(path: Path, data: str | bytes) -> None:
    """Write a file atomically, replacing an existing one."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> PermanentError:
    """Return the error for a file that could not be written."""
    return PermanentError(
        "FileNotWritten", f"cannot write {path}: {error.strerror or error}", "choose another --out FILE"
    )


def _type(name: str, value: Value) -> Any:
    import polars as pl

    if isinstance(value, str):
        return pl.String
    if isinstance(value, int):
        return pl.Int64
    return pl.Decimal(None, 6)
