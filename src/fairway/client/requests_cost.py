"""The calls about money, for both clients: each method is one of these, sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict, Unpack
from urllib.parse import quote

import httpx2

from fairway.client.http import Answer, Call, get
from fairway.wire import costs as wire

# A year by name reads every row of it.
PATIENT: Final = httpx2.Timeout(300.0, connect=5.0)
_POINTS_AT_ONCE: Final = 10_000


class CostFilters(TypedDict, total=False):
    """What a report is about; what is left out is not asked about."""

    window: str
    """`30d`, `2026-10`, `2026-10-15`, `2026-10-01..2026-10-15`."""
    by: Sequence[str]
    """team, user, pool, priority, name, cluster, slice, day."""
    team: str | None
    """With all teams inside it."""
    user: str | None
    pool: str | None
    most: int | None
    """Rows; what is beyond is summed up in one."""


def cost(**asked: Unpack[CostFilters]) -> Call[wire.CostReport]:
    """What usage cost."""
    return _report("cost", wire.CostReport, asked)


def usage(**asked: Unpack[CostFilters]) -> Call[wire.UsageReport]:
    """What was held."""
    return _report("usage", wire.UsageReport, asked)


def waste(**asked: Unpack[CostFilters]) -> Call[wire.WasteReport]:
    """What nobody used."""
    return _report("waste", wire.WasteReport, asked)


def capacity(**asked: Unpack[CostFilters]) -> Call[wire.CapacityReport]:
    """What was there by day and pool, and what it cost."""
    return _report("capacity", wire.CapacityReport, asked)


def statements(month: str, team: str | None) -> Call[wire.Statements]:
    """A month by team."""
    return _patient(get(f"/v1/statements/{quote(month, safe='')}", wire.Statements, [("team", team)]))


def close_month(month: str) -> Call[wire.Statements]:
    """Close it; a second time is refused, so it is not asked twice."""
    return Call("POST", f"/v1/statements/{quote(month, safe='')}/close", wire.Statements, timeout=PATIENT)


def prices() -> Call[wire.Prices]:
    """What each pool costs today."""
    return get("/v1/prices", wire.Prices)


def price_points(pool: str, points: Sequence[wire.PricePoint]) -> list[Call[wire.StoredPricePoints]]:
    """Add to a pool's price series, in pieces; twice is the same as once."""
    path = f"/v1/pools/{quote(pool, safe='')}/price-points"
    return [
        Call(
            "PUT",
            path,
            wire.StoredPricePoints,
            body=wire.PricePointsRequest(points=list(points[i : i + _POINTS_AT_ONCE]))
            .model_dump_json()
            .encode(),
            timeout=PATIENT,
            again=True,
        )
        for i in range(0, len(points), _POINTS_AT_ONCE)
    ]


def focus_params(window: str, team: str | None) -> list[tuple[str, str]]:
    """Of the route that streams a FOCUS file."""
    return [("window", window), *([("team", team)] if team else [])]


def _report(kind: str, answer: type[Answer], asked: CostFilters) -> Call[Answer]:
    params: list[tuple[str, object]] = [
        *((key, asked.get(key)) for key in ("window", "team", "user", "pool", "most")),
        *(("by", label) for label in asked.get("by", ())),
    ]
    return _patient(get(f"/v1/reports/{kind}", answer, params))


def _patient(call: Call[Answer]) -> Call[Answer]:
    return Call(call.method, call.path, call.answer, call.params, timeout=PATIENT, again=True)
