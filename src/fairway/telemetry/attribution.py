"""Attribute what GPUs did in one window to the jobs that held them. Pure.

An exporter either says who holds a GPU (`hpc_job`, or namespace and pod), or the ledger knows which GPUs a
job was given on which node. What a window's mean cannot divide, because the holder changed within it or
several hold the GPU at once, is divided sample by sample.

No job is measured for longer than it held GPUs: measured and unmeasured GPU-seconds add up to those held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairway.model.job import JobId
from fairway.telemetry.metrics import MetricCode
from fairway.telemetry.queries import Window

IDLE_RATIO: Final = 0.01
"""A GPU whose engine is busy for less than this share of a window does nothing."""
_SHARED: Final = 1.05
"""Samples of all holders of a GPU, as a multiple of those that fit a window: more means at the same time."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one."""

    node: str
    gpu: str
    """Its index, as the driver counts."""
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One device in one window, while one holder had it."""

    device: Device
    holder: str
    """As the exporter names it: a Slurm job id, `namespace/pod`, or empty."""
    samples: float
    means: Mapping[MetricCode, float]
    """The metrics that the exporter has."""
    peak_memory_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What one device showed at one moment; `holders` as in Reading, none if the exporter names none."""

    at: float
    holders: tuple[str, ...]
    values: Mapping[MetricCode, float]


@dataclass(frozen=True, slots=True)
class Holding:
    """A time in which a job held devices: an attempt."""

    job: JobId
    devices: int
    since: float
    until: float
    """Of a running attempt, the end of the window or later."""
    holders: frozenset[str] = frozenset()
    """What an exporter may call it."""
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The indices of its GPUs by node, where the engine tells."""

    def seconds_in(self, window: Window) -> float:
        """Return how long it lasted within a window."""
        return max(0.0, min(self.until, window.end) - max(self.since, window.start))


@dataclass(slots=True)
class Sums:
    """Integrals of metrics over the time in which they were measured."""

    integrals: dict[MetricCode, float] = field(default_factory=dict)
    seconds: dict[MetricCode, float] = field(default_factory=dict)
    """How long each metric was measured."""
    peak_memory_mib: float | None = None

    @property
    def measured(self) -> float:
        """Return the GPU-seconds in which it is known whether the GPU was busy."""
        return self.seconds.get(MetricCode.ENGINE, 0.0)

    @property
    def engine_ratio(self) -> float | None:
        """Return how much of that time the engine was busy. Returns None if nothing was measured."""
        return self.integrals[MetricCode.ENGINE] / self.measured if self.measured else None

    @property
    def idle(self) -> float:
        """Return the measured seconds if the GPU did nothing in them, else 0."""
        ratio = self.engine_ratio
        return self.measured if ratio is not None and ratio < IDLE_RATIO else 0.0

    def add(self, values: Mapping[MetricCode, float], seconds: float, peak_memory_mib: float | None) -> None:
        for code, value in values.items():
            if not math.isnan(value):
                self.integrals[code] = self.integrals.get(code, 0.0) + value * seconds
                self.seconds[code] = self.seconds.get(code, 0.0) + seconds
        if peak_memory_mib is not None and not math.isnan(peak_memory_mib):
            self.peak_memory_mib = max(self.peak_memory_mib or 0.0, peak_memory_mib)

    def scale(self, factor: float) -> None:
        self.integrals = {code: value * factor for code, value in self.integrals.items()}
        self.seconds = {code: value * factor for code, value in self.seconds.items()}


JobDevices = dict[JobId, dict[Device, Sums]]
"""What each job did on each of its devices."""


class Holders:
    """Finds the jobs that held a device, by the exporter's label or by the ledger's indices."""

    def __init__(self, holdings: Iterable[Holding], window: Window) -> None:
        self.window = window
        self._jobs: dict[str, JobId] = {}
        self._on_gpu: dict[tuple[str, str], list[Holding]] = {}
        self.held: dict[JobId, float] = {}
        """GPU-seconds within the window."""
        for holding in holdings:
            seconds = holding.seconds_in(window)
            if not seconds:
                continue
            self.held[holding.job] = self.held.get(holding.job, 0.0) + seconds * holding.devices
            for holder in holding.holders:
                self._jobs[holder] = holding.job
            for node, gpus in holding.gpus.items():
                for gpu in gpus:
                    self._on_gpu.setdefault((node, str(gpu)), []).append(holding)

    def by_name(self, holder: str) -> JobId | None:
        return self._jobs.get(holder)

    def on(self, device: Device) -> Sequence[Holding]:
        """Return who held a whole GPU within the window; indices of MIG instances are Slurm's own."""
        return () if device.instance else self._on_gpu.get((device.node, device.gpu), ())

    def throughout(self, device: Device) -> Holding | None:
        """Return who alone held a GPU for the whole window. Returns None if nobody, or several did."""
        found = self.on(device)
        if len(found) != 1:
            return None
        (one,) = found
        return one if one.since <= self.window.start and one.until >= self.window.end else None


def ambiguous(readings: Iterable[Reading], holders: Holders, interval: float) -> set[Device]:
    """Return the devices whose readings must be divided sample by sample."""
    most = _SHARED * holders.window.seconds / interval + 1
    found: set[Device] = set()
    for device, on_device in _by_device(readings).items():
        named = [reading for reading in on_device if reading.holder]
        if named:
            if sum(reading.samples for reading in named) > most:
                found.add(device)
        elif holders.on(device) and holders.throughout(device) is None:
            found.add(device)
    return found


def attribute(
    readings: Iterable[Reading],
    samples: Mapping[Device, Sequence[Sample]],
    holders: Holders,
    interval: float,
) -> JobDevices:
    """Return what each job's devices did; `samples` are those of the ambiguous devices."""
    jobs: JobDevices = {}

    def sums(job: JobId, device: Device) -> Sums:
        return jobs.setdefault(job, {}).setdefault(device, Sums())

    for device, on_device in _by_device(readings).items():
        if device in samples:
            for sample in samples[device]:
                found = _holding(sample, device, holders)
                for job in found:
                    memory = sample.values.get(MetricCode.MEMORY)
                    sums(job, device).add(sample.values, interval / len(found), memory)
            continue
        named = [reading for reading in on_device if reading.holder]
        holding = holders.throughout(device)
        for reading in named or on_device:
            owner = holders.by_name(reading.holder) if named else holding.job if holding else None
            if owner is not None:
                seconds = min(reading.samples * interval, holders.window.seconds)
                sums(owner, device).add(reading.means, seconds, reading.peak_memory_mib)
    for job_id, devices in jobs.items():
        _limit(devices.values(), holders.held.get(job_id, 0.0))
    return jobs


def _holding(sample: Sample, device: Device, holders: Holders) -> list[JobId]:
    """Return the jobs that held a device when a sample was taken."""
    if sample.holders:
        named = {holders.by_name(holder) for holder in sample.holders}
        return [job for job in named if job is not None]
    return list({h.job for h in holders.on(device) if h.since <= sample.at < h.until})


def _limit(devices: Iterable[Sums], held: float) -> None:
    """Scale what was measured down to what was held: samples at both ends may stand for more."""
    every = list(devices)
    measured: dict[MetricCode, float] = {}
    for sums in every:
        for code, seconds in sums.seconds.items():
            measured[code] = measured.get(code, 0.0) + seconds
    longest = max(measured.values(), default=0.0)
    if longest > held:
        for sums in every:
            sums.scale(held / longest)


def _by_device(readings: Iterable[Reading]) -> dict[Device, list[Reading]]:
    found: dict[Device, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.device, []).append(reading)
    return found
