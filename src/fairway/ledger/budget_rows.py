"""How budgets stand, and what happened to them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import BudgetEvent, BudgetStanding
from fairway.model.names import TeamName


async def keep(
    connection: AsyncConnection,
    standings: Sequence[BudgetStanding],
    events: Sequence[tuple[TeamName, str]],
) -> None:
    raise NotImplementedError


async def standings(connections: Connections) -> tuple[BudgetStanding, ...]:
    raise NotImplementedError


async def events(
    connections: Connections, *, team: str | None, before: int | None, limit: int
) -> tuple[BudgetEvent, ...]:
    raise NotImplementedError
