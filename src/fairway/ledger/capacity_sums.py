"""What there was to be used, by hour or day."""

from __future__ import annotations

from collections.abc import Collection

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import LocalTime
from fairway.model.charge import CapacitySum, Span


async def sums(
    connections: Connections,
    window: Span,
    by_day: bool,
    clusters: Collection[str] | None,
    live_until: int | None,
    local: LocalTime,
) -> tuple[CapacitySum, ...]:
    raise NotImplementedError
