"""Advise what a user's next job should request, from what past jobs of the same name used. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Final

from fairway.advise.request import fitting_slices, request_text
from fairway.model.gpu import GpuType, MigProfile
from fairway.model.names import SliceName
from fairway.model.telemetry import HeldGpu, JobFigures

MIN_JOBS: Final = 5
"""The least number of jobs that advice is based on."""
MAX_JOBS: Final = 20
"""The most jobs of one name that are read, the latest ones: older ones may have been another program."""
_MIN_SECONDS: Final = 600
"""Jobs that ran for less say little about what the next one needs."""
_MIN_COVERAGE: Final = 0.8
_USED_ENGINE: Final = 0.01
_USED_MEMORY_MIB: Final = 600
"""A GPU with less memory in use was not opened."""
_MAX_SLOWDOWN: Final = 1.1
"""How many times longer a job may take on a slice for the advice to hold."""

# A counter, date or hash after a separator. Without one, digits belong to the name: resnet50.
_SUFFIX: Final = re.compile(r"[-_.](?:\d+|(?=[0-9a-f]*\d)[0-9a-f]{6,})$")


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ended: its name and its figures over its whole life."""

    name: str
    figures: JobFigures


@dataclass(frozen=True, slots=True)
class RightSize:
    """A smaller request that would have been enough for all past jobs of one name."""

    pattern: str
    """The name without its counter: `finetune-*`."""
    jobs: int
    """The number of jobs that the advice is based on; it holds for every one of them."""
    memory_peak_mib: float
    """The most GPU memory that any of them used on one GPU."""
    memory_total_mib: float
    gpus_used: int
    """The most GPUs that any of them used."""
    gpus_held: int
    request: str
    """The flags of the smaller request: `--gpus 1g.10gb`."""
    slice: SliceName | None
    """The slice that it requests; None if whole GPUs."""
    held_gpu_hours: float
    saved_gpu_hours: float
    """Held GPU-hours that the smaller request would not have held; a slice counts as its part of a GPU."""
    saved_money: Decimal | None
    """At the price given; None without one."""

    def sentence(self, saved_money: str = "", whose: str = "your") -> str:
        """Describe the advice. `saved_money`: the amount as the caller formats money."""
        memory = f"{self.memory_peak_mib / 1024:.0f} of {self.memory_total_mib / 1024:.0f} GB"
        used = f"{memory} and {self.gpus_used} of {self.gpus_held} GPUs" if self.gpus_held > 1 else memory
        saved = saved_money or f"{self.saved_gpu_hours:,.0f} GPU-hours"
        past = f"{whose} last {self.jobs} {self.pattern} jobs used {used}"
        return f"{past}; {self.request} would have saved {saved}"


def name_pattern(name: str) -> str:
    """Return a job's name without counters, dates and hashes at its end: `finetune-12` is `finetune-*`."""
    plain = name
    while (shorter := _SUFFIX.sub("", plain)) != plain and shorter:
        plain = shorter
    return name if plain == name else f"{plain}{name[len(plain)]}*"


def right_sizes(
    jobs: Iterable[PastJob],
    gpu: GpuType,
    price_per_gpu_hour: Decimal | None = None,
    slice_prices: Mapping[SliceName, Decimal] | None = None,
    slices: Sequence[SliceName] | None = None,
) -> tuple[RightSize, ...]:
    """Return advice for each name among the past jobs of one user on one pool, most GPU-hours saved first.

    `jobs` are latest first. `slices`: the profiles that may be advised; by default all of `gpu`. A slice
    without a price of its own costs its part of the GPU.
    """
    by_pattern = sorted((job for job in jobs if _counts(job.figures)), key=lambda job: name_pattern(job.name))
    advice = [
        _right_size(pattern, list(same)[:MAX_JOBS], gpu, price_per_gpu_hour, slice_prices or {}, slices)
        for pattern, same in groupby(by_pattern, key=lambda job: name_pattern(job.name))
    ]
    found = [one for one in advice if one is not None]
    return tuple(sorted(found, key=lambda one: (-one.saved_gpu_hours, one.pattern)))


def _counts(figures: JobFigures) -> bool:
    """Return whether enough of a job was measured, on every GPU, to say what it needed."""
    return (
        not figures.is_service
        and not figures.is_slice
        and figures.span_seconds >= _MIN_SECONDS
        and figures.coverage >= _MIN_COVERAGE
        and bool(figures.gpus)
        and all(g.figures.memory_peak_mib is not None and g.figures.engine is not None for g in figures.gpus)
    )


def _right_size(
    pattern: str,
    jobs: Sequence[PastJob],
    gpu: GpuType,
    price: Decimal | None,
    slice_prices: Mapping[SliceName, Decimal],
    slices: Sequence[SliceName] | None,
) -> RightSize | None:
    # Jobs that requested something else than the latest one say what another request needs.
    size = (jobs[0].figures.nodes, jobs[0].figures.gpus_per_node)
    all_figures = [job.figures for job in jobs if (job.figures.nodes, job.figures.gpus_per_node) == size]
    if len(all_figures) < MIN_JOBS:
        return None
    nodes = max(len({g.node for g in _used(figures)}) for figures in all_figures) or 1
    per_node = max(_used_per_node(figures) for figures in all_figures) or 1
    peak = max(g.figures.memory_peak_mib or 0.0 for figures in all_figures for g in figures.gpus)
    held_hours = sum(figures.held_gpu_seconds for figures in all_figures) / 3600
    held_gpus = size[0] * size[1]
    chosen = _slice(all_figures, peak, gpu, slices) if nodes * per_node == 1 else None
    if chosen is None and nodes * per_node >= held_gpus:
        return None
    if chosen is not None:
        request = request_text(chosen.name)
        slice_hours = held_hours / held_gpus * max(_slowdown(f, gpu, chosen) for f in all_figures)
        needed_hours = slice_hours * float(gpu.fraction(chosen))
    else:
        request = request_text(per_node, nodes)
        slice_hours = 0.0
        needed_hours = held_hours * nodes * per_node / held_gpus
    money = None
    if price is not None:
        needed_money = Decimal(needed_hours) * price
        if chosen is not None and chosen.name in slice_prices:
            needed_money = Decimal(slice_hours) * slice_prices[chosen.name]
        money = Decimal(held_hours) * price - needed_money
    return RightSize(
        pattern=pattern,
        jobs=len(all_figures),
        memory_peak_mib=peak,
        memory_total_mib=max((f.mean().memory_total_mib or 0.0) for f in all_figures) or gpu.memory_gb * 1024,
        gpus_used=max(max(1, len(_used(figures))) for figures in all_figures),
        gpus_held=held_gpus,
        request=request,
        slice=None if chosen is None else chosen.name,
        held_gpu_hours=held_hours,
        saved_gpu_hours=held_hours - needed_hours,
        saved_money=money,
    )


def _used(figures: JobFigures) -> list[HeldGpu]:
    """Return the GPUs that a job used: its kernels ran there, or its data was there."""
    return [
        g
        for g in figures.gpus
        if (g.figures.engine or 0.0) >= _USED_ENGINE or (g.figures.memory_peak_mib or 0.0) >= _USED_MEMORY_MIB
    ]


def _used_per_node(figures: JobFigures) -> int:
    nodes = [g.node for g in _used(figures)]
    return max((nodes.count(node) for node in set(nodes)), default=0)


def _slice(
    all_figures: Sequence[JobFigures], peak: float, gpu: GpuType, slices: Sequence[SliceName] | None
) -> MigProfile | None:
    """Return the smallest slice that holds the memory of every job and slows none of them down noticeably."""
    for profile in fitting_slices(gpu, peak):
        if (slices is None or profile.name in slices) and all(
            _slowdown(figures, gpu, profile) <= _MAX_SLOWDOWN for figures in all_figures
        ):
            return profile
    return None


def _slowdown(figures: JobFigures, gpu: GpuType, profile: MigProfile) -> float:
    """Return how many times longer a job on one GPU would take on a slice.

    The time in which no kernel ran stays; kernels take as long as the slice's multiprocessors need for the
    same work. Where the work is not known, kernels count as if they filled the whole GPU.
    """
    used = max(_used(figures) or list(figures.gpus), key=lambda g: g.figures.engine or 0.0).figures
    engine = used.engine or 0.0
    work = engine if used.sm is None else used.sm
    return (1 - engine) + max(engine, work * gpu.compute_slices / profile.compute_slices)
