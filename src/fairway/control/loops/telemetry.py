"""The step of the telemetry loop: read the windows of GPU metrics that have closed, each exactly once.

A window is read some time after its end, when scrapes that were under way have arrived. What Prometheus does
not have is not measured; while it does not answer, or the mirror does not follow the cluster's jobs, the loop
waits and then catches up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from fairway.control.condition_record import ConditionRecord
from fairway.cost.calendar import calendar_of
from fairway.ledger import Lease, Ledger
from fairway.model.condition import Condition, ConditionType, error_condition
from fairway.model.fleet import Fleet, Telemetry
from fairway.model.gpu_use import WINDOW_SECONDS, MetricCode, Window
from fairway.model.names import ClusterName
from fairway.services.fleets import LastApplied
from fairway.telemetry.inspection import inspect
from fairway.telemetry.prometheus import Prometheus, TelemetryRefused, TelemetryUnreachable
from fairway.telemetry.reader import DEFAULT_INTERVAL, NodeNames, WindowReader, WindowUse

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

DELAY_SECONDS: Final = 60
"""How long after its end a window is read."""
INSPECT_EVERY_SECONDS: Final = 600
INSPECT_AGAIN_SECONDS: Final = 60
"""After something was missing: whoever installs it wants to see that it is there."""
MAX_WINDOWS: Final = 24
"""Windows in one step; the rest is left to the next step."""


class ReadTelemetry:
    """Reads the metrics of one cluster's GPUs."""

    def __init__(
        self,
        cluster: ClusterName,
        source: Telemetry,
        ledger: Ledger,
        applied: LastApplied,
        *,
        clock: Callable[[], float] = time.time,
        window_seconds: int = WINDOW_SECONDS,
        delay_seconds: int = DELAY_SECONDS,
        prometheus: Callable[[Telemetry], Prometheus] = Prometheus,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._ledger = ledger
        self._applied = applied
        self._clock = clock
        self._window_seconds = window_seconds
        self._delay_seconds = delay_seconds
        self._build = prometheus
        self._prometheus: Prometheus | None = None
        self._inspect_at = 0.0
        self._condition = ConditionRecord(ledger, ConditionType.GPUS_NOT_MEASURED)

    async def __call__(self, lease: Lease) -> None:
        """Read every window that has closed; does nothing before the first fleet.

        What keeps it from that, or the metrics lack, is recorded as a condition of the cluster.
        """
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        try:
            await self._read_closed(lease, fleet)
        except (TelemetryUnreachable, TelemetryRefused) as error:
            await self._condition.write(lease, error_condition(ConditionType.GPUS_NOT_MEASURED, error))
            raise
        await self._inspect(lease, fleet)

    async def _inspect(self, lease: Lease, fleet: Fleet) -> None:
        """Look now and then what the metrics lack."""
        if self._clock() < self._inspect_at:
            return
        nodes = await self._ledger.gpu_use.nodes(self._cluster)
        lacking = await inspect(replace(fleet.cluster(self._cluster), telemetry=self._source), nodes)
        self._inspect_at = self._clock() + (INSPECT_AGAIN_SECONDS if lacking else INSPECT_EVERY_SECONDS)
        condition = None
        if lacking:
            first, *others = lacking
            condition = Condition(
                ConditionType.GPUS_NOT_MEASURED,
                first.code,
                first.message,
                first.hint,
                "\n".join(f"{one.code}: {one.message}\n  hint: {one.hint}" for one in others),
            )
        await self._condition.write(lease, condition)

    async def _read_closed(self, lease: Lease, fleet: Fleet) -> None:
        until = int(self._clock()) - self._delay_seconds
        # While jobs are not followed, nobody knows who held GPUs.
        if (followed_to := await self._ledger.mirror.complete_at(self._cluster)) is not None:
            until = min(until, followed_to)
        mark = await self._ledger.gpu_use.mark(self._cluster)
        if mark is None:
            async with self._ledger.writing(lease) as tx:
                await tx.gpu_use.start(until - until % self._window_seconds, DEFAULT_INTERVAL)
            return
        read_to, interval = mark.read_to, mark.interval
        for _ in range(MAX_WINDOWS):
            window = Window(read_to, read_to + self._window_seconds)
            if window.end > until:
                return
            interval = await self._read(lease, fleet, window, interval)
            read_to = window.end

    async def close(self) -> None:
        """Close the connections; the next step opens new ones."""
        self._inspect_at = 0.0
        self._condition.forget()
        if self._prometheus is not None:
            await self._prometheus.close()
            self._prometheus = None

    async def _read(self, lease: Lease, fleet: Fleet, window: Window, interval: float) -> float:
        if self._prometheus is None:
            self._prometheus = self._build(self._source)
        nodes = NodeNames(await self._ledger.gpu_use.nodes(self._cluster))
        reader = WindowReader(self._prometheus, self._source.select, nodes)
        holdings = await self._ledger.gpu_use.holdings(self._cluster, window)
        use = await reader.read(window, holdings, interval)
        calendar = calendar_of(fleet)
        async with self._ledger.writing(lease) as tx:
            await tx.gpu_use.add(
                window,
                calendar.hour_start(window.start),
                calendar.day_of(window.start),
                use.jobs,
                _by_node(use),
                use.interval,
                use.hosts,
            )
        return use.interval


def _by_node(use: WindowUse) -> dict[str, tuple[float, float]]:
    """Return the measured and the busy GPU-seconds of each node, whoever held its GPUs.

    A GPU that several hold has a reading for each: of its time, no more than the window counts.
    """
    measured: dict[tuple[str, str, str], list[float]] = {}
    for reading in use.readings:
        if MetricCode.ENGINE in reading.means:
            seconds = reading.samples * use.interval
            device = (reading.device.node, reading.device.gpu, reading.device.instance)
            entry = measured.setdefault(device, [0.0, 0.0])
            entry[0] += seconds
            entry[1] += seconds * reading.means[MetricCode.ENGINE]
    nodes: dict[str, tuple[float, float]] = {}
    for (node, _, _), (seconds, busy) in measured.items():
        factor = min(1.0, use.window.seconds / seconds) if seconds else 0.0
        before = nodes.get(node, (0.0, 0.0))
        nodes[node] = (before[0] + seconds * factor, before[1] + busy * factor)
    return nodes
