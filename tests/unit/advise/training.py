"""A simple model of training loops, from which figures of GPU use follow as an exporter would measure them.

A `Loop` says what a program does in one step and what it runs on: kernels and how many multiprocessors they
fill, data that workers decode and storage delivers, copies to the GPU, gradients that all GPUs exchange.
`step` adds up where the time of a step goes. Minute by minute, with noise, warm-up, evaluation, checkpoints
and outages of the exporter, this becomes a series, and the series `JobFigures`. What is wrong with a loop, if
anything, is decided by where its time goes (`Series.lost`), never by its figures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.names import NodeName
from fairway.model.telemetry import GpuFigures, HeldGpu, HostFigures, JobFigures

MINUTE = 60.0
TOTAL_MIB = 81_920.0
RECENT = 36
"""The number of last windows that figures have."""
QUEUES = 0.4
"""What is left of a GPU's own noise of its data: queues of batches that were read ahead smooth the rest."""


@dataclass(frozen=True)
class Loop:
    """One step of a program on each of its GPUs, and what it runs on. Seconds and bytes are of one GPU."""

    nodes: int = 1
    gpus_per_node: int = 1
    # kernels
    kernels: int = 1500
    kernel_seconds: float = 200e-6
    launch_seconds: float = 8e-6
    """Time the host needs to launch a kernel; the GPU waits if its kernels are shorter."""
    filled: float = 0.7
    """The part of the multiprocessors that a kernel fills."""
    tensor: float = 0.3
    """Activity of the tensor cores while kernels run."""
    dram: float = 0.35
    # data
    workers: int = 8
    cores: int = 8
    decode_core_seconds: float = 0.6
    read_bytes: float = 30e6
    read_bytes_per_second: float = 1e9
    pressure_seen: bool = True
    """Whether the kernel counts waiting for this storage as I/O pressure; it does not for sockets."""
    copy_bytes: float = 60e6
    copy_bytes_per_second: float = 12e9
    copies_overlap: bool = True
    serial_seconds: float = 0.005
    """Time in each step for which one host thread computes and everything else waits."""
    # communication
    gradient_bytes: float = 0.0
    link_bytes_per_second: float = 150e9
    nvlink: bool = True
    overlap: float = 0.6
    """The part of the kernels' time during which collectives can run at the same time."""
    nccl_sm: float = 0.2
    """A collective's kernel has 16 to 32 blocks, on 108 to 132 multiprocessors."""
    # memory
    memory_mib: float = 40_000.0
    used_gpus: int | None = None
    """The number of GPUs that it uses; None: all."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(slots=True)
class Step:
    """Where the time of one step goes on one GPU, and how busy its parts are, as sums of seconds."""

    decode: float = 0.0
    """Waiting for workers that decode."""
    read: float = 0.0
    """Waiting for storage."""
    copy: float = 0.0
    serial: float = 0.0
    compute: float = 0.0
    kernels: float = 0.0
    """The part of `compute` in which kernels run; in the rest the GPU waits for the next launch."""
    collectives: float = 0.0
    """Collectives that nothing overlaps."""
    spin: float = 0.0
    """Waiting for slower GPUs in a collective."""
    core_seconds: float = 0.0
    reading: float = 0.0

    own: float = field(init=False)
    """The time of the step without `spin`."""

    def __post_init__(self) -> None:
        self.own = self.decode + self.read + self.copy + self.serial + self.compute + self.collectives

    @property
    def seconds(self) -> float:
        return self.own + self.spin


def step(loop: Loop, slow_data: float = 1.0, slow_gpu: float = 1.0, slow_link: float = 1.0) -> Step:
    """Add up one step, with data, GPU and links slower by these factors."""
    kernels = loop.kernels * loop.kernel_seconds * slow_gpu
    compute = max(kernels, loop.kernels * loop.launch_seconds)
    copy = loop.copy_bytes / loop.copy_bytes_per_second
    copy_wait = max(0.0, copy - compute) if loop.copies_overlap else copy
    collectives = 0.0
    if loop.gpus > 1:
        wire_bytes = 2 * (loop.gpus - 1) / loop.gpus * loop.gradient_bytes
        transfer = wire_bytes / loop.link_bytes_per_second * slow_link
        collectives = max(0.1 * transfer, transfer - loop.overlap * compute)
    on_gpu = compute + copy_wait + collectives + loop.serial_seconds
    # The main thread takes part of a core while it launches and waits for the GPU; workers share the rest.
    hands = max(0.5, min(max(1, loop.workers), loop.cores - 0.5))
    decode = loop.decode_core_seconds / hands * slow_data
    reading = loop.read_bytes / loop.read_bytes_per_second * slow_data
    # Workers read ahead: reading and decoding overlap with each other and with the GPU.
    load = max(decode, reading) if loop.workers else decode + reading + on_gpu
    wait = max(0.0, load - on_gpu)
    decode_wait = wait * (decode / (decode + reading) if not loop.workers else float(decode >= reading))
    main_thread = compute + collectives + loop.serial_seconds + (copy if not loop.copies_overlap else 0)
    return Step(
        decode=decode_wait,
        read=wait - decode_wait,
        copy=copy_wait,
        serial=loop.serial_seconds,
        compute=compute,
        kernels=kernels,
        collectives=collectives,
        core_seconds=loop.decode_core_seconds * slow_data + 0.9 * main_thread,
        reading=reading,
    )


@dataclass(frozen=True)
class Life:
    """What happens around the steps of a job, and what of it is measured."""

    age: float
    """Seconds since its start, at which it is looked at."""
    span: float
    """Seconds before that which the figures cover."""
    warm_up: float = 240.0
    warm_up_cores: float = 1.0
    evaluate_every: float = 0.0
    evaluate_for: float = 0.0
    checkpoint_every: float = 1800.0
    checkpoint_for: float = 60.0
    stops_at: float | None = None
    """From then on nothing happens: its user left, or it hangs."""
    hangs: bool = False
    """Whether it hangs in a collective, whose kernels spin, instead of being left alone."""
    bursts: float | None = None
    """The part of the time in which somebody runs something, in a notebook or by requests; None: always."""
    neighbours_io: float = 0.02
    noise: float = 0.1
    spread: float = 0.04
    """How much GPUs differ from each other."""
    outage: float = 0.0
    """The part of the time in which the exporter is silent."""
    is_service: bool = False
    is_slice: bool = False
    missing: frozenset[str] = frozenset()


@dataclass
class _Sums:
    minutes: int = 0
    engine: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    memory: float = 0.0
    peak: float = 0.0
    watts: float = 0.0
    pcie: float = 0.0
    nvlink: float = 0.0


@dataclass
class Series:
    """A job's life as it was simulated: its figures, and where the time of its span went."""

    figures: JobFigures
    lost: dict[str, float] = field(default_factory=dict)
    """The part of the span that each cause cost, mean over its used GPUs."""
    idle_seconds: float = 0.0
    """For how long nothing has run on its GPUs."""
    filled: float = 0.0
    """The part of the multiprocessors that had work while the GPU was not waiting for something else."""


def simulate(loop: Loop, life: Life, rng: random.Random) -> Series:
    """Simulate a job minute by minute and measure it as the exporter does."""
    used = loop.gpus if loop.used_gpus is None else loop.used_gpus
    sums = [_Sums() for _ in range(loop.gpus)]
    slow_gpu = [rng.gauss(1, life.spread) for _ in range(used)]
    slow_rank = [rng.gauss(1, life.spread) for _ in range(used)]
    minutes, first = int(life.age // MINUTE), int((life.age - life.span) // MINUTE)
    silent = _outages(minutes, life.outage, rng)
    windows: list[list[float]] = [[] for _ in range(int(life.age // WINDOW_SECONDS) + 1)]
    lost = dict.fromkeys(("decode", "read", "copy", "serial", "collectives", "idle"), 0.0)
    cores = pressure = filled = computing = 0.0
    wave, active, last_active = 0.0, True, 0.0
    begin = max(0, min(first, minutes - RECENT * WINDOW_SECONDS // 60))
    for minute in range(begin, minutes):
        now = minute * MINUTE
        wave = 0.8 * wave + rng.gauss(0, life.noise * 0.6)  # slow changes: other users of storage and network
        if life.bursts is not None and rng.random() < 0.25:
            active = rng.random() < life.bursts
        phase = _phase(life, now, active)
        steps = (
            [
                step(
                    loop,
                    slow_data=max(0.4, slow_rank[i] * (1 + wave + rng.gauss(0, life.noise * QUEUES))),
                    slow_gpu=max(0.5, slow_gpu[i] * (1 + rng.gauss(0, 0.02))),
                    slow_link=max(0.5, 1 + wave + rng.gauss(0, life.noise)),
                )
                for i in range(used)
            ]
            if phase in {"train", "evaluate"}
            else []
        )
        slowest = max((one.own for one in steps), default=0.0)
        for one in steps:
            one.spin = slowest - one.own
        last_active = now if steps else last_active
        opened = now >= min(life.warm_up, life.age) * 0.5 and used > 0
        inside = minute >= first
        if inside:
            cores += _cores(loop, life, phase, steps, rng)
            pressure += min(1.0, _pressure(loop, steps, rng) + abs(rng.gauss(0, life.neighbours_io)))
            decode, read = sum(s.decode for s in steps), sum(s.read for s in steps)
            late = "collectives" if decode + read == 0 else "decode" if decode >= read else "read"
            for one in steps:
                seconds = one.seconds
                lost["decode"] += one.decode / seconds
                lost["read"] += one.read / seconds
                lost["copy"] += one.copy / seconds
                lost["serial"] += one.serial / seconds
                lost["collectives"] += one.collectives / seconds
                # Who waits in a collective for a GPU that waits for its data, waits for data.
                lost[late] += one.spin / seconds
                filled += one.kernels * loop.filled / seconds
                computing += one.compute / seconds
            lost["idle"] += used if not steps else 0
        if silent[minute]:
            continue
        busy = []
        for index, total in enumerate(sums):
            done = steps[index] if index < len(steps) else None
            if phase == "stopped" and life.hangs:
                done = Step(collectives=1.0)
            sample = _sample(loop, done, phase, rng)
            busy.append(sample["engine"])
            if not inside:
                continue
            memory = (loop.memory_mib * rng.uniform(0.97, 1.0) if opened else 0.0) if index < used else 0.0
            memory = memory or rng.choice((3.0, 4.0, 17.0))
            _add(total, sample, memory)
        windows[int(now // WINDOW_SECONDS)].append(sum(busy) / len(busy))
    span_minutes = minutes - first
    figures = _figures(loop, life, sums, span_minutes, cores, pressure, windows)
    weight = max(1, span_minutes * max(1, used))
    return Series(
        figures,
        {cause: part / weight for cause, part in lost.items()},
        idle_seconds=life.age - last_active,
        filled=filled / computing if computing else 0.0,
    )


def _outages(minutes: int, part: float, rng: random.Random) -> list[bool]:
    silent = [False] * minutes
    while part and sum(silent) < part * minutes:
        start, length = rng.randrange(minutes), rng.randint(1, max(1, min(25, int(part * minutes))))
        silent[start : start + length] = [True] * len(silent[start : start + length])
    return silent


def _phase(life: Life, now: float, active: bool) -> str:
    if now < life.warm_up:
        return "warm-up"
    if life.stops_at is not None and now >= life.stops_at:
        return "stopped"
    if not active:
        return "waiting"
    if life.evaluate_every and now % life.evaluate_every > life.evaluate_every - life.evaluate_for:
        return "evaluate"
    if life.checkpoint_every and now % life.checkpoint_every > life.checkpoint_every - life.checkpoint_for:
        return "checkpoint"
    return "train"


def _cores(loop: Loop, life: Life, phase: str, steps: Sequence[Step], rng: random.Random) -> float:
    """Return the busy cores on all nodes as a part of those given."""
    given = loop.cores * loop.gpus
    if phase == "warm-up":
        busy = life.warm_up_cores * loop.nodes
    elif not steps:
        busy = 1.0 * loop.nodes if phase == "checkpoint" else 0.9 * loop.gpus if life.hangs else 0.01
    else:
        busy = sum(min(loop.cores, one.core_seconds / one.seconds) for one in steps)
    return min(1.0, busy / given * rng.uniform(0.96, 1.04))


def _pressure(loop: Loop, steps: Sequence[Step], rng: random.Random) -> float:
    if not steps or not loop.pressure_seen:
        return 0.0
    return min(1.0, max(one.reading / one.seconds for one in steps) * rng.uniform(0.7, 1.0))


def _sample(loop: Loop, one: Step | None, phase: str, rng: random.Random) -> dict[str, float]:
    if one is None:
        return dict.fromkeys(("engine", "sm", "tensor", "dram", "pcie", "nvlink"), 0.0) | {
            "watts": rng.uniform(55, 75)
        }
    t = one.seconds
    light = 0.7 if phase == "evaluate" else 1.0  # no backward pass: smaller kernels
    waiting = one.collectives + one.spin
    engine = (one.kernels + waiting) / t
    sm = (one.kernels * loop.filled * light + waiting * loop.nccl_sm) / t
    tensor = one.kernels * loop.tensor * light / t
    wire = 2 * (loop.gpus - 1) / loop.gpus * loop.gradient_bytes / t if one.compute else 0.0
    dram = one.kernels * loop.dram * light / t + wire / 2e12
    values = {
        "engine": engine,
        "sm": sm,
        "tensor": tensor,
        "dram": dram,
        "pcie": (loop.copy_bytes / t if one.compute else 0.0) + (0.0 if loop.nvlink else wire),
        "nvlink": wire if loop.nvlink else 0.0,
        "watts": 65 + 330 * min(1.0, 0.15 * engine + 0.35 * sm + 0.6 * tensor + 0.3 * dram),
    }
    ratios = {"engine", "sm", "tensor", "dram"}
    noisy = {name: value * rng.uniform(0.95, 1.05) for name, value in values.items()}
    return {name: min(1.0, value) if name in ratios else value for name, value in noisy.items()}


def _add(total: _Sums, sample: dict[str, float], memory: float) -> None:
    total.minutes += 1
    total.memory += memory
    total.peak = max(total.peak, memory)
    total.engine += sample["engine"]
    total.sm += sample["sm"]
    total.tensor += sample["tensor"]
    total.dram += sample["dram"]
    total.watts += sample["watts"]
    total.pcie += sample["pcie"]
    total.nvlink += sample["nvlink"]


def _figures(
    loop: Loop,
    life: Life,
    sums: Sequence[_Sums],
    minutes: int,
    cores: float,
    pressure: float,
    windows: Sequence[Sequence[float]],
) -> JobFigures:
    gpus = []
    for index, total in enumerate(sums):
        n = total.minutes
        measured = (
            GpuFigures(
                measured_seconds=n * MINUTE,
                engine=total.engine / n,
                sm=total.sm / n,
                tensor=total.tensor / n,
                dram=total.dram / n,
                memory_used_mib=total.memory / n,
                memory_peak_mib=total.peak,
                memory_total_mib=TOTAL_MIB,
                power_watts=total.watts / n,
                pcie_bytes_per_second=total.pcie / n,
                nvlink_bytes_per_second=total.nvlink / n,
            )
            if n
            else GpuFigures(0.0)
        )
        absent: dict[str, Any] = {name: None for name in life.missing if hasattr(measured, name)}
        node = NodeName(f"n{index // loop.gpus_per_node:03d}")
        gpus.append(HeldGpu(node, index % loop.gpus_per_node, replace(measured, **absent)))
    host = HostFigures(
        cpu_ratio=None if "cpu_ratio" in life.missing else cores / minutes,
        io_pressure=None if "io_pressure" in life.missing else pressure / minutes,
        cpus=None if "cpu_ratio" in life.missing else loop.cores * loop.gpus_per_node,
    )
    recent = tuple(sum(w) / len(w) if w else None for w in windows if w or w is not windows[-1])
    if "engine" in life.missing:
        recent = (None,) * len(recent)
    return JobFigures(
        span_seconds=minutes * MINUTE,
        held_gpu_seconds=minutes * MINUTE * loop.gpus,
        measured_gpu_seconds=sum(total.minutes for total in sums) * MINUTE,
        gpus=tuple(gpus),
        nodes=loop.nodes,
        gpus_per_node=loop.gpus_per_node,
        host=host,
        is_service=life.is_service,
        is_slice=life.is_slice,
        recent=recent[-RECENT:],
    )
