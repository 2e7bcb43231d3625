"""What there was to be used, by hour or day: from its sums, and since they were made, as it was last seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import LocalTime
from fairway.model.charge import CapacitySum, Span
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.team import Supply

SECONDS: Final = 60.0

_OF_CLUSTERS: Final = "(CAST(:clusters AS text[]) IS NULL OR cluster = ANY(CAST(:clusters AS text[])))"

_HOURS = text(f"""
    SELECT hour AS start, cluster, pool, slice, total, drained, down, fragmented, gpu_seconds
    FROM capacity_hour WHERE hour >= :first AND hour < :end AND {_OF_CLUSTERS}
""")  # noqa: S608

_DAYS = text(f"""
    SELECT day AS start, cluster, pool, slice, total, drained, down, fragmented, gpu_seconds
    FROM capacity_day WHERE day >= :first AND day < :end AND {_OF_CLUSTERS}
""")  # noqa: S608

_NOW = text(f"""
    SELECT metered_to, cluster, pool, slice, total, drained, down, fragmented, gpus
    FROM capacity_now WHERE {_OF_CLUSTERS}
""")  # noqa: S608

_Key = tuple[int, str, str, str]


async def sums(
    connections: Connections,
    window: Span,
    by_day: bool,
    clusters: Collection[str] | None,
    live_until: int | None,
    local: LocalTime,
) -> tuple[CapacitySum, ...]:
    values: dict[str, object] = {"clusters": None if clusters is None else sorted(clusters)}
    found: dict[_Key, CapacitySum] = {}
    async with connections.transaction(seconds=SECONDS) as connection:
        # One moment for both: what is now becomes a sum in a single transaction.
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        for row in await _kept(connection, window, by_day, values, local):
            start = _start(row.start, local)
            found[start, row.cluster, row.pool, row.slice] = _sum(row, start, row.gpu_seconds)
        now = list(await connection.execute(_NOW, values)) if live_until is not None else []
    for row in now:
        _add_live(found, row, window, by_day, live_until or 0, local)
    return tuple(found[key] for key in sorted(found))


async def _kept(
    connection: AsyncConnection, window: Span, by_day: bool, values: dict[str, object], local: LocalTime
) -> list[Row[*tuple[Any, ...]]]:
    edges: dict[str, object] = (
        {"first": local.day_of(window.start), "end": _day_after(window.end, local)}
        if by_day
        else {
            "first": datetime.fromtimestamp(window.start, UTC),
            "end": datetime.fromtimestamp(window.end, UTC),
        }
    )
    return list(await connection.execute(_DAYS if by_day else _HOURS, values | edges))


def _add_live(
    found: dict[_Key, CapacitySum],
    row: Row[*tuple[Any, ...]],
    window: Span,
    by_day: bool,
    until: int,
    local: LocalTime,
) -> None:
    since = max(int(row.metered_to.timestamp()), window.start)
    for start, seconds in _units(since, min(until, window.end), by_day, local):
        key = (start, row.cluster, row.pool, row.slice)
        more = _sum(row, start, row.gpus)
        before = found.get(key) or replace(more, total=0, drained=0, down=0, fragmented=0, gpu_seconds=0)
        found[key] = replace(
            before,
            total=before.total + more.total * seconds,
            drained=before.drained + more.drained * seconds,
            down=before.down + more.down * seconds,
            fragmented=before.fragmented + more.fragmented * seconds,
            gpu_seconds=before.gpu_seconds + more.gpu_seconds * seconds,
        )


def _units(start: int, end: int, by_day: bool, local: LocalTime) -> Iterator[tuple[int, int]]:
    """The days or hours of a stretch: when each begins, and how many seconds of it are in the stretch."""
    while start < end:
        day = local.day_of(start)
        if by_day:
            begins, following = local.day_start(day), local.day_start(day + timedelta(days=1))
        else:
            begins, following = local.hour_start(start), local.next_hour(start)
        following = min(following, end)
        yield begins, following - start
        start = following


def _sum(row: Row[*tuple[Any, ...]], start: int, gpu_seconds: int) -> CapacitySum:
    return CapacitySum(
        start,
        ClusterName(row.cluster),
        Supply(PoolName(row.pool), SliceName(row.slice) if row.slice else None),
        row.total,
        row.drained,
        row.down,
        row.fragmented,
        gpu_seconds,
    )


def _start(start: date | datetime, local: LocalTime) -> int:
    return int(start.timestamp()) if isinstance(start, datetime) else local.day_start(start)


def _day_after(end: int, local: LocalTime) -> date:
    """The first day that begins at `end` or later."""
    day = local.day_of(end)
    return day if local.day_start(day) >= end else day + timedelta(days=1)
