"""The state of budgets, and their events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.fleet.clusters import LONGEST_PAGE
from fairway.ledger.fleet.observations import kept
from fairway.ledger.records.costs import BudgetEvent, BudgetLevel, StoredBudgetStatus
from fairway.ledger.records.fleet import Lease
from fairway.ledger.schema.costs import budget_event, budget_standing
from fairway.model.budget import Hold
from fairway.model.names import TeamName

_KEEP = text("""
    WITH told AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS told (
            team text, period date, amount numeric, spent numeric, per_day numeric, runs_out date,
            level text, hold text
        )
    ), gone AS (
        DELETE FROM budget_standing WHERE team NOT IN (SELECT team FROM told)
    )
    INSERT INTO budget_standing AS known (
        team, period, amount, spent, per_day, runs_out, level, hold, since, checked_at
    )
    SELECT team, period, amount, spent, per_day, runs_out, level, hold, now(), now() FROM told
    ON CONFLICT (team) DO UPDATE SET
        period = excluded.period, amount = excluded.amount, spent = excluded.spent,
        per_day = excluded.per_day, runs_out = excluded.runs_out, level = excluded.level,
        hold = excluded.hold, checked_at = excluded.checked_at,
        since = CASE
            WHEN (known.period, known.level, known.hold)
                IS NOT DISTINCT FROM (excluded.period, excluded.level, excluded.hold)
            THEN known.since ELSE excluded.since
        END
""")


class BudgetWriter:
    """Writes the state of budgets."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep(
        self, standings: Sequence[StoredBudgetStatus], events: Sequence[tuple[TeamName, str]] = ()
    ) -> None:
        """Replace the state of all budgets with these, and add events."""
        rows = [
            {
                "team": s.team,
                "period": s.period.isoformat(),
                "amount": str(s.amount),
                "spent": str(s.spent),
                "per_day": str(s.per_day),
                "runs_out": None if s.runs_out is None else s.runs_out.isoformat(),
                "level": s.level.value,
                "hold": None if s.hold is None else s.hold.value,
            }
            for s in standings
        ]
        await self._connection.execute(_KEEP, {"rows": msgspec.json.encode(rows).decode()})
        if events:
            await self._connection.execute(
                insert(budget_event), [{"team": team, "text": kept(said)} for team, said in events]
            )


class BudgetStore:
    """Reads the state of budgets and their events."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def standings(self) -> tuple[StoredBudgetStatus, ...]:
        """Return the state of every team's budget, by team name."""
        async with self._connections.single() as connection:
            rows = await connection.execute(select(budget_standing).order_by(budget_standing.c.team))
            return tuple(map(_standing, rows))

    async def events(
        self, *, team: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[BudgetEvent, ...]:
        """Return at most `limit` (≤ 2000) events, newest first; `before` is the last id seen."""
        wanted = select(budget_event).order_by(budget_event.c.id.desc())
        wanted = wanted.limit(max(1, min(limit, LONGEST_PAGE)))
        if team is not None:
            wanted = wanted.where(budget_event.c.team == team)
        if before is not None:
            wanted = wanted.where(budget_event.c.id < before)
        async with self._connections.single() as connection:
            return tuple(
                BudgetEvent(row.id, row.at, TeamName(row.team), row.text)
                for row in await connection.execute(wanted)
            )


def _standing(row: Row[*tuple[Any, ...]]) -> StoredBudgetStatus:
    return StoredBudgetStatus(
        TeamName(row.team),
        row.period,
        row.amount,
        row.spent,
        row.per_day,
        row.runs_out,
        BudgetLevel(row.level),
        None if row.hold is None else Hold(row.hold),
        row.since,
        row.checked_at,
    )
