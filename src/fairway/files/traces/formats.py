"""Name the formats of traces and detect them by a file's first bytes and its heading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from fairway.model.errors import PermanentError


class TraceFormat(StrEnum):
    """A format of traces that Fairway reads."""

    FAIRWAY = "fairway"
    """Fairway's own: the fields of `TraceJob` as columns, as Parquet or CSV."""
    SWF = "swf"
    """The Standard Workload Format of the Parallel Workloads Archive."""
    SLURM = "slurm"
    """The job table of slurmdbd as CSV, as published by MIT for Supercloud."""
    SACCT = "sacct"
    """The output of `sacct --parsable2` with a heading."""
    PHILLY = "philly"
    """The jobs of Microsoft's Philly clusters, as CSV."""
    HELIOS = "helios"
    """The jobs of SenseTime's Helios clusters, as CSV."""
    OPENB = "openb"
    """The pods of Alibaba's openb cluster, as CSV."""


class InvalidTrace(PermanentError):
    """Raised for a file that is not a trace, or that cannot be read."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("InvalidTrace", message, hint)


PARQUET_MAGIC: Final = b"PAR1"
FORMATS_HINT: Final = f"the formats are {', '.join(TraceFormat)}; a CSV file starts with its heading"
HEADINGS: Final[tuple[tuple[TraceFormat, tuple[str, ...]], ...]] = (
    (TraceFormat.FAIRWAY, ("at", "seconds")),
    (TraceFormat.SLURM, ("id_user", "time_submit", "time_start", "time_end")),
    (TraceFormat.HELIOS, ("job_id", "gpu_num", "submit_time", "duration")),
    (TraceFormat.PHILLY, ("timestamp", "duration", "num_gpus")),
    (TraceFormat.OPENB, ("name", "num_gpu", "gpu_milli")),
)
"""The columns by which each format is detected."""
SACCT_COLUMNS: Final = ("submit", "start", "end")
SWF_FIELDS: Final = 18


def detect_format(first_line: str) -> TraceFormat | None:
    """Return the format of a text file with this first line; None if it is none that Fairway reads."""
    if first_line.startswith(";") or _is_swf_job(first_line):
        return TraceFormat.SWF
    if "|" in first_line and set(SACCT_COLUMNS) <= {c.strip().lower() for c in first_line.split("|")}:
        return TraceFormat.SACCT
    columns = {column.strip().strip('"') for column in first_line.removeprefix("\ufeff").split(",")}
    return next((found for found, needed in HEADINGS if columns.issuperset(needed)), None)


def _is_swf_job(line: str) -> bool:
    values: Sequence[str] = line.split()
    return len(values) == SWF_FIELDS and all(re.fullmatch(r"-?\d+(\.\d+)?", v) for v in values)
