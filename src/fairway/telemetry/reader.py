"""Read one window of a cluster's GPU metrics and attribute it: a fixed number of queries, one a metric.

Only hosts whose GPUs changed hands within the window, or are shared, are read sample by sample, some hundred
hosts a query.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, isnan
from typing import Final

import structlog

from fairway.model.gpu_use import Device, Holding, HostUse, JobDevices, MetricCode, Window
from fairway.model.job import JobId
from fairway.telemetry import queries
from fairway.telemetry.attribution import (
    Holders,
    Reading,
    Sample,
    ambiguous,
    attribute,
)
from fairway.telemetry.hosts import attribute_hosts
from fairway.telemetry.metrics import BY_CODE, METRICS, GpuMetric
from fairway.telemetry.prometheus import (
    Labels,
    MatrixRow,
    Prometheus,
    TelemetryRefused,
    TelemetryUnreachable,
    VectorRow,
    parse_number,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.telemetry")

HOSTS_A_QUERY: Final = 200
INTERVAL_SECONDS: Final = 900
"""Over how long the time between two samples is looked at."""
ENOUGH_GAPS: Final = 3
DEFAULT_INTERVAL: Final = 30.0
"""dcgm-exporter's own, where a window has too few samples to tell."""

_ENGINE: Final = BY_CODE[MetricCode.ENGINE]
_FALLBACK: Final = _ENGINE.fallback or ("", 1.0)
_ALL_NAMES: Final = (*(name for metric in METRICS for name in metric.names), _FALLBACK[0])
_CODES: Final = {name: metric.code for metric in METRICS for name in metric.names}


@dataclass(frozen=True, slots=True)
class WindowUse:
    """What a cluster's GPUs did in one window."""

    window: Window
    interval: float
    """Seconds between two samples."""
    jobs: JobDevices
    readings: tuple[Reading, ...]
    """Of every device, held or not."""
    hosts: Mapping[JobId, HostUse] = field(default_factory=dict)
    """Of jobs whose hosts' figures are exported."""


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Maps the host names of exporters to the engine's: one may have a domain where the other has none."""

    known: Collection[str]
    _short: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        short: dict[str, str] = {}
        for name in self.known:
            # Two nodes of one short name are told apart by the whole one only.
            first = name.partition(".")[0]
            short[first] = "" if first in short else name
        object.__setattr__(self, "_short", short)

    def node(self, host: str) -> str:
        """Return the engine's name of a host, or the host's own name if the engine has none like it."""
        return host if host in self.known else self._short.get(host.partition(".")[0]) or host


class WindowReader:
    """Reads windows from one cluster's Prometheus."""

    def __init__(self, prometheus: Prometheus, select: str, nodes: NodeNames) -> None:
        self._prometheus = prometheus
        self._select = select
        self._nodes = nodes

    async def read(
        self, window: Window, holdings: Iterable[Holding], interval: float = DEFAULT_INTERVAL
    ) -> WindowUse:
        """Read a window; `interval` is that of an earlier one, for a window with too few samples."""
        # By labels, which are the same in all answers: 8,000 GPUs have a hundred thousand rows.
        samples = await self._numbers(queries.counts(_ENGINE.names, self._select, window), window)
        means = {metric.code: await self._means(metric, window) for metric in METRICS}
        # Asked for only if a GPU may need it: each query of 8,000 GPUs costs Prometheus a tenth of a second.
        if not samples or any(column.keys() - samples.keys() for column in means.values()):
            await self._fall_back(window, samples, means[MetricCode.ENGINE])
        samples = {labels: number for labels, number in samples.items() if labels.storable}
        if not samples:
            return WindowUse(window, interval, {}, ())
        most = max(samples, key=lambda labels: samples[labels])
        interval = await self._interval(most, window, interval)
        holders = Holders(holdings, window)
        query = queries.peaks(BY_CODE[MetricCode.MEMORY].names, self._select, window)
        peaks = await self._numbers(query, window)
        readings = {
            labels: Reading(
                self._device(labels),
                labels.holder,
                number,
                {code: column[labels] for code, column in means.items() if labels in column},
                peaks.get(labels),
                labels.profile,
            )
            for labels, number in samples.items()
        }
        devices = ambiguous(readings.values(), holders, interval)
        hosts = {labels.host_name: labels for labels, one in readings.items() if one.device in devices}
        each = await self._samples(hosts, devices, window)
        every = tuple(readings.values())
        jobs = attribute(every, each, holders, interval)
        return WindowUse(window, interval, jobs, every, await self._hosts(window, jobs, holders))

    async def _hosts(self, window: Window, jobs: JobDevices, holders: Holders) -> Mapping[JobId, HostUse]:
        """Read what the hosts did. What cannot be read is not measured, and no reason to wait."""
        try:
            busy = await self._numbers(queries.busy_cores(self._select, window), window)
            given = await self._numbers(queries.given_cores(self._select, window), window)
            waits = await self._numbers(queries.io_waits(self._select, window), window)
        except (TelemetryUnreachable, TelemetryRefused) as error:
            log.warning("hosts-not-read", code=error.code, message=error.message, hint=error.hint)
            return {}
        return attribute_hosts(
            {labels.holder: cores for labels, cores in busy.items()},
            {labels.holder: cores for labels, cores in given.items()},
            {self._nodes.node(labels.machine): ratio for labels, ratio in waits.items()},
            jobs,
            holders,
        )

    async def _means(self, metric: GpuMetric, window: Window) -> dict[Labels, float]:
        # To add up the parts costs Prometheus more than to send them.
        parts = [(name,) for name in metric.names] if metric.parts else [metric.names]
        first, *more = [
            await self._numbers(queries.means(part, self._select, window), window) for part in parts
        ]
        for numbers in more:
            for labels, number in numbers.items():
                first[labels] = first.get(labels, 0.0) + number
        return first

    async def _fall_back(
        self, window: Window, samples: dict[Labels, float], engine: dict[Labels, float]
    ) -> None:
        """Add the samples and means of GPUs whose exporter has only the coarser metric."""
        name, factor = _FALLBACK
        counted = await self._numbers(queries.counts((name,), self._select, window), window)
        if without_engine := counted.keys() - samples.keys():
            means = await self._numbers(queries.means((name,), self._select, window), window)
            samples |= {labels: counted[labels] for labels in without_engine}
            engine |= {labels: means[labels] * factor for labels in without_engine & means.keys()}

    async def _interval(self, series: Labels, window: Window, known: float) -> float:
        """Return the usual time between two samples of a host; `known` is that of an earlier window.

        Asked over a longer time than a window: after an outage, the gap would be taken for it.
        """
        longer = Window(window.end - INTERVAL_SECONDS, window.end)
        query = queries.samples(
            (*_ENGINE.names, _FALLBACK[0]), self._select, series.host_label, (series.host_name,), longer
        )
        rows = await self._prometheus.matrix(query, queries.moment(window))
        return usual_gap(rows) or min([*_gaps(rows), known])

    async def _samples(
        self, hosts: Mapping[str, Labels], devices: Collection[Device], window: Window
    ) -> dict[Device, tuple[Sample, ...]]:
        """Return every sample of some devices, in the order of time."""
        found: dict[Device, list[MatrixRow]] = {}
        names = sorted(hosts)
        for start in range(0, len(names), HOSTS_A_QUERY):
            some = names[start : start + HOSTS_A_QUERY]
            for label in sorted({hosts[name].host_label for name in some}):
                query = queries.samples(_ALL_NAMES, self._select, label, some, window)
                for row in await self._prometheus.matrix(query, queries.moment(window)):
                    device = self._device(row.metric)
                    if device in devices:
                        found.setdefault(device, []).append(row)
        return {device: _merged(rows) for device, rows in found.items()}

    async def _vector(self, query: str, window: Window) -> tuple[VectorRow, ...]:
        return await self._prometheus.vector(query, queries.moment(window))

    async def _numbers(self, query: str, window: Window) -> dict[Labels, float]:
        """Return the numbers of a query's rows, without those that are no measurement."""
        rows = await self._vector(query, window)
        return {row.metric: number for row in rows if isfinite(number := float(row.value.text))}

    def _device(self, labels: Labels) -> Device:
        return Device(self._nodes.node(labels.host_name), labels.gpu, labels.instance_id)


def usual_gap(rows: Iterable[MatrixRow]) -> float | None:
    """Return the usual time between two samples. Returns None if there are too few to tell.

    The lower quartile: where every other scrape fails, the mean or median gap is longer than the interval.
    """
    gaps = _gaps(rows)
    return statistics.quantiles(gaps)[0] if len(gaps) >= ENOUGH_GAPS else None


def _gaps(rows: Iterable[MatrixRow]) -> list[float]:
    longest = max((row.values for row in rows), key=len, default=())
    return [later - earlier for (earlier, _), (later, _) in pairwise(longest)]


def _merged(rows: Iterable[MatrixRow]) -> tuple[Sample, ...]:
    """Put the metrics of a device together by time: an exporter's answer has one time for all of them.

    A GPU that several hold has each series once for every holder, with the same values.
    """
    values: dict[float, dict[MetricCode, float]] = {}
    holders: dict[float, set[str]] = {}
    parts: dict[tuple[float, MetricCode], dict[str, float]] = {}
    for row in rows:
        name = row.metric.name
        code = _CODES.get(name, MetricCode.ENGINE)
        factor = 1.0 if name in _CODES else _FALLBACK[1]
        for at, text in row.values:
            number = parse_number(text) * factor
            if isnan(number):
                continue
            if row.metric.holder:
                holders.setdefault(at, set()).add(row.metric.holder)
            parts.setdefault((at, code), {})[name] = number
    for (at, code), named in parts.items():
        if len(named) > 1 and _FALLBACK[0] in named:
            named.pop(_FALLBACK[0])
        values.setdefault(at, {})[code] = sum(named.values())
    return tuple(Sample(at, tuple(sorted(holders.get(at, ()))), values[at]) for at in sorted(values))
