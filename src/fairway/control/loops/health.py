"""The step of the health loop: read what is wrong with a cluster's GPUs, and store events with their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Telemetry
from fairway.model.names import ClusterName
from fairway.telemetry.health import HealthReader
from fairway.telemetry.prometheus import Prometheus
from fairway.telemetry.reader import DEFAULT_INTERVAL, NodeNames

SETTLED_SCRAPES: Final = 2
"""After so many scrapes, what happened to a GPU is in Prometheus."""


class WatchHealth:
    """Watches the GPUs of one cluster."""

    def __init__(
        self,
        cluster: ClusterName,
        source: Telemetry,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.time,
        prometheus: Callable[[Telemetry], Prometheus] = Prometheus,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._ledger = ledger
        self._clock = clock
        self._build = prometheus
        self._prometheus: Prometheus | None = None

    async def __call__(self, lease: Lease) -> None:
        """Read once, and store what is new and what lasts."""
        now = self._clock()
        if self._prometheus is None:
            self._prometheus = self._build(self._source)
        mark = await self._ledger.gpu_use.mark(self._cluster)
        interval = DEFAULT_INTERVAL if mark is None else mark.interval
        nodes = NodeNames(await self._ledger.gpu_use.nodes(self._cluster))
        known = await self._ledger.gpu_events.known(self._cluster, now)
        sightings = await HealthReader(self._prometheus, self._source.select, nodes).read(now, known)
        async with self._ledger.writing(lease) as tx:
            await tx.gpu_events.record(sightings, read_at=now, settled_to=now - SETTLED_SCRAPES * interval)

    async def close(self) -> None:
        """Close the connections; the next step opens new ones."""
        if self._prometheus is not None:
            await self._prometheus.close()
            self._prometheus = None
