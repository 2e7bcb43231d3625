"""Read and write the state of budgets, and their events."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.costs import BudgetEvent, StoredBudgetStatus
from fairway.ledger.schema.costs import budget_event, budget_standing
from fairway.ledger.sql_values import json_rows, page_limit, sanitize
from fairway.model.budget import BudgetLevel, Hold
from fairway.model.names import TeamName

_REPLACE = text("""
    WITH reported AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported (
            team text, period date, amount numeric, spent numeric, per_day numeric, runs_out date,
            level text, hold text, expected numeric, low numeric, high numeric
        )
    ), gone AS (
        DELETE FROM budget_standing WHERE team NOT IN (SELECT team FROM reported)
    )
    INSERT INTO budget_standing AS stored (
        team, period, amount, spent, per_day, runs_out, level, hold, expected, low, high, since, checked_at
    )
    SELECT team, period, amount, spent, per_day, runs_out, level, hold, expected, low, high, now(), now()
    FROM reported
    ON CONFLICT (team) DO UPDATE SET
        period = excluded.period, amount = excluded.amount, spent = excluded.spent,
        per_day = excluded.per_day, runs_out = excluded.runs_out, level = excluded.level,
        hold = excluded.hold, expected = excluded.expected, low = excluded.low, high = excluded.high,
        checked_at = excluded.checked_at,
        since = CASE
            WHEN (stored.period, stored.level, stored.hold)
                IS NOT DISTINCT FROM (excluded.period, excluded.level, excluded.hold)
            THEN stored.since ELSE excluded.since
        END
""")


class BudgetWriter(FencedWriter):
    """Writes the state of budgets."""

    async def write(
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
                "expected": None if s.expected is None else str(s.expected),
                "low": None if s.low is None else str(s.low),
                "high": None if s.high is None else str(s.high),
            }
            for s in standings
        ]
        await self._connection.execute(_REPLACE, {"rows": json_rows(rows)})
        if events:
            await self._connection.execute(
                insert(budget_event), [{"team": team, "text": sanitize(message)} for team, message in events]
            )


class BudgetStore(LedgerStore):
    """Reads the state of budgets and their events."""

    async def statuses(self) -> tuple[StoredBudgetStatus, ...]:
        """Return the state of every team's budget, by team name."""
        rows = await self._fetch(select(budget_standing).order_by(budget_standing.c.team))
        return tuple(
            StoredBudgetStatus(
                **{
                    **row._mapping,
                    "level": BudgetLevel(row.level),
                    "hold": None if row.hold is None else Hold(row.hold),
                }
            )
            for row in rows
        )

    async def events(
        self, *, team: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[BudgetEvent, ...]:
        """Return at most `limit` (≤ 2000) events, newest first; `before` is the last id seen."""
        page = select(budget_event).order_by(budget_event.c.id.desc()).limit(page_limit(limit))
        if team is not None:
            page = page.where(budget_event.c.team == team)
        if before is not None:
            page = page.where(budget_event.c.id < before)
        return tuple(BudgetEvent(**row._mapping) for row in await self._fetch(page))
