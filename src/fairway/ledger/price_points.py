"""Spot prices over time: told again, the newest word on a moment holds, and the older ones stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairway.ledger.connection import Connections
from fairway.ledger.cost_records import PricePointRow
from fairway.model.charge import Span
from fairway.model.names import PoolName
from fairway.model.price import PricePoint


async def keep(connections: Connections, points: Sequence[PricePointRow], *, by: str) -> int:
    raise NotImplementedError


async def points(
    connections: Connections, pools: Collection[PoolName], window: Span
) -> Mapping[PoolName, tuple[PricePoint, ...]]:
    raise NotImplementedError
