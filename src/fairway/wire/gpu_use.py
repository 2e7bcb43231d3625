"""Define the JSON of what GPUs did while jobs held them. What is not measured is null, never 0.

Measured and unmeasured GPU-seconds always add up to held ones. A slice of a GPU counts as a GPU here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fairway.model.gpu_use import GangMark, HeldKind
from fairway.wire.fleet import Moment, Wire

Ratio = Annotated[float, Field(examples=[0.83])]
Seconds = Annotated[float, Field(examples=[28800.0])]


class Means(Wire):
    """Means of metrics over the time in which each was measured; ratios from 0 to 1."""

    engine: Ratio | None = Field(default=None, description="of the time, its engine was busy")
    sm: Ratio | None = Field(default=None, description="of all multiprocessors, with work")
    tensor: Ratio | None = Field(default=None, description="of the time, its tensor cores were busy")
    dram: Ratio | None = Field(default=None, description="of the time, its memory interface moved data")
    memory_mib: float | None = Field(default=None, description="memory in use")
    power_watts: float | None = None


class LatestUse(Means):
    """Means of the last window of five minutes that was measured."""

    at: Moment = Field(description="when the window began")
    gpus: int = Field(default=1, description="how many were measured in it")


class Use(Means):
    """What GPUs did while a job held them, over its whole life so far."""

    held_gpu_seconds: Seconds
    measured_gpu_seconds: Seconds
    unmeasured_gpu_seconds: Seconds = Field(description="held, and nothing is known of what they did")
    idle_gpu_seconds: Seconds = Field(
        description="measured, in windows of five minutes in which the GPU did nothing"
    )
    memory_peak_mib: float | None = Field(default=None, description="the most on one GPU")
    energy_joules: float | None = None
    read_to: Moment | None = Field(default=None, description="the metrics of its cluster are read up to then")
    latest: LatestUse | None = Field(default=None, description="null: never measured")


class GpuUse(Means):
    """What one GPU, or slice of one, did while the job held it."""

    node: str
    gpu: str = Field(description="its index, as the driver counts")
    instance: str = Field(description="of a MIG slice; empty: a whole GPU")
    measured_gpu_seconds: Seconds
    idle_gpu_seconds: Seconds
    memory_peak_mib: float | None = None
    latest: LatestUse | None = Field(description="null: it was held by an earlier attempt")
    mark: GangMark | None = Field(description="how it differs from the job's other GPUs; null: it does not")
    mark_text: str = Field(description="the same in words; empty: it does not")


class CoursePoint(Means):
    """What the GPUs of a job did in an hour or in a window of five minutes."""

    start: Moment
    seconds: int
    measured_gpu_seconds: Seconds
    idle_gpu_seconds: Seconds


class JobUse(Wire):
    """What the GPUs of a job did: in all, GPU by GPU, and over time."""

    id: str = Field(examples=["8f3k"])
    use: Use | None = Field(description="null: it held no GPUs, or no metrics of its cluster are read")
    gpus: list[GpuUse] = Field(description="those that differ from the others first, then by node and index")
    gpus_in_all: int
    hours: list[CoursePoint] = Field(description="oldest first, at most a month")
    windows: list[CoursePoint] = Field(description="of the last day, by five minutes; only the engine")


class SupplyUse(Wire):
    """What the held GPUs, or slices of one kind, of a pool did in the last window that was read."""

    pool: str
    slice: str | None = Field(description="null: whole GPUs")
    at: Moment = Field(description="when the window of five minutes began")
    measured_gpus: float = Field(description="held and measured")
    busy_gpus: float = Field(description="the mean number whose engine was busy")
    idle_gpus: int = Field(description="those that did nothing in the window")


class UseNow(Wire):
    """Use of GPUs that jobs held in the last window that was read; pools without measurements are omitted."""

    supplies: list[SupplyUse]


class HeldSpan(Wire):
    """What became of the GPU-seconds that were held in an hour or on a day: the kinds sum to those held."""

    start: Moment
    end: Moment = Field(description="up to but not; of the last one: up to when metrics are read")
    held_gpu_seconds: Seconds
    gpu_seconds: dict[HeldKind, Seconds]


class UseHistory(Wire):
    """Held GPU time over time; a slice counts as its part of a GPU. Empty: no metrics are read there."""

    by_day: bool = Field(description="false: by hour")
    read_to: Moment | None = Field(description="metrics are read up to then; null: none are")
    spans: list[HeldSpan]
