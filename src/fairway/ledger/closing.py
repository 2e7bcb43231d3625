"""Closed months: what was told stays told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import ClosedCharge, ClosedMonth


async def close(
    connections: Connections,
    month: date,
    charges: Sequence[ClosedCharge],
    *,
    by: str,
    currency: str,
    timezone: str,
) -> ClosedMonth:
    raise NotImplementedError


async def months(connections: Connections) -> tuple[ClosedMonth, ...]:
    raise NotImplementedError


async def charges(
    connections: Connections, *, month: date | None, used_in: date | None
) -> tuple[tuple[date, ClosedCharge], ...]:
    raise NotImplementedError
