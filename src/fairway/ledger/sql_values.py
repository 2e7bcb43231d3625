"""Convert values to parameters of SQL statements, and columns of rows to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply

AnyRow = Row[*tuple[Any, ...]]

MAX_PAGE: Final = 2000
MAX_TEXT_LENGTH: Final = 2000
"""Reasons and messages of engines are truncated here, so that one bad node cannot fill the ledger."""


def page_limit(limit: int) -> int:
    """Clamp the number of rows that a caller requests."""
    return max(1, min(limit, MAX_PAGE))


def sanitize(text: str, max_length: int = MAX_TEXT_LENGTH) -> str:
    """Sanitize an engine's text for PostgreSQL: no NUL, valid UTF-8, bounded length."""
    cut = text[:max_length].replace("\0", "")
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def arrays(rows: Iterable[Sequence[object]], *names: str) -> dict[str, object]:
    """Transpose rows to one array per column, for `unnest`."""
    rows = list(rows)
    return {name: [row[n] for row in rows] for n, name in enumerate(names)}


def array(values: Sequence[float | str | None]) -> object:
    """Format numbers or texts as an array of PostgreSQL; psycopg takes a microsecond for each of them."""
    encoded = msgspec.json.encode(values).decode()
    # JSON and PostgreSQL write texts alike, unless they have something to escape.
    return values if "\\" in encoded else f"{{{encoded[1:-1]}}}"


def json_rows(rows: Sequence[object] | Mapping[str, str]) -> str:
    """Encode rows as JSON, for `jsonb_to_recordset`, or the pairs of a JSONB object."""
    return msgspec.json.encode(rows).decode()


def supply(pool: str, slice_: str) -> Supply:
    """Return the supply of the columns `pool` and `slice`."""
    return Supply(PoolName(pool), SliceName(slice_) if slice_ else None)


def moment(second: float) -> datetime:
    """Convert seconds since 1970 to a datetime for PostgreSQL."""
    return datetime.fromtimestamp(second, UTC)


def seconds(at: datetime) -> int:
    """Convert a datetime to seconds since 1970."""
    return int(at.timestamp())
