"""What a client can ask about money."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Unpack

from fairway.api import cost_wire as wire
from fairway.client import cost_calls as calls
from fairway.client.calls import Answer, Call
from fairway.client.cost_calls import Asked


class MoneyVerbs(ABC):
    """Reports, statements and prices. `Client` has these; `AsyncClient` has the same to await."""

    def report_cost(self, **asked: Unpack[Asked]) -> wire.CostReport:
        """What usage cost: `report_cost(window="2026-10", by=["team", "pool"])`. Rows sum to the total."""
        return self._send(calls.cost(**asked))

    def report_usage(self, **asked: Unpack[Asked]) -> wire.UsageReport:
        """What was held: GPU-hours, slices by their part, and slices as they are."""
        return self._send(calls.usage(**asked))

    def report_waste(self, **asked: Unpack[Asked]) -> wire.WasteReport:
        """What nobody used, by why, and what it cost; `by` pool, cluster, slice or day."""
        return self._send(calls.waste(**asked))

    def report_capacity(self, **asked: Unpack[Asked]) -> wire.CapacityReport:
        """What was there by day and pool, used or not, and what it cost."""
        return self._send(calls.capacity(**asked))

    def statements(self, month: str, team: str | None = None) -> wire.Statements:
        """A month's charges by team."""
        return self._send(calls.statements(month, team))

    def close_month(self, month: str) -> wire.Statements:
        """Keep a month as it is told now, for good."""
        return self._send(calls.close_month(month))

    def prices(self) -> wire.Prices:
        """What each pool costs today."""
        return self._send(calls.prices())

    def keep_price_points(self, pool: str, points: Sequence[wire.PricePoint]) -> int:
        """Add to a pool's price series; how many said something new."""
        return sum(self._send(call).kept for call in calls.price_points(pool, points))

    @abstractmethod
    def _send(self, call: Call[Answer]) -> Answer: ...
