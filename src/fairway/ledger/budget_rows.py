"""How budgets stand, and what happened to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import BudgetEvent, BudgetLevel, BudgetStanding
from fairway.ledger.cost_tables import budget_event, budget_standing
from fairway.ledger.observations import kept
from fairway.ledger.states import LONGEST_PAGE
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


async def keep(
    connection: AsyncConnection,
    standings: Sequence[BudgetStanding],
    events: Sequence[tuple[TeamName, str]],
) -> None:
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
    await connection.execute(_KEEP, {"rows": msgspec.json.encode(rows).decode()})
    if events:
        await connection.execute(
            insert(budget_event), [{"team": team, "text": kept(said)} for team, said in events]
        )


async def standings(connections: Connections) -> tuple[BudgetStanding, ...]:
    async with connections.single() as connection:
        rows = await connection.execute(select(budget_standing).order_by(budget_standing.c.team))
        return tuple(map(_standing, rows))


async def events(
    connections: Connections, *, team: str | None, before: int | None, limit: int
) -> tuple[BudgetEvent, ...]:
    wanted = select(budget_event).order_by(budget_event.c.id.desc())
    wanted = wanted.limit(max(1, min(limit, LONGEST_PAGE)))
    if team is not None:
        wanted = wanted.where(budget_event.c.team == team)
    if before is not None:
        wanted = wanted.where(budget_event.c.id < before)
    async with connections.single() as connection:
        return tuple(
            BudgetEvent(row.id, row.at, TeamName(row.team), row.text)
            for row in await connection.execute(wanted)
        )


def _standing(row: Row[*tuple[Any, ...]]) -> BudgetStanding:
    return BudgetStanding(
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
