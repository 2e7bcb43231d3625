"""The step of the telemetry loop: read the windows of GPU metrics that have closed, each exactly once.

A window is read some time after its end, when scrapes that were under way have arrived. What Prometheus does
not have is not measured; while it does not answer, the loop waits and then catches up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import structlog

from fairway.cost.calendar import calendar_of
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Fleet, Telemetry
from fairway.model.gpu_use import WINDOW_SECONDS, Holding, MetricCode, Window
from fairway.model.names import ClusterName
from fairway.services.fleets import LastApplied
from fairway.telemetry.prometheus import Prometheus
from fairway.telemetry.reader import DEFAULT_INTERVAL, NodeNames, WindowReader, WindowUse, engine_ids

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

DELAY_SECONDS: Final = 60
"""How long after its end a window is read."""
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
        prometheus: Callable[[Telemetry], Prometheus] = Prometheus,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._ledger = ledger
        self._applied = applied
        self._clock = clock
        self._build = prometheus
        self._prometheus: Prometheus | None = None

    async def __call__(self, lease: Lease) -> None:
        """Read every window that has closed; does nothing before the first fleet."""
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        until = int(self._clock()) - DELAY_SECONDS
        mark = await self._ledger.gpu_use.mark(self._cluster)
        if mark is None:
            async with self._ledger.writing(lease) as tx:
                await tx.gpu_use.start(until - until % WINDOW_SECONDS, DEFAULT_INTERVAL)
            return
        read_to, interval = mark.read_to, mark.interval
        for _ in range(MAX_WINDOWS):
            window = Window(read_to, read_to + WINDOW_SECONDS)
            if window.end > until:
                return
            interval = await self._read(lease, fleet, window, interval)
            read_to = window.end

    async def close(self) -> None:
        """Close the connections; the next step opens new ones."""
        if self._prometheus is not None:
            await self._prometheus.close()
            self._prometheus = None

    async def _read(self, lease: Lease, fleet: Fleet, window: Window, interval: float) -> float:
        if self._prometheus is None:
            self._prometheus = self._build(self._source)
        nodes = NodeNames(await self._ledger.gpu_use.nodes(self._cluster))
        reader = WindowReader(self._prometheus, self._source.select, nodes)
        use = await reader.read(window, partial(self._holdings, window), interval)
        calendar = calendar_of(fleet)
        async with self._ledger.writing(lease) as tx:
            await tx.gpu_use.add(
                window,
                calendar.hour_start(window.start),
                calendar.day_of(window.start),
                use.jobs,
                _by_node(use),
                use.interval,
            )
        return use.interval

    async def _holdings(self, window: Window, holders: Collection[str]) -> list[Holding]:
        candidates = [(engine_id, holder) for holder in holders for engine_id in engine_ids(holder)]
        return await self._ledger.gpu_use.holdings(self._cluster, window, candidates)


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
