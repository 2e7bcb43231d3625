"""Define the JSON of a capacity plan: how many GPUs of which pool meet objectives, and what they cost."""

from __future__ import annotations

from pydantic import Field

from fairway.wire.fleet import Moment, Price, Wire


class PlannedObjective(Wire):
    """What became of an objective in the replay of a size."""

    name: str
    target: Price
    compliance: float | None = Field(description="the good part of its events; null: it has none")


class PlannedMonth(Wire):
    """What a pool needs in a month, with all other pools as they are."""

    pool: str
    month: int = Field(description="from now; 0: the demand of the trace")
    demand: float = Field(description="of the demand of the trace", examples=[1.34])
    nodes: int | None = Field(description="the fewest that meet all objectives; null: no number does")
    gpus: int | None
    more_gpus: int | None = Field(description="than now; negative: so many could be spared")
    objectives: list[PlannedObjective] = Field(
        description="with so many nodes; with the most that were tried, if none meets them"
    )
    tried: int = Field(description="the most nodes that were tried")
    burst_gpu_hours: float = Field(description="in a month, held beyond the present GPUs")
    buy: Price | None = Field(description="monthly cost of `more_gpus` at the price of owned capacity")
    reserve: Price | None = Field(description="the same at the price of reserved capacity")
    burst: Price | None = Field(description="monthly cost of `burst_gpu_hours` on demand")


class CapacityPlan(Wire):
    """A capacity plan."""

    fleet: str
    currency: str
    source: str = Field(description="the trace")
    begin: Moment
    end: Moment
    jobs: int
    growth: float = Field(description="of the demand in a month: 0.05")
    limits_grow: bool = Field(description="whether guarantees and ceilings grow with the pool")
    objectives: list[str] = Field(description="in words")
    months: list[PlannedMonth]
