"""Read and write Fairway's own traces: the fields of TraceJob as columns, as Parquet or CSV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final

import polars as pl

from fairway.files.diagnostics import did_you_mean, shown
from fairway.files.traces.formats import InvalidTrace
from fairway.files.traces.public import Columns
from fairway.files.traces.table import LINE, MAX_ROWS, SCHEMA, TraceTable, unreadable
from fairway.model.trace import TraceJob

_TRUE: Final = ["true", "1", "yes"]
_FALSE: Final = ["", "false", "0", "no"]
_BATCH: Final = 50_000
_FIELDS: Final = tuple(f.name for f in fields(TraceJob))
_VALUES: Final = attrgetter(*_FIELDS)


def read_parquet(path: Path, name: str) -> TraceTable:
    """Read a Parquet file, its values as text."""
    try:
        lazy = pl.scan_parquet(path)
        columns = lazy.collect_schema().names()
        wanted = [c for c in columns if c in SCHEMA]
        rows = lazy.select(wanted).head(MAX_ROWS + 1).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(name, error) from None
    if rows.height > MAX_ROWS:
        raise InvalidTrace(f"{name} has more than {MAX_ROWS:,} rows", "split it by time")
    rows = rows.with_columns(pl.col(pl.Datetime).dt.epoch("us") / 1e6)
    return TraceTable(name, rows.with_columns(pl.all().cast(pl.String)).with_row_index(LINE, 1))


def history(table: TraceTable) -> Columns:
    """Return the columns of Fairway's own trace. Raises InvalidTrace for one that is no field of TraceJob."""
    table.need("at", "seconds")
    for column in table.rows.columns:
        if column not in SCHEMA and column != LINE:
            raise InvalidTrace(
                f"{table.name}:1: unknown column {shown(column)}",
                did_you_mean(column, SCHEMA, f"the columns are {', '.join(SCHEMA)}"),
            )
    known: dict[str, pl.Expr] = {}
    for column, kind in SCHEMA.items():
        if not table.has(column):
            continue
        if kind == pl.Boolean:
            table.booleans(column, _TRUE, _FALSE)
        elif kind == pl.String:
            if column in {"slice", "priority"}:
                known[column] = pl.when(pl.col(column) != "").then(pl.col(column))
                continue
            known[column] = pl.col(column).fill_null("")
            continue
        else:
            least = {
                "gpus": 1,
                "nodes": 1,
                "seconds": 0,
                "preemptions": 0,
                "limit_seconds": 0,
                "cancelled_after": 0,
            }
            table.numbers(column, least=least.get(column))
            if column in {"gpus", "nodes"}:
                known[column] = pl.col(column).fill_null(1)
                continue
            if column == "preemptions":
                known[column] = pl.col(column).fill_null(0)
                continue
        known[column] = pl.col(column)
    table.required("at", "seconds")
    return known


def write_trace(jobs: Iterable[TraceJob], path: Path) -> int:
    """Write a trace and return its number of jobs: CSV if the name ends with `.csv`, else Parquet."""
    rest = iter(jobs)
    frames = []
    while batch := list(islice(rest, _BATCH)):
        frames.append(pl.DataFrame(list(map(_VALUES, batch)), schema=dict(SCHEMA), orient="row"))
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=dict(SCHEMA))
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path, compression="zstd")
    return frame.height
