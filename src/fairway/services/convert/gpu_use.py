"""Convert what GPUs did to wire types. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fairway.advise.gang import Outlier, outliers
from fairway.ledger.records.gpu_use import CoursePoint, DeviceUse, JobUse, LatestUse, SupplyNow
from fairway.model.gpu_use import GpuUse, MetricCode
from fairway.wire import gpu_use as wire


def use(found: JobUse) -> wire.Use:
    """Convert the use of a job."""
    measured = found.use.measured
    return wire.Use(
        **_means(found.use),
        held_gpu_seconds=found.held,
        measured_gpu_seconds=measured,
        unmeasured_gpu_seconds=found.held - measured,
        idle_gpu_seconds=found.idle,
        memory_peak_mib=found.use.peak_memory_mib,
        energy_joules=found.use.integrals.get(MetricCode.POWER),
        read_to=found.read_to,
        latest=_latest(found.latest),
    )


def gpus(devices: Sequence[DeviceUse], max_gpus: int, *, runs: bool) -> list[wire.GpuUse]:
    """Convert the first GPUs of a job: those that differ from the others, then by node and index.

    Of a job that runs they are compared by what they do now, else by the whole life of the job. Only those
    of the last attempt are: what an earlier one held is not beside them.
    """
    newest = max((d.latest.at for d in devices if d.latest), default=None)
    current = [d for d in devices if d.latest is not None and d.latest.at == newest]
    compared = outliers([d.latest.means if runs and d.latest else _ratios(d.use) for d in current])
    marks = {d.device: outlier for d, outlier in zip(current, compared, strict=True)}
    ordered = sorted(
        devices, key=lambda d: (marks.get(d.device) is None, d.latest is None or d.latest.at != newest)
    )
    return [_gpu(d, newest, marks.get(d.device)) for d in ordered[:max_gpus]]


def course(points: Sequence[CoursePoint]) -> list[wire.CoursePoint]:
    """Convert the course of a job."""
    return [
        wire.CoursePoint(
            **_means(point.use),
            start=point.start,
            seconds=point.seconds,
            measured_gpu_seconds=point.use.measured,
            idle_gpu_seconds=point.idle,
        )
        for point in points
    ]


def supplies(found: Sequence[SupplyNow]) -> wire.UseNow:
    """Convert what supplies did in the last window."""
    return wire.UseNow(
        supplies=[
            wire.SupplyUse(
                pool=row.supply.pool,
                slice=row.supply.slice,
                at=row.at,
                measured_gpus=row.measured_gpus,
                busy_gpus=row.busy_gpus,
                idle_gpus=row.idle_gpus,
            )
            for row in found
        ]
    )


def _gpu(found: DeviceUse, newest: datetime | None, outlier: Outlier | None) -> wire.GpuUse:
    latest = found.latest if found.latest and found.latest.at == newest else None
    return wire.GpuUse(
        **_means(found.use),
        node=found.device.node,
        gpu=found.device.gpu,
        instance=found.device.instance,
        measured_gpu_seconds=found.use.measured,
        idle_gpu_seconds=found.idle,
        memory_peak_mib=found.use.peak_memory_mib,
        latest=_latest(latest),
        mark=outlier.mark if outlier else None,
        mark_text=outlier.text if outlier else "",
    )


def _latest(latest: LatestUse | None) -> wire.LatestUse | None:
    if latest is None:
        return None
    means = {_FIELDS[code]: value for code, value in latest.means.items() if code in _FIELDS}
    return wire.LatestUse(**means, at=latest.at, gpus=latest.gpus)


_FIELDS = {
    MetricCode.ENGINE: "engine",
    MetricCode.SM: "sm",
    MetricCode.TENSOR: "tensor",
    MetricCode.DRAM: "dram",
    MetricCode.MEMORY: "memory_mib",
    MetricCode.POWER: "power_watts",
}


def _means(found: GpuUse) -> dict[str, Any]:
    return {name: found.ratio(code) for code, name in _FIELDS.items()}


def _ratios(found: GpuUse) -> dict[MetricCode, float]:
    return {code: ratio for code in MetricCode if (ratio := found.ratio(code)) is not None}
