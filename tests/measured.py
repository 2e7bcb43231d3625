"""Windows of GPU use in a ledger, written as the telemetry loop does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from fairway.ledger import Ledger
from fairway.model.gpu_use import WINDOW_SECONDS, Device, GpuUse, JobDevices, MetricCode, Window
from fairway.model.job import JobId


def did(engine: float, seconds: float = WINDOW_SECONDS, **means: float) -> GpuUse:
    """What a GPU did in a window: `did(0.9, sm=0.7, memory=4096)`; memory in MiB is its peak too."""
    made = GpuUse()
    codes = {MetricCode(name): value for name, value in means.items()}
    made.add({MetricCode.ENGINE: engine, **codes}, seconds, means.get("memory"))
    return made


async def measure(
    ledger: Ledger,
    start: int,
    windows: int,
    jobs: Mapping[JobId, Mapping[Device, GpuUse]],
    nodes: Mapping[str, tuple[float, float]] | None = None,
    *,
    cluster: str = "hpc",
) -> int:
    """Add so many equal windows from `start` on. Returns when the last one ends."""
    lease = await ledger.leases.take("telemetry", cluster, "test", 60)
    assert lease is not None
    devices: JobDevices = {job: dict(each) for job, each in jobs.items()}
    async with ledger.writing(lease) as tx:
        await tx.gpu_use.start(start, 30.0)
    for number in range(windows):
        begin = start + number * WINDOW_SECONDS
        window = Window(begin, begin + WINDOW_SECONDS)
        day = datetime.fromtimestamp(begin, UTC).date()
        async with ledger.writing(lease) as tx:
            await tx.gpu_use.add(window, begin - begin % 3600, day, devices, dict(nodes or {}), 30.0)
    await ledger.leases.release(lease)
    return start + windows * WINDOW_SECONDS
