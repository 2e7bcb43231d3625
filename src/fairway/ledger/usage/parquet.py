"""Encode usage rows as Parquet, decode and sum them. Slow: call it in a thread.

The only module of `ledger` that imports polars; imported when a month is archived or read back.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Mapping
from typing import Final

import polars as pl

from fairway.ledger.errors import ArchiveMissing, UsageTooFine
from fairway.ledger.records.costs import ArchivedPart

MAX_GROUPS: Final = 5_000_000

_SCHEMA: Final = {
    "hour": pl.Int64,
    "started_at": pl.Int64,
    "kept_at": pl.Int64,
    "job": pl.Int64,
    "attempt": pl.Int32,
    "class": pl.Int32,
    "seconds": pl.Int32,
    "devices": pl.Int32,
    "name": pl.String,
}
_MOMENTS: Final = ("hour", "started_at", "kept_at")
_SUM: Final = pl.col("seconds").cast(pl.Int64) * pl.col("devices").cast(pl.Int64)


def encode(csv: bytes) -> bytes:
    """Encode CSV rows from COPY, with times in microseconds since 1970, as one Parquet object."""
    rows = pl.read_csv(csv, has_header=False, schema=_SCHEMA)
    rows = rows.with_columns(pl.col(*_MOMENTS).cast(pl.Datetime("us", "UTC")), pl.col("name").fill_null(""))
    target = io.BytesIO()
    rows.write_parquet(target, compression="zstd", row_group_size=131_072, statistics=True)
    return target.getvalue()


def measure(content: bytes) -> tuple[int, int]:
    """Count the rows and device-seconds of an object."""
    found = pl.scan_parquet(io.BytesIO(content)).select(pl.len(), _SUM.sum().alias("sum")).collect()
    rows, device_seconds = found.row(0)
    return int(rows), int(device_seconds)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Sums:
    """Sums device-seconds by slot, class and name, over one object after another."""

    def __init__(
        self, slots: Mapping[int, int], classes: Collection[int], names: Collection[str] | None
    ) -> None:
        """Initialize the sums; the keys of `slots` are the second at which an hour begins."""
        hours = pl.Series("hour", [hour * 1_000_000 for hour in slots]).cast(pl.Datetime("us", "UTC"))
        numbers = pl.Series("slot", list(slots.values()), dtype=pl.Int32)
        self._slots = pl.LazyFrame({"hour": hours, "slot": numbers})
        self._classes = pl.LazyFrame({"class": pl.Series(sorted(classes), dtype=pl.Int32)})
        self._names = None if names is None else sorted(names)
        self._first, self._last = hours.min(), hours.max()
        self._sums = pl.DataFrame(
            schema={"slot": pl.Int32, "class": pl.Int32, "name": pl.String, "device_seconds": pl.Int64}
        )

    def add(self, part: ArchivedPart, content: bytes) -> None:
        """Add an object. Raises ArchiveMissing if it is not what was archived."""
        if digest(content) != part.digest:
            raise ArchiveMissing(
                "ArchiveMissing",
                f"{part.path} in the archive is not what Fairway wrote",
                "restore that object from the store's older versions or its backup",
            )
        rows = (
            pl.scan_parquet(io.BytesIO(content))
            .filter(pl.col("hour").is_between(self._first, self._last))
            .join(self._slots, on="hour")
            .join(self._classes, on="class", how="semi")
        )
        if self._names is not None:
            rows = rows.filter(pl.col("name").is_in(self._names))
        found = rows.group_by("slot", "class", "name").agg(_SUM.sum().alias("device_seconds")).collect()
        keys = ("slot", "class", "name")
        self._sums = pl.concat([self._sums, found]).group_by(keys).agg(pl.col("device_seconds").sum())
        if self._sums.height > MAX_GROUPS:
            raise UsageTooFine(
                "UsageTooFine",
                f"the archive has more than {MAX_GROUPS:,} names of jobs in this window",
                "use a shorter window, or select a team or pool",
            )

    def rows(self) -> list[tuple[int, int, str, int]]:
        """Return slot, class, name and device-seconds."""
        return [tuple(row) for row in self._sums.iter_rows()]
