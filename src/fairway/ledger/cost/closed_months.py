"""Closed months: reported charges do not change. Months close once, and in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec
from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.errors import MonthClosed, MonthOpen
from fairway.ledger.records.costs import ClosedCharge, ClosedMonth
from fairway.ledger.schema.costs import closed_charge, closed_month
from fairway.ledger.schema.tables import NONE
from fairway.ledger.usage.partitions import following
from fairway.model.charge import ChargeKind
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.team import Supply

# One transaction closes at a time; readers do not wait.
_LOCK = text("LOCK TABLE closed_month IN SHARE ROW EXCLUSIVE MODE")

# The first day before this month, after the closed ones, that has usage or capacity.
_OPEN = text("""
    SELECT least(
        (SELECT min(day) FROM usage_day WHERE day >= :since AND day < :month),
        (SELECT min(day) FROM capacity_day WHERE day >= :since AND day < :month)
    )
""")

_CLOSE = text("""
    INSERT INTO closed_month (month, by_whom, currency, timezone)
    VALUES (:month, :by, :currency, :timezone) RETURNING closed_at
""")

_CHARGES = text("""
    INSERT INTO closed_charge (
        month, id, used_in, kind, cluster, pool, slice, team, device_seconds, amount
    )
    SELECT :month, id, used_in, kind, cluster, pool, slice, team, device_seconds, amount
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS told (
        id int, used_in date, kind text, cluster text, pool text, slice text, team text,
        device_seconds bigint, amount numeric
    )
""")


class MonthStore:
    """Closes months and reads their charges."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def close(
        self, month: date, charges: Sequence[ClosedCharge], *, by: str, currency: str, timezone: str
    ) -> ClosedMonth:
        """Store a month's charges permanently. Raises MonthClosed, or MonthOpen if an earlier one is open."""
        async with self._connections.transaction() as connection:
            await connection.execute(_LOCK)
            await _check(connection, month)
            values = {"month": month, "by": by, "currency": currency, "timezone": timezone}
            closed_at = (await connection.execute(_CLOSE, values)).scalar_one()
            rows = [_row(number, charge) for number, charge in enumerate(charges, 1)]
            if rows:
                told = {"month": month, "rows": msgspec.json.encode(rows).decode()}
                await connection.execute(_CHARGES, told)
        return ClosedMonth(month, closed_at, by, currency, timezone)

    async def all(self) -> tuple[ClosedMonth, ...]:
        """Return every closed month, oldest first."""
        async with self._connections.single() as connection:
            rows = await connection.execute(select(closed_month).order_by(closed_month.c.month))
            return tuple(
                ClosedMonth(row.month, row.closed_at, row.by_whom, row.currency, row.timezone) for row in rows
            )

    async def charges(
        self, *, month: date | None = None, used_in: date | None = None
    ) -> tuple[tuple[date, ClosedCharge], ...]:
        """Return charges with the month they were reported in: those of `month`, for `used_in`, or both."""
        wanted = select(closed_charge).order_by(closed_charge.c.month, closed_charge.c.id)
        if month is not None:
            wanted = wanted.where(closed_charge.c.month == month)
        if used_in is not None:
            wanted = wanted.where(closed_charge.c.used_in == used_in)
        async with self._connections.single() as connection:
            return tuple((row.month, _charge(row)) for row in await connection.execute(wanted))


async def _check(connection: AsyncConnection, month: date) -> None:
    """Raise if the month cannot be closed now."""
    closed = set((await connection.execute(select(closed_month.c.month))).scalars())
    last = max(closed, default=None)
    if month in closed:
        raise MonthClosed(
            "MonthClosed",
            f"{month:%Y-%m} is closed already",
            "nothing to do: what came in since is told, as a correction, in the next open month",
        )
    if last is not None and last > month:
        raise MonthClosed(
            "MonthClosed",
            f"{last:%Y-%m} is closed, and {month:%Y-%m} before it was not: its charges were told there",
            "nothing to do: months close in order",
        )
    values = {"since": date.min if last is None else following(last), "month": month}
    open_ = (await connection.execute(_OPEN, values)).scalar()
    if open_ is not None:
        raise MonthOpen(
            "MonthOpen",
            f"{open_:%Y-%m} is not closed, and comes before {month:%Y-%m}",
            f"close it first:  fairway report chargeback --month {open_:%Y-%m} --close",
        )


def _row(number: int, charge: ClosedCharge) -> dict[str, object]:
    supply = charge.supply
    return {
        "id": number,
        "used_in": charge.used_in.isoformat(),
        "kind": charge.kind.value,
        "cluster": charge.cluster,
        "pool": NONE if supply is None else supply.pool,
        "slice": NONE if supply is None or supply.slice is None else supply.slice,
        "team": charge.team or NONE,
        "device_seconds": charge.device_seconds,
        "amount": str(charge.amount),
    }


def _charge(row: Row[*tuple[Any, ...]]) -> ClosedCharge:
    supply = Supply(PoolName(row.pool), SliceName(row.slice) if row.slice else None) if row.pool else None
    return ClosedCharge(
        row.used_in,
        ChargeKind(row.kind),
        ClusterName(row.cluster),
        supply,
        TeamName(row.team) if row.team else None,
        row.device_seconds,
        row.amount,
    )
