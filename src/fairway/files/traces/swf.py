"""Convert the Standard Workload Format to the fields of TraceJob: 18 numbers a line, comments with `;`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from fairway.files.diagnostics import shown
from fairway.files.traces.formats import SWF_FIELDS, InvalidTrace
from fairway.files.traces.public import NEVER_RAN, Columns
from fairway.files.traces.table import LINE, MAX_ROWS, TraceTable, read_lines, shape

_FIELDS: Final = {
    "submit": 2,
    "wait": 3,
    "run": 4,
    "processors": 5,
    "requested": 8,
    "limit": 9,
    "status": 11,
    "user": 12,
    "group": 13,
    "application": 14,
    "queue": 15,
    "partition": 16,
}
"""The fields that are used, by their number in the definition of the format; -1 means unknown."""
_FAILED: Final = 0
_START_TIME: Final = r"(?i)^;\s*UnixStartTime:\s*(\d+)"


def read_swf(path: Path, name: str) -> tuple[TraceTable, float]:
    """Read the jobs of a file, and when its clock starts: 0 if the file does not tell."""
    lines = read_lines(path, name)
    if lines.height > MAX_ROWS:
        raise InvalidTrace(f"{name} has more than {MAX_ROWS:,} lines", "split it by time")
    text = pl.col("line").str.strip_chars()
    comments = lines.filter(text.str.starts_with(";"))
    start = comments.select(pl.col("line").str.extract(_START_TIME).cast(pl.Float64)).to_series().drop_nulls()
    jobs = lines.filter(text.is_not_null() & (text != "") & ~text.str.starts_with(";"))
    parts = jobs.select(LINE, "line", text.str.replace_all(r"\s+", " ").str.split(" ").alias("parts"))
    wrong = parts.filter(pl.col("parts").list.len() != SWF_FIELDS)
    if wrong.height:
        line, content, found = wrong.row(0)
        raise InvalidTrace(
            f"{name}:{line}: {len(found)} fields instead of {SWF_FIELDS}: {shown(content.strip())}",
            "an SWF line has 18 numbers separated by spaces; -1 stands for unknown",
        )
    fields = [pl.col("parts").list.get(n - 1).alias(field) for field, n in _FIELDS.items()]
    return TraceTable(name, parts.select(LINE, *fields)), float(start[0]) if len(start) else 0.0


def swf(table: TraceTable, gpus_per_node: int, clock_start: float) -> Columns:
    """Return the jobs of an SWF file, whose processors count as GPUs. Those that never ran are left out."""
    table.numbers(*_FIELDS)
    table.skip(pl.col("submit") < 0, "without a submit time")
    table.skip((pl.col("run") < 0) | ((pl.col("run") == 0) & (pl.col("status") == 5)), NEVER_RAN)
    devices = pl.when(pl.col("processors") > 0).then(pl.col("processors")).otherwise(pl.col("requested"))
    table.skip(devices < 1, "without processors")
    gpus, nodes = shape(devices, gpus_per_node)

    def numbered(column: str, prefix: str) -> pl.Expr:
        known = pl.col(column) >= 0
        number = pl.col(column).cast(pl.Int64)
        return pl.when(known).then(pl.concat_str(pl.lit(f"{prefix}-"), number)).otherwise(pl.lit(""))

    at = pl.col("submit") + clock_start
    return {
        "at": at,
        "seconds": pl.max_horizontal(pl.col("run"), pl.lit(1.0)),
        "gpus": gpus,
        "nodes": nodes,
        "user": numbered("user", "user"),
        "team": numbered("group", "team"),
        "pool": numbered("partition", "pool"),
        "name": numbered("application", "app"),
        "limit_seconds": pl.when(pl.col("limit") > 0).then(pl.col("limit")),
        "failed": pl.col("status") == _FAILED,
        "started": pl.when(pl.col("wait") >= 0).then(at + pl.col("wait")),
    }
