"""Build the figures of jobs' GPU use: the last hours of running ones, the life of ended ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from fairway.cost.calendar import Calendar, calendar_of
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.ledger.telemetry.figures import HeldTime, MeasuredJob
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import WINDOW_SECONDS, Device, GpuUse, HostUse, MetricCode
from fairway.model.job import JobId, JobState
from fairway.model.names import ClusterName, NodeName
from fairway.model.telemetry import GpuFigures, HeldGpu, HostFigures, JobFigures

RECENT_SECONDS: Final = 7200
"""The figures of a running job are about this long, and the part of an hour before it."""
LATE_SECONDS: Final = 900
"""Windows that should have been read longer ago than this count as not measured."""


async def job_figures(
    ledger: Ledger, job_ids: Sequence[JobId], fleet: Fleet, now: datetime
) -> dict[JobId, JobFigures]:
    """Return the figures of those of these jobs that held GPUs of a cluster that is read, or once was."""
    rows = await ledger.jobs.rows(job_ids)
    upto = await _read_up_to(ledger, {row.cluster for row in rows}, fleet, now.timestamp())
    rows = tuple(
        row
        for row in rows
        if row.cluster in upto
        and row.pool is not None
        # What replicas do that come and go is no figure of one run.
        and row.replicas is None
        # Of a cluster that is not read any more, nothing is known of what runs there now.
        and (row.state is not JobState.RUNNING or upto[row.cluster] > now.timestamp() - LATE_SECONDS)
    )
    held = await ledger.figures.held([row.id for row in rows])
    calendar = calendar_of(fleet)
    recent = {
        row.id: _recent_start(held[row.id], upto[row.cluster], calendar)
        for row in rows
        if row.state is JobState.RUNNING and held.get(row.id) and held[row.id][-1].until is None
    }
    ended = [row.id for row in rows if row.state is not JobState.RUNNING and row.id in held]
    measured = await ledger.figures.life(ended) if ended else {}
    measured |= await ledger.figures.recent(recent) if recent else {}
    found = {}
    for row in rows:
        if row.id not in held:
            continue
        since = recent.get(row.id, 0)
        times = held[row.id][-1:] if since else held[row.id]
        if spans := _held_spans(times, since, upto[row.cluster]):
            job = measured.get(row.id, MeasuredJob())
            begun = max(since, times[-1].since)
            recent_windows = _recent(job.windows, begun, upto[row.cluster]) if since else ()
            found[row.id] = _figures(row, job, spans, recent_windows, fleet)
    return found


async def _read_up_to(
    ledger: Ledger, clusters: set[ClusterName], fleet: Fleet, now: float
) -> dict[ClusterName, float]:
    """Return up to when each cluster's GPUs were read, or should have been; without those that never were."""
    configured = {c.name for c in fleet.clusters if c.telemetry is not None}
    found: dict[ClusterName, float] = {}
    for cluster in clusters:
        mark = await ledger.gpu_use.mark(cluster)
        if mark is not None:
            late = cluster in configured and mark.read_to <= now - LATE_SECONDS
            found[cluster] = now if late else mark.read_to
    return found


def _recent_start(held: Sequence[HeldTime], upto: float, calendar: Calendar) -> int:
    """Return the start of the first hour whose sums are about the running attempt alone."""
    first = calendar.hour_span(int(upto) - RECENT_SECONDS)
    start = held[-1].since
    if start < first.end:
        return first.start if all((h.until or 0.0) <= first.start for h in held[:-1]) else first.end
    hour = calendar.hour_span(int(start))
    alone = all((h.until or 0.0) <= hour.start for h in held[:-1])
    return hour.start if alone else hour.end


def _held_spans(held: Sequence[HeldTime], since: float, upto: float) -> list[tuple[int, float]]:
    """Return devices and seconds of each time that was held between two moments."""
    spans = [(h.devices, min(upto if h.until is None else h.until, upto) - max(h.since, since)) for h in held]
    return [(devices, seconds) for devices, seconds in spans if devices and seconds > 0]


def _figures(
    row: JobRow,
    job: MeasuredJob,
    spans: Sequence[tuple[int, float]],
    recent: tuple[float | None, ...],
    fleet: Fleet,
) -> JobFigures:
    total = _memory_total(row, fleet)
    held = sum(devices * seconds for devices, seconds in spans)
    measured = sum(use.measured for use in job.devices.values())
    return JobFigures(
        span_seconds=sum(seconds for _, seconds in spans),
        held_gpu_seconds=held,
        measured_gpu_seconds=min(held, measured),
        gpus=tuple(
            HeldGpu(NodeName(device.node), _index(device), _gpu_figures(use, total))
            for device, use in job.devices.items()
        ),
        nodes=row.nodes,
        gpus_per_node=row.gpus,
        host=_host_figures(job.host, row.nodes),
        is_service=row.service or fleet.diagnosis.is_service(row.name, row.engine_id),
        is_slice=row.slice is not None,
        recent=recent,
    )


def _index(device: Device) -> int:
    return int(device.gpu) if device.gpu.isdigit() else 0


def _gpu_figures(use: GpuUse, memory_total_mib: float | None) -> GpuFigures:
    return GpuFigures(
        measured_seconds=use.measured,
        engine=use.ratio(MetricCode.ENGINE),
        sm=use.ratio(MetricCode.SM),
        tensor=use.ratio(MetricCode.TENSOR),
        dram=use.ratio(MetricCode.DRAM),
        memory_used_mib=use.ratio(MetricCode.MEMORY),
        memory_peak_mib=use.peak_memory_mib,
        memory_total_mib=memory_total_mib,
        power_watts=use.ratio(MetricCode.POWER),
        pcie_bytes_per_second=use.ratio(MetricCode.PCIE),
        nvlink_bytes_per_second=use.ratio(MetricCode.NVLINK),
    )


def _host_figures(host: HostUse, nodes: int) -> HostFigures:
    given = host.cpu_given
    return HostFigures(
        cpu_ratio=host.cpu / given if given else None,
        io_pressure=host.io_wait / host.io_wait_seconds if host.io_wait_seconds else None,
        cpus=max(1, round(given / host.cpu_seconds / nodes)) if host.cpu_seconds else None,
    )


def _memory_total(row: JobRow, fleet: Fleet) -> float | None:
    """Return the memory of one of the job's GPUs or slices."""
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    if pool is None:
        return None
    if row.slice is None:
        return pool.gpu.memory_gb * 1024.0
    profile = pool.gpu.profile(row.slice)
    return None if profile is None else float(profile.memory_mib)


def _recent(
    windows: Mapping[int, tuple[float, float]], since: float, upto: float
) -> tuple[float | None, ...]:
    """Return the mean engine ratio of each whole window between two moments; None: not measured."""
    found: list[float | None] = []
    first = -int(-since // WINDOW_SECONDS) * WINDOW_SECONDS
    for start in range(first, int(upto) - WINDOW_SECONDS + 1, WINDOW_SECONDS):
        measured, busy = windows.get(start, (0.0, 0.0))
        found.append(busy / measured if measured else None)
    return tuple(found)
