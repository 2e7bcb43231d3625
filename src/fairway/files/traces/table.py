"""Check the columns of a trace and convert them, naming the line and column of what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from fairway.files.diagnostics import did_you_mean, shown
from fairway.files.traces.formats import FORMATS_HINT, InvalidTrace
from fairway.model.names import free_name, is_name, to_team_name

LINE: Final = "\0line"
"""The column with each row's line in the file."""
MAX_ROWS: Final = 20_000_000

SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "at": pl.Float64,
    "seconds": pl.Float64,
    "gpus": pl.Int32,
    "nodes": pl.Int32,
    "user": pl.String,
    "team": pl.String,
    "pool": pl.String,
    "slice": pl.String,
    "name": pl.String,
    "limit_seconds": pl.Float64,
    "priority": pl.String,
    "failed": pl.Boolean,
    "started": pl.Float64,
    "preemptions": pl.Int32,
    "tolerates_loss": pl.Boolean,
    "together": pl.Boolean,
    "cancelled_after": pl.Float64,
}
"""The fields of TraceJob, in their order."""
_DEFAULTS: Final[Mapping[str, object]] = {
    "gpus": 1,
    "nodes": 1,
    "user": "",
    "team": "",
    "pool": "",
    "slice": None,
    "name": "",
    "limit_seconds": None,
    "priority": None,
    "failed": False,
    "started": None,
    "preemptions": 0,
    "tolerates_loss": False,
    "together": False,
    "cancelled_after": None,
}


@dataclass(slots=True)
class TraceTable:
    """The rows of a file as text, with their lines, and what was skipped of them and why."""

    name: str
    """The file's name as shown in messages."""
    rows: pl.DataFrame
    skipped: dict[str, int] = field(default_factory=dict)

    def has(self, column: str) -> bool:
        return column in self.rows.columns

    def skip(self, unwanted: pl.Expr, why: str) -> None:
        """Leave out the rows for which `unwanted` is true."""
        before = self.rows.height
        self.rows = self.rows.filter(~unwanted.fill_null(False))
        if self.rows.height < before:
            self.skipped[why] = self.skipped.get(why, 0) + before - self.rows.height

    def need(self, *columns: str) -> None:
        """Raise InvalidTrace if a column is missing."""
        there = [c for c in self.rows.columns if c != LINE]
        for column in columns:
            if column not in there:
                raise InvalidTrace(
                    f"{self.name}:1: column {column} is missing",
                    did_you_mean(column, there, f"the columns are {', '.join(map(shown, there[:12]))}"),
                )

    def numbers(self, *columns: str, least: float | None = None) -> None:
        """Convert columns to numbers; empty cells become null. Raises InvalidTrace for anything else."""
        for column in columns:
            text = pl.col(column).str.strip_chars()
            empty = text.is_null() | text.str.to_lowercase().is_in(["", "none", "null", "nan", "unknown"])
            number = text.cast(pl.Float64, strict=False)
            wrong = ~empty & (number.is_null() | ~number.is_finite())
            if least is not None:
                wrong |= ~empty & (number < least)
            expected = "a number" if least is None else f"a number of at least {least:g}"
            self._check(column, wrong, expected)
            self.rows = self.rows.with_columns(pl.when(empty).then(None).otherwise(number).alias(column))

    def times(self, *columns: str) -> None:
        """Convert columns of times in UTC to seconds since 1970; empty cells become null."""
        for column in columns:
            text = pl.col(column).str.strip_chars()
            empty = text.is_null() | text.str.to_lowercase().is_in(["", "none", "null", "nan", "unknown"])
            plain = text.str.slice(0, 19).str.replace("T", " ", literal=True)
            moment = plain.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False).dt.epoch("s")
            self._check(column, ~empty & moment.is_null(), "a time such as 2026-11-19 07:30:00")
            self.rows = self.rows.with_columns(
                pl.when(empty).then(None).otherwise(moment.cast(pl.Float64)).alias(column)
            )

    def booleans(self, column: str, true: Sequence[str], false: Sequence[str]) -> None:
        """Convert a column to truth values; empty cells become false."""
        text = pl.col(column).fill_null("").str.strip_chars().str.to_lowercase()
        self._check(column, ~text.is_in([*true, *false]), "true or false")
        self.rows = self.rows.with_columns(text.is_in(true).alias(column))

    def required(self, *columns: str) -> None:
        """Raise InvalidTrace if a cell of these columns is empty."""
        for column in columns:
            self._check(column, pl.col(column).is_null(), "a value")

    def names(self, column: str, kind: str) -> pl.Expr:
        """Return a column of names as valid names of Fairway, such as `user-12` for a user `12`."""
        return self._replaced(column, lambda text, taken: _to_name(text, kind, taken))

    def team_names(self, column: str) -> pl.Expr:
        """Return a column of names as valid names of teams."""
        return self._replaced(column, to_team_name)

    def _replaced(self, column: str, convert: Callable[[str, Collection[str]], str]) -> pl.Expr:
        self.rows = self.rows.with_columns(pl.col(column).str.replace(r"\.0$", ""))  # ids kept as floats
        texts = sorted(t for t in self.rows[column].unique().to_list() if t)
        names: dict[str, str] = {}
        taken: set[str] = set()
        for text in texts:
            names[text] = convert(text, taken)
            taken.add(names[text])
        return pl.col(column).fill_null("").replace_strict(names, default="", return_dtype=pl.String)

    def _check(self, column: str, wrong: pl.Expr, expected: str) -> None:
        faults = self.rows.filter(wrong.fill_null(True)).select(LINE, column)
        if faults.height:
            line, value = faults.row(0)
            said = "is empty" if value is None or not str(value).strip() else f"is {shown(str(value))}"
            more = f" (and {faults.height - 1:,} more lines)" if faults.height > 1 else ""
            raise InvalidTrace(
                f"{self.name}:{line}: column {column} {said}, not {expected}{more}",
                "correct the file, or name its format if another was detected",
            )


def to_jobs(table: TraceTable, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Return the rows with the fields of TraceJob as columns, sorted by time; `columns` has what is known."""
    chosen: Sequence[pl.Expr] = [
        columns.get(name, pl.lit(_DEFAULTS.get(name))).cast(kind).alias(name) for name, kind in SCHEMA.items()
    ]
    return table.rows.select(chosen).sort("at", maintain_order=True)


def shape(devices: pl.Expr, gpus_per_node: int) -> tuple[pl.Expr, pl.Expr]:
    """Return GPUs on each node, and nodes, of jobs of which only the GPUs in all are known.

    More than a node has become the fewest nodes of equal size; if none are at least half full, full ones.
    """
    gpus = pl.lit(gpus_per_node)
    for size in range(gpus_per_node // 2 + 1, gpus_per_node + 1):  # the largest that divides comes last
        gpus = pl.when(devices % size == 0).then(size).otherwise(gpus)
    gpus = pl.when(devices <= gpus_per_node).then(devices).otherwise(gpus)
    return gpus, (devices / gpus).ceil()


def _to_name(text: str, kind: str, taken: Collection[str]) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).strip("-")
    plain = "-".join(part for part in plain.split("-") if part)[:40].strip("-")
    return free_name(plain if is_name(plain) else f"{kind}-{plain}"[:40].rstrip("-"), taken)


def read_rows(path: Path, name: str, separator: str = ",") -> TraceTable:
    """Read a CSV file, plain or compressed, with all values as text."""
    try:
        rows = pl.read_csv(
            path,
            separator=separator,
            infer_schema=False,
            row_index_name=LINE,
            row_index_offset=2,
            truncate_ragged_lines=False,
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _too_many_cells(path, name, separator) or unreadable(name, error) from None
    if rows.height > MAX_ROWS:
        raise InvalidTrace(f"{name} has more than {MAX_ROWS:,} rows", "split it by time")
    cells = [c for c in rows.columns if c != LINE]
    rows = rows.filter(~pl.all_horizontal(pl.col(cells).is_null()))  # blank lines
    return TraceTable(name, rows.rename({c: c.strip() for c in cells}))


def read_lines(path: Path, name: str, most: int | None = None) -> pl.DataFrame:
    """Read the lines of a text file, plain or compressed, as column `line`."""
    try:
        return pl.read_csv(
            path,
            has_header=False,
            separator="\x1f",
            quote_char=None,
            infer_schema=False,
            new_columns=["line"],
            n_rows=most,
            row_index_name=LINE,
            row_index_offset=1,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.NoDataError:
        raise InvalidTrace(f"{name} is empty", FORMATS_HINT) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(name, error) from None


def _too_many_cells(path: Path, name: str, separator: str) -> InvalidTrace | None:
    """Return the error for the first line with more cells than the heading has, if there is one."""
    try:
        lines = read_lines(path, name)
    except InvalidTrace:
        return None
    cells = pl.col("line").str.replace_all('"[^"]*"', "").str.count_matches(separator, literal=True) + 1
    counted = lines.select(LINE, cells.alias("cells"))
    heading = int(counted["cells"][0])
    wrong = counted.filter(pl.col("cells") > heading)
    if not wrong.height:
        return None
    line, found = wrong.row(0)
    return InvalidTrace(
        f"{name}:{line}: {found} cells, but the heading has {heading} columns",
        "quote cells that contain the separator",
    )


def unreadable(name: str, error: Exception) -> InvalidTrace:
    """Return the error for a file that polars cannot read."""
    reason = getattr(error, "strerror", None) or str(error).strip().split("\n", 1)[0]
    return InvalidTrace(
        f"cannot read {name}: {shown(reason)}", "name a CSV, SWF or Parquet file, plain or as .zst or .gz"
    )
