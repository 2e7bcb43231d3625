"""Attribute what GPUs did in one window to the jobs that held them. Pure.

An exporter either says who holds a GPU (`hpc_job`, or namespace and pod), or the ledger knows which GPUs a
job was given on which node; a name that nobody held GPUs by in the window says nothing. What a window's mean
cannot divide, because the holder changed within it or several hold the GPU at once, is divided sample by
sample.

No job is measured for longer than it held GPUs: measured and unmeasured GPU-seconds add up to those held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fairway.model.gpu_use import Device, GpuUse, Holding, JobDevices, MetricCode, Window
from fairway.model.job import JobId

_COMPUTE_SLICES: Final = frozenset("1234567")
_NOBODY: Final[Set[JobId]] = frozenset()


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
    profile: str = ""
    """Of a MIG instance: `3g.40gb`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one device showed at one moment; `holders` as in Reading, none if the exporter names none."""

    at: float
    holders: tuple[str, ...]
    values: Mapping[MetricCode, float]


class Holders:
    """Finds the jobs that held a device, by the exporter's label or by the engine's indices."""

    def __init__(self, holdings: Iterable[Holding], window: Window) -> None:
        self.window = window
        self._named: dict[str, list[Holding]] = {}
        self._jobs: dict[str, set[JobId]] = {}
        self._on_gpu: dict[tuple[str, str], list[Holding]] = {}
        self.held: dict[JobId, float] = {}
        """GPU-seconds within the window."""
        for holding in holdings:
            seconds = holding.seconds_in(window)
            if not seconds:
                continue
            self.held[holding.job] = self.held.get(holding.job, 0.0) + seconds * holding.devices
            for holder in holding.holders:
                self._named.setdefault(holder, []).append(holding)
                self._jobs.setdefault(holder, set()).add(holding.job)
            for node, gpus in holding.gpus.items():
                for gpu in gpus:
                    self._on_gpu.setdefault((node, str(gpu)), []).append(holding)

    def by_name(self, holder: str) -> Set[JobId]:
        """Return the jobs of a name: one, unless a name was given again; none if the ledger knows none."""
        return self._jobs.get(holder, _NOBODY)

    def by_name_at(self, holder: str, at: float, slack: float) -> set[JobId]:
        """Return the job that had a name at a time, or within `slack` seconds of it: exporters lag."""
        named = self._named.get(holder, ())
        return {h.job for h in named if h.since <= at < h.until} or {
            h.job for h in named if h.since - slack <= at < h.until + slack
        }

    def overlap(self, names: Iterable[str], seconds: float) -> bool:
        """Return whether some of the named held GPUs at the same time, for longer than `seconds`."""
        every = sorted((h for name in names for h in self._named.get(name, ())), key=lambda h: h.since)
        return any(later.since + seconds < earlier.until for earlier, later in pairwise(every))

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
    found: set[Device] = set()
    for device, on_device in _by_device(readings).items():
        names = {reading.holder for reading in on_device}
        jobs = {name: known for name in names if (known := holders.by_name(name))}
        if jobs:
            unnamed = bool(names - jobs.keys()) and {h.job for h in holders.on(device)} - set().union(
                *jobs.values()
            )
            shared = len(jobs) > 1 and holders.overlap(jobs, interval)
            if unnamed or shared or any(len(known) > 1 for known in jobs.values()):
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
    by_device = _by_device(readings)
    parts = _board_parts(by_device)

    def add(
        job: JobId, device: Device, means: Mapping[MetricCode, float], seconds: float, memory: float | None
    ) -> None:
        if device in parts and MetricCode.POWER in means:
            means = {**means, MetricCode.POWER: means[MetricCode.POWER] * parts[device]}
        jobs.setdefault(job, {}).setdefault(device, GpuUse()).add(means, seconds, memory)

    for device, on_device in by_device.items():
        if device in samples:
            for sample in samples[device]:
                found = _holding(sample, device, holders, interval)
                for job in found:
                    memory = sample.values.get(MetricCode.MEMORY)
                    add(job, device, sample.values, interval / len(found), memory)
            continue
        named = [reading for reading in on_device if holders.by_name(reading.holder)]
        holding = holders.throughout(device)
        for reading in named or on_device:
            owners = holders.by_name(reading.holder) if named else {holding.job} if holding else set()
            for owner in owners:
                seconds = min(reading.samples * interval, holders.window.seconds)
                add(owner, device, reading.means, seconds, reading.peak_memory_mib)
    for job_id, devices in jobs.items():
        _limit(devices.values(), holders.held.get(job_id, 0.0))
    return jobs


def _board_parts(by_device: Mapping[Device, Sequence[Reading]]) -> dict[Device, float]:
    """Return the part of a board's power that each MIG instance counts for, by its multiprocessors.

    The exporter shows the power of the whole board for every one of its instances.
    """
    boards: dict[tuple[str, str], dict[Device, int]] = {}
    for device, readings in by_device.items():
        if device.instance:
            compute = readings[0].profile.partition("g.")[0]
            weight = int(compute) if compute in _COMPUTE_SLICES else 1
            boards.setdefault((device.node, device.gpu), {})[device] = weight
    return {
        device: weight / sum(board.values()) for board in boards.values() for device, weight in board.items()
    }


def _holding(sample: Sample, device: Device, holders: Holders, slack: float) -> list[JobId]:
    """Return the jobs that held a device when a sample was taken.

    A name that nobody had then, such as that of a job whose epilog failed, counts as none.
    """
    named = {job for holder in sample.holders for job in holders.by_name_at(holder, sample.at, slack)}
    return list(named or {h.job for h in holders.on(device) if h.since <= sample.at < h.until})


def _limit(devices: Iterable[GpuUse], held: float) -> None:
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
