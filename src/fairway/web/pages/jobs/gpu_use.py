"""Build what the job page shows of GPUs: side by side, and over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.model.gpu_use import HeldKind
from fairway.views.gpu_use import gpu_text, mark_text, memory_text, percent_text, watts_text
from fairway.web.use_chart import UseChart, UsePoint, draw_use
from fairway.wire import gpu_use as wire
from fairway.wire import jobs as job_wire

MAX_GPUS: Final = 64
"""GPUs that the page lists; those that differ from the others come first."""
MAX_POINTS: Final = 24 * 31
"""Of the course: the newest."""
_BY_WINDOW: Final = timedelta(hours=6)
"""The course of a shorter life is drawn by windows of five minutes."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure now and over the job's life."""

    name: str
    now: str
    life: str
    unit: str
    now_part: float | None = None
    life_part: float | None = None
    """Of a ratio, in percent, for a bar."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU."""

    node: str
    gpu: str
    pairs: tuple[Pair, ...]
    idle: str
    marked: bool
    note: str


@dataclass(frozen=True, slots=True)
class JobUseView:
    """The GPUs of a job, and their course."""

    rows: tuple[GpuRow, ...]
    gpus_in_all: int
    marked: int
    chart: UseChart | None


def job_use_view(found: wire.JobUse, attempts: Sequence[job_wire.Attempt]) -> JobUseView | None:
    """Build the view. Returns None if nothing was measured."""
    if not found.gpus or found.use is None or found.use.read_to is None:
        return None
    return JobUseView(
        tuple(_row(gpu) for gpu in found.gpus),
        found.gpus_in_all,
        sum(gpu.mark is not None for gpu in found.gpus),
        draw_use(_course(found, attempts, found.use.read_to)),
    )


def _course(found: wire.JobUse, attempts: Sequence[job_wire.Attempt], read_to: datetime) -> list[UsePoint]:
    """Return the whole life of a job, also what was held before, after and between what was measured."""
    first = min(a.started_at for a in attempts)
    last = min(read_to, max(a.ended_at or read_to for a in attempts))
    by_window = bool(found.windows) and last - first < _BY_WINDOW
    points = found.windows if by_window else found.hours
    if not points:
        return []
    step = points[0].seconds
    measured = {int(point.start.timestamp()): point for point in points}
    # Hours are those of the fleet's time zone, which may begin at half past an hour of UTC.
    offset = next(iter(measured)) % step
    start = int(first.timestamp()) - offset
    starts = range(start - start % step + offset, int(last.timestamp()), step)[-MAX_POINTS:]
    return [_point(at, step, measured.get(at), attempts, read_to) for at in starts]


def _point(
    at: int,
    seconds: int,
    point: wire.CoursePoint | None,
    attempts: Sequence[job_wire.Attempt],
    read_to: datetime,
) -> UsePoint:
    start = datetime.fromtimestamp(at, UTC)
    end = min(start + timedelta(seconds=seconds), read_to)
    held = sum(
        a.devices * max(0.0, (min(a.ended_at or read_to, end) - max(a.started_at, start)).total_seconds())
        for a in attempts
    )
    measured = point.measured_gpu_seconds if point else 0.0
    idle = min(point.idle_gpu_seconds, measured) if point else 0.0
    busy = min((point.engine or 0.0) * measured, measured - idle) if point else 0.0
    kinds = {
        HeldKind.BUSY: busy,
        HeldKind.POOR: measured - idle - busy,
        HeldKind.IDLE: idle,
        HeldKind.UNMEASURED: max(0.0, held - measured),
    }
    return UsePoint(start, seconds, kinds)


def _row(gpu: wire.GpuUse) -> GpuRow:
    now = gpu.latest or wire.Means()
    idle = gpu.idle_gpu_seconds / gpu.measured_gpu_seconds if gpu.measured_gpu_seconds else None
    return GpuRow(
        gpu.node,
        gpu_text(gpu),
        (
            _ratio("engine", now.engine, gpu.engine),
            _ratio("SM", now.sm, gpu.sm),
            _ratio("tensor", now.tensor, gpu.tensor),
            _ratio("DRAM", now.dram, gpu.dram),
            Pair("memory", memory_text(now.memory_mib), memory_text(gpu.memory_mib), "GiB"),
            Pair("power", watts_text(now.power_watts), watts_text(gpu.power_watts), "W"),
        ),
        percent_text(idle),
        gpu.mark is not None,
        mark_text(gpu) or ("held by an earlier attempt" if gpu.latest is None else ""),
    )


def _ratio(name: str, now: float | None, life: float | None) -> Pair:
    parts = (None if ratio is None else round(100 * min(ratio, 1.0), 1) for ratio in (now, life))
    return Pair(name, percent_text(now), percent_text(life), "%", *parts)
