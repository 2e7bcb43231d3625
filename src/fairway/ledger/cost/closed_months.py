"""Close months once, and in order: reported charges do not change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import MonthClosed, MonthOpen
from fairway.ledger.notices import add_notices
from fairway.ledger.records.costs import ClosedCharge, ClosedMonth
from fairway.ledger.schema.costs import closed_charge, closed_month
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, json_rows, supply
from fairway.ledger.usage.partitions import following
from fairway.model.charge import ChargeKind
from fairway.model.names import ClusterName, TeamName
from fairway.model.notice import Notice

# One transaction closes at a time; readers do not wait.
_LOCK = text("LOCK TABLE closed_month IN SHARE ROW EXCLUSIVE MODE")

# The first day before this month, after the closed ones, that has usage or capacity.
_OPEN = text("""
    SELECT least(
        (SELECT min(day) FROM usage_day WHERE day >= :since AND day < :month),
        (SELECT min(day) FROM capacity_day WHERE day >= :since AND day < :month)
    )
""")

_FIRST_DAY = text("""
    SELECT least((SELECT min(day) FROM usage_day), (SELECT min(day) FROM capacity_day))
""")

_CLOSE = text("""
    INSERT INTO closed_month (month, by_whom, currency, timezone)
    VALUES (:month, :by, :currency, :timezone) RETURNING closed_at
""")

_CHARGES = text("""
    INSERT INTO closed_charge (
        month, id, used_in, kind, cluster, pool, slice, team, device_seconds, amount, inside
    )
    SELECT :month, id, used_in, kind, cluster, pool, slice, team, device_seconds, amount, inside
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS charge (
        id int, used_in date, kind text, cluster text, pool text, slice text, team text,
        device_seconds bigint, amount numeric, inside text
    )
""")


class MonthStore(LedgerStore):
    """Closes months and reads their charges."""

    async def close(
        self,
        month: date,
        charges: Sequence[ClosedCharge],
        *,
        by: str,
        currency: str,
        timezone: str,
        notices: Sequence[Notice] = (),
    ) -> ClosedMonth:
        """Store a month's charges permanently, with notices of it.

        Raises MonthClosed, or MonthOpen if an earlier month is open.
        """
        async with self._connections.transaction() as connection:
            await connection.execute(_LOCK)
            await _check(connection, month)
            values = {"month": month, "by": by, "currency": currency, "timezone": timezone}
            closed_at = (await connection.execute(_CLOSE, values)).scalar_one()
            rows = [_row(number, charge) for number, charge in enumerate(charges, 1)]
            await add_notices(connection, notices)
            if rows:
                await connection.execute(_CHARGES, {"month": month, "rows": json_rows(rows)})
        return ClosedMonth(month, closed_at, by, currency, timezone)

    async def all(self) -> tuple[ClosedMonth, ...]:
        """Return every closed month, oldest first."""
        rows = await self._fetch(select(closed_month).order_by(closed_month.c.month))
        return tuple(ClosedMonth(*row) for row in rows)

    async def first_day(self) -> date | None:
        """Return the first day with usage or capacity. Returns None if there is none yet."""
        found: date | None = (await self._fetch(_FIRST_DAY))[0][0]
        return found

    async def charges(
        self, *, month: date | None = None, used_in: date | None = None
    ) -> tuple[tuple[date, ClosedCharge], ...]:
        """Return charges with the month they were reported in: those of `month`, for `used_in`, or both."""
        query = select(closed_charge).order_by(closed_charge.c.month, closed_charge.c.id)
        if month is not None:
            query = query.where(closed_charge.c.month == month)
        if used_in is not None:
            query = query.where(closed_charge.c.used_in == used_in)
        return tuple((row.month, _charge(row)) for row in await self._fetch(query))


async def _check(connection: AsyncConnection, month: date) -> None:
    """Raise if the month cannot be closed now."""
    closed = set((await connection.execute(select(closed_month.c.month))).scalars())
    last = max(closed, default=None)
    if month in closed:
        raise MonthClosed(
            "MonthClosed",
            f"{month:%Y-%m} is closed already",
            "nothing to do: later corrections are part of the next open month",
        )
    if last is not None and last > month:
        raise MonthClosed(
            "MonthClosed",
            f"{last:%Y-%m} is closed, and {month:%Y-%m} is before it: months are closed in order",
            "nothing to do: months close in order",
        )
    values = {"since": date.min if last is None else following(last), "month": month}
    open_day = (await connection.execute(_OPEN, values)).scalar()
    if open_day is not None:
        raise MonthOpen(
            "MonthOpen",
            f"{open_day:%Y-%m} is not closed, and comes before {month:%Y-%m}",
            f"close it first:  fairway report chargeback --month {open_day:%Y-%m} --close",
        )


def _row(number: int, charge: ClosedCharge) -> dict[str, object]:
    pool, slice_ = (charge.supply.pool, charge.supply.slice) if charge.supply else (NONE, NONE)
    return {
        "id": number,
        "used_in": charge.used_in.isoformat(),
        "kind": charge.kind.value,
        "cluster": charge.cluster,
        "pool": pool,
        "slice": slice_ or NONE,
        "team": charge.team or NONE,
        "device_seconds": charge.device_seconds,
        "amount": str(charge.amount),
        "inside": None if charge.inside is None else "/".join(charge.inside),
    }


def _charge(row: AnyRow) -> ClosedCharge:
    return ClosedCharge(
        row.used_in,
        ChargeKind(row.kind),
        ClusterName(row.cluster),
        supply(row.pool, row.slice) if row.pool else None,
        TeamName(row.team) if row.team else None,
        row.device_seconds,
        row.amount,
        None if row.inside is None else tuple(TeamName(team) for team in row.inside.split("/") if team),
    )
