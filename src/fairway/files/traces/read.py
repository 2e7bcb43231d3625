"""Read a trace of jobs in any known format, plain or compressed with zstd or gzip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import polars as pl

from fairway.files.diagnostics import shown
from fairway.files.traces.formats import FORMATS_HINT, PARQUET_MAGIC, InvalidTrace, TraceFormat, detect_format
from fairway.files.traces.history import history, read_parquet
from fairway.files.traces.public import Columns, helios, openb, philly, sacct, slurm
from fairway.files.traces.swf import read_swf, swf
from fairway.files.traces.table import SCHEMA, TraceTable, read_lines, read_rows, to_jobs
from fairway.model.trace import TraceJob

GPUS_PER_NODE: Final = 8
_BATCH: Final = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The jobs of a trace, sorted by submit time, stored as columns; iteration makes them batch by batch."""

    source: str
    format: TraceFormat
    columns: pl.DataFrame
    """The fields of TraceJob."""
    skipped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many jobs were left out, and why: `{"without GPUs": 1088}`."""

    def __len__(self) -> int:
        return self.columns.height

    def __iter__(self) -> Iterator[TraceJob]:
        for batch in self.columns.iter_slices(_BATCH):
            yield from map(TraceJob, *(column.to_list() for column in batch.get_columns()))

    @property
    def span(self) -> tuple[float, float]:
        """Return when the first and the last job were submitted; (0, 0) if there are none."""
        if not len(self):
            return (0.0, 0.0)
        at = self.columns["at"]
        return float(at[0]), float(at[-1])

    def between(self, start: float, end: float) -> Trace:
        """Return the jobs submitted from `start` to before `end`."""
        chosen = self.columns.filter((pl.col("at") >= start) & (pl.col("at") < end))
        return Trace(self.source, self.format, chosen, self.skipped)

    def first(self, jobs: int) -> Trace:
        """Return the first jobs."""
        return Trace(self.source, self.format, self.columns.head(jobs), self.skipped)

    def distinct(self, column: str) -> list[str]:
        """Return the different values of a column of names, such as `team`, in alphabetical order."""
        return sorted(value for value in self.columns[column].unique().to_list() if value)


def read_trace(
    path: Path,
    format: TraceFormat | None = None,  # noqa: A002  (the word of the option)
    *,
    gpus_per_node: int = GPUS_PER_NODE,
    keep_cpu_jobs: bool = False,
) -> Trace:
    """Read a trace. Raises InvalidTrace, with file, line and column, if it is invalid.

    `gpus_per_node` divides jobs of which only the GPUs in all are known. Jobs without GPUs are left out, or
    with `keep_cpu_jobs` count as jobs with one GPU on each node, where the format tells them apart.
    """
    name = shown(str(path), 200)
    if _is_parquet(path, name):
        if format not in {None, TraceFormat.FAIRWAY}:
            raise InvalidTrace(f"{name} is a Parquet file, not of format {format}", "omit the format")
        return _trace(TraceFormat.FAIRWAY, read_parquet(path, name), gpus_per_node, keep_cpu_jobs)
    if format is None:
        first_line = _first_line(path, name)
        format = detect_format(first_line)  # noqa: A001
        if format is None:
            raise InvalidTrace(f"{name} is no trace that Fairway knows: {shown(first_line)}", FORMATS_HINT)
    if format is TraceFormat.SWF:
        table, clock_start = read_swf(path, name)
        columns = swf(table, gpus_per_node, clock_start)
        return Trace(name, format, to_jobs(table, columns), MappingProxyType(table.skipped))
    separator = "|" if format is TraceFormat.SACCT else ","
    return _trace(format, read_rows(path, name, separator), gpus_per_node, keep_cpu_jobs)


def _trace(format: TraceFormat, table: TraceTable, gpus_per_node: int, keep_cpu_jobs: bool) -> Trace:  # noqa: A002
    columns = _columns(format, table, gpus_per_node, keep_cpu_jobs)
    jobs = to_jobs(table, columns).select(*SCHEMA)
    return Trace(table.name, format, jobs, MappingProxyType(table.skipped))


def _columns(format: TraceFormat, table: TraceTable, gpus_per_node: int, keep_cpu_jobs: bool) -> Columns:  # noqa: A002
    match format:
        case TraceFormat.PHILLY:
            return philly(table, gpus_per_node)
        case TraceFormat.HELIOS:
            return helios(table, gpus_per_node)
        case TraceFormat.OPENB:
            return openb(table, gpus_per_node)
        case TraceFormat.SLURM:
            return slurm(table, gpus_per_node, keep_cpu_jobs=keep_cpu_jobs)
        case TraceFormat.SACCT:
            return sacct(table, gpus_per_node, keep_cpu_jobs=keep_cpu_jobs)
        case _:
            return history(table)


def _is_parquet(path: Path, name: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except OSError as error:
        raise InvalidTrace(
            f"cannot read {name}: {error.strerror or error}", "name a file with a trace of jobs"
        ) from None


def _first_line(path: Path, name: str) -> str:
    lines = read_lines(path, name, most=100)["line"].to_list()
    return next((line for line in lines if line and line.strip()), "")
