"""Usage summed for a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import LocalTime, UsageFilter
from fairway.model.charge import Label, Span, UsageSum
from fairway.model.names import PoolName


async def sums(
    connections: Connections,
    spans: Mapping[PoolName, Sequence[Span]],
    by: Sequence[Label],
    which: UsageFilter,
    live_until: int | None,
    local: LocalTime,
) -> tuple[UsageSum, ...]:
    raise NotImplementedError
