"""Diagnose many simulated jobs: `python -m tests.unit.advise.matrix [--acme] [SEED]` prints the matrix.

Jobs are drawn as programs with a mistake, or none (`KINDS`), and simulated (`training.simulate`). What the
right answer is follows from where the simulated time went, not from what the program was meant to be: a
program with a slow loader that still keeps up is healthy.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fairway.advise.diagnosis import DIAGNOSES, Confidence, Diagnosis, diagnose
from tests.unit.advise.training import Life, Loop, Series, simulate

SHARED = Path(__file__).parents[4] / "shared" / "data"
ACME = SHARED / "acme" / "util_cdf.csv"
NONE = "-"
HOUR = 3600.0
Draw = Callable[[random.Random, Loop], Loop]


class Kernels:
    """How well the kernels of healthy jobs use a GPU: (multiprocessors filled, tensor cores active)."""

    def draw(self, rng: random.Random) -> tuple[float, float]:
        return rng.uniform(0.45, 0.95), rng.uniform(0.12, 0.5)


class AcmeKernels(Kernels):
    """As measured in AcmeTrace's cluster Seren, on GPUs with at least 40 % of their multiprocessors busy."""

    def __init__(self, path: Path) -> None:
        rows = [row for row in csv.DictReader(path.open()) if row["file"] == "util_gpu_seren"]
        sm, tensor = ([float(row["x"]) / 100 for row in rows if row["series"] == n] for n in ("2", "4"))
        self.pairs = [(s, t) for s, t in zip(sm, tensor, strict=True) if s >= 0.4]

    def draw(self, rng: random.Random) -> tuple[float, float]:
        filled, tensor = rng.choice(self.pairs)
        # Over all of the time these are means of busy and waiting; a kernel alone fills somewhat more.
        return min(0.97, filled * rng.uniform(1.0, 1.15)), tensor * rng.uniform(0.9, 1.2)


def _between(rng: random.Random, low: float, high: float) -> float:
    """Draw from `low` to `high`, as often in each order of magnitude."""
    return float(low * (high / low) ** rng.random())


def healthy(rng: random.Random, kernels: Kernels) -> Loop:
    """Draw a program whose GPUs have what they need: loader, links and host keep up."""
    nodes, per_node = rng.choice(((1, 1), (1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8)))
    filled, tensor = kernels.draw(rng)
    cores = rng.choice((2, 4, 6, 8, 12, 16))
    loop = Loop(
        nodes=nodes,
        gpus_per_node=per_node,
        kernels=int(_between(rng, 300, 4000)),
        kernel_seconds=_between(rng, 50e-6, 800e-6),
        launch_seconds=rng.uniform(4e-6, 12e-6),
        filled=filled,
        tensor=tensor,
        dram=rng.uniform(0.15, 0.55),
        workers=rng.choice((cores, cores, max(1, cores // 2))),
        cores=cores,
        copy_bytes_per_second=rng.uniform(10e9, 24e9),
        read_bytes_per_second=_between(rng, 0.2e9, 3e9),
        link_bytes_per_second=rng.uniform(80e9, 250e9) if nodes == 1 else rng.uniform(8e9, 24e9),
        nvlink=nodes == 1,
        overlap=rng.uniform(0.4, 0.7),
        nccl_sm=rng.uniform(0.12, 0.3),
        memory_mib=_between(rng, 6_000, 78_000),
        pressure_seen=rng.random() < 0.85,
    )
    compute = loop.kernels * loop.kernel_seconds
    transfer = compute * rng.uniform(0.02, 0.5)
    return replace(
        loop,
        decode_core_seconds=_decode(loop, compute * rng.uniform(0.05, 0.75)),
        read_bytes=loop.read_bytes_per_second * compute * rng.uniform(0.02, 0.6),
        copy_bytes=loop.copy_bytes_per_second * compute * _between(rng, 0.002, 0.08),
        serial_seconds=compute * rng.uniform(0.0, 0.12),
        gradient_bytes=transfer * loop.link_bytes_per_second / 2,
    )


def _decode(loop: Loop, seconds: float) -> float:
    return seconds * max(0.5, min(max(1, loop.workers), loop.cores - 0.5))


def _compute(loop: Loop) -> float:
    return loop.kernels * max(loop.kernel_seconds, loop.launch_seconds)


def slow_decoding(rng: random.Random, loop: Loop) -> Loop:
    loop = replace(loop, workers=max(loop.workers, loop.cores))
    return replace(loop, decode_core_seconds=_decode(loop, _compute(loop) * _between(rng, 1.3, 9)))


def few_workers(rng: random.Random, loop: Loop) -> Loop:
    """Cores are there, but the loader uses one or two of them."""
    loop = replace(loop, workers=rng.choice((0, 1, 2)), cores=rng.choice((8, 12, 16)))
    return replace(loop, decode_core_seconds=_decode(loop, _compute(loop) * _between(rng, 1.3, 9)))


def slow_storage(rng: random.Random, loop: Loop) -> Loop:
    return replace(loop, read_bytes=loop.read_bytes_per_second * _compute(loop) * _between(rng, 1.3, 9))


def slow_copies(rng: random.Random, loop: Loop) -> Loop:
    """Pageable memory, and the loop waits for each copy."""
    rate = rng.uniform(2e9, 9e9)
    copied = rate * _compute(loop) * _between(rng, 0.8, 6)
    return replace(loop, copies_overlap=False, copy_bytes_per_second=rate, copy_bytes=copied)


def slow_links(rng: random.Random, loop: Loop) -> Loop:
    nodes, per_node = rng.choice(((1, 2), (1, 4), (1, 8), (2, 4), (2, 8)))
    if nodes == 1:
        rate = rng.choice((rng.uniform(100e9, 250e9), rng.uniform(6e9, 20e9)))  # NVLink, or PCIe without it
    else:
        rate = rng.choice((rng.uniform(8e9, 24e9), _between(rng, 0.3e9, 3e9)))  # InfiniBand, or Ethernet
    transfer = _compute(loop) * _between(rng, 1.5, 9)
    gradient = transfer * rate / 2
    return replace(
        loop,
        nodes=nodes,
        gpus_per_node=per_node,
        nvlink=rate > 50e9,
        link_bytes_per_second=rate,
        gradient_bytes=gradient,
    )


def small_kernels(rng: random.Random, loop: Loop) -> Loop:
    return replace(
        loop,
        kernel_seconds=rng.uniform(3e-6, 25e-6),
        kernels=int(_between(rng, 500, 6000)),
        filled=rng.uniform(0.03, 0.25),
        tensor=rng.uniform(0.0, 0.05),
        dram=rng.uniform(0.01, 0.12),
        memory_mib=_between(rng, 1_500, 30_000),
        decode_core_seconds=0.001,
        read_bytes=1e5,
        copy_bytes=_between(rng, 1e4, 1e6),
        gradient_bytes=_between(rng, 1e5, 2e7),
        serial_seconds=0.0005,
    )


def small_model(rng: random.Random, loop: Loop) -> Loop:
    """One host thread computes most of the time; the GPU gets a little work in between."""
    loop = replace(small_kernels(rng, loop), nodes=1, gpus_per_node=1, cores=rng.choice((1, 2, 4, 8)))
    return replace(
        loop, memory_mib=rng.uniform(800, 7_500), serial_seconds=_compute(loop) * _between(rng, 6, 40)
    )


def serial_host(rng: random.Random, loop: Loop) -> Loop:
    return replace(
        loop, memory_mib=rng.uniform(14_000, 70_000), serial_seconds=_compute(loop) * _between(rng, 4, 30)
    )


def memory_bound(rng: random.Random, loop: Loop) -> Loop:
    return replace(
        loop, dram=rng.uniform(0.6, 0.92), filled=rng.uniform(0.35, 0.98), tensor=rng.uniform(0.005, 0.08)
    )


def single_precision(rng: random.Random, loop: Loop) -> Loop:
    return replace(loop, tensor=rng.uniform(0.0, 0.002), dram=rng.uniform(0.12, 0.5))


def _same(rng: random.Random, loop: Loop) -> Loop:
    return loop


MISTAKES: Mapping[str, Draw] = {
    "slow decoding": slow_decoding,
    "slow storage": slow_storage,
    "slow copies": slow_copies,
    "slow links": slow_links,
    "small kernels": small_kernels,
    "small model": small_model,
    "memory bound": memory_bound,
    "single precision": single_precision,
    "few workers": few_workers,
    "serial host": serial_host,
}
KINDS: Mapping[str, int] = {
    "healthy": 220,
    **dict.fromkeys(MISTAKES, 36),
    "two mistakes": 40,
    "GPUs unused": 36,
    "never opened": 30,
    "left alone": 36,
    "just left": 20,
    "hangs": 20,
    "notebook": 30,
    "service": 30,
    "too young": 20,
    "exporter silent": 30,
}
"""How many jobs of each kind are drawn."""


@dataclass(frozen=True)
class Simulated:
    """A simulated job, and the answers that are right for it."""

    kind: str
    loop: Loop
    life: Life
    series: Series
    right: frozenset[str]
    blind: bool
    """Whether a figure that shows its cause is not exported: then to say nothing is right too."""

    @property
    def is_healthy(self) -> bool:
        return self.right == {NONE}


def draw(kind: str, rng: random.Random, kernels: Kernels) -> Simulated:
    loop, life = healthy(rng, kernels), _life(rng)
    match kind:
        case "two mistakes":
            for name in rng.sample(sorted(MISTAKES), 2):
                loop = MISTAKES[name](rng, loop)
        case "GPUs unused":
            nodes, per_node = rng.choice(((1, 2), (1, 4), (1, 8), (2, 4)))
            loop = replace(loop, nodes=nodes, gpus_per_node=per_node, gradient_bytes=0.0)
            loop = replace(loop, used_gpus=rng.randint(1, loop.gpus - 1))
        case "never opened":
            loop = replace(loop, used_gpus=0)
            life = replace(life, warm_up=life.age, warm_up_cores=rng.uniform(0.1, loop.cores))
        case "left alone" | "just left":
            left = (
                rng.uniform(2.2 * HOUR, 20 * HOUR) if kind == "left alone" else rng.uniform(0.3, 1.6) * HOUR
            )
            worked = rng.uniform(0.1, 5) * HOUR
            age = worked + left
            life = replace(
                life, age=age, span=min(age, life.span), stops_at=worked, bursts=rng.choice((None, 0.3))
            )
        case "hangs":
            nodes, per_node = rng.choice(((1, 4), (1, 8), (2, 8)))
            loop = replace(loop, nodes=nodes, gpus_per_node=per_node)
            life = replace(
                life, stops_at=life.warm_up + rng.uniform(0, max(0.0, life.age - life.span)), hangs=True
            )
        case "notebook":
            life = replace(life, age=max(life.age, 1.5 * HOUR), bursts=rng.uniform(0.02, 0.5))
            life = replace(life, span=min(life.age, rng.uniform(2, 3) * HOUR))
            loop = replace(loop, nodes=1, gpus_per_node=1)
        case "service":
            life = replace(life, is_service=True, bursts=rng.uniform(0.005, 0.6))
            loop = memory_bound(rng, loop) if rng.random() < 0.3 else loop
            loop = replace(loop, nodes=1, gpus_per_node=rng.choice((1, 1, 2, 4)), gradient_bytes=0.0)
        case "too young":
            age = rng.uniform(3, 29) * 60
            life = replace(life, age=age, span=age)
            loop = rng.choice([*MISTAKES.values(), _same])(rng, loop)
        case "exporter silent":
            life = replace(life, outage=rng.uniform(0.3, 0.9))
            loop = rng.choice([*MISTAKES.values(), _same])(rng, loop)
        case _:
            loop = MISTAKES.get(kind, _same)(rng, loop)
    series = simulate(loop, life, rng)
    right, blind = _right(kind, loop, life, series)
    return Simulated(kind, loop, life, series, right, blind)


def _life(rng: random.Random) -> Life:
    age = _between(rng, 35 * 60, 20 * HOUR)
    missing: frozenset[str] = frozenset()
    if rng.random() < 0.2:
        missing = rng.choice(
            (
                frozenset({"sm"}),  # off in the exporter's default file
                frozenset({"cpu_ratio", "io_pressure"}),
                frozenset({"io_pressure"}),
                frozenset({"tensor", "dram", "sm"}),  # GPUs without profiling metrics
                frozenset({"nvlink_bytes_per_second"}),  # off in the default file
                frozenset({"pcie_bytes_per_second", "nvlink_bytes_per_second"}),
                frozenset({"memory_used_mib", "memory_peak_mib"}),
            )
        )
    return Life(
        age=age,
        span=min(age, rng.uniform(2, 3) * HOUR),
        warm_up=min(age * 0.9, _between(rng, 60, 2400)),
        warm_up_cores=rng.choice((0.5, 1.0, 4.0)),
        evaluate_every=rng.choice((0.0, 1800.0, 3600.0)),
        evaluate_for=rng.uniform(60, 420),
        checkpoint_every=rng.choice((0.0, 900.0, 1800.0, 3600.0)),
        checkpoint_for=rng.uniform(30, 150),
        neighbours_io=rng.choice((0.01, 0.03, 0.2)),  # alone on its nodes, or beside jobs that read
        noise=rng.uniform(0.03, 0.25),
        spread=rng.choice((0.02, 0.04, 0.12)),  # 0.12: a straggler
        outage=rng.choice((0.0, 0.0, 0.02, 0.05, 0.1)),
        missing=missing,
    )


_NEEDS: Mapping[str, frozenset[str]] = {
    "CpuBound": frozenset({"cpu_ratio"}),
    "IoBound": frozenset({"cpu_ratio", "io_pressure"}),
    "CopyBound": frozenset({"pcie_bytes_per_second", "sm"}),
    "CommunicationBound": frozenset({"tensor", "dram", "pcie_bytes_per_second", "nvlink_bytes_per_second"}),
    "KernelsTooSmall": frozenset({"sm"}),
    "GpuTooLarge": frozenset({"memory_peak_mib", "cpu_ratio"}),
    "MemoryBound": frozenset({"dram", "sm", "tensor"}),
    "NoTensorCores": frozenset({"tensor", "sm"}),
    "Abandoned": frozenset({"cpu_ratio", "memory_used_mib"}),
    "GpuNeverOpened": frozenset({"memory_peak_mib"}),
}
"""The figures without which nobody could know a cause."""


def _right(kind: str, loop: Loop, life: Life, series: Series) -> tuple[frozenset[str], bool]:
    """Return the right answers: several where the time is lost about equally, or where half of it is not."""
    if life.age < 30 * 60:
        return frozenset({NONE}), False
    if series.figures.coverage < 0.8:
        return frozenset({"NotMeasured"}), False
    right = set(_causes(kind, loop, life, series))
    needed = {figure for code in right for figure in _NEEDS.get(code, ())}
    if right & {"LowUtilisation", "GpuTooLarge"} and life.age < HOUR:
        right.add(NONE)  # without a cause, nothing is said of the first hour
    blind = bool(needed & life.missing) or ("IoBound" in right and not loop.pressure_seen)
    if blind:
        right |= {NONE, "LowUtilisation"}
    return frozenset(right), blind


def _causes(kind: str, loop: Loop, life: Life, series: Series) -> Iterator[str]:
    small = loop.gpus == 1 and loop.memory_mib < 11_000
    if loop.used_gpus == 0:
        yield "GpuNeverOpened"
        return
    if loop.used_gpus is not None and life.span >= 2 * HOUR:
        yield "SomeGpusUnused"
        return
    if life.stops_at is not None:
        stopped = life.age - life.stops_at
        if life.hangs:
            yield from ("CommunicationBound", NONE)
        elif stopped >= life.span and stopped > 2 * HOUR:
            yield "Abandoned"
        else:
            yield from (NONE, "LowUtilisation", *(("GpuTooLarge",) if small else ()))
            if stopped > 2 * HOUR:
                yield "Abandoned"
        return
    if life.is_service:
        yield NONE
        if loop.dram > 0.5:
            yield "MemoryBound"
        return
    if life.bursts is not None:
        yield "LowUtilisation"
        if small:
            yield "GpuTooLarge"
        if series.lost["idle"] < 0.85:
            yield NONE
        if series.idle_seconds > 1.9 * HOUR:
            yield "Abandoned"
        return
    yield from _of_the_loop(kind, loop, life, series, small=small)


def _of_the_loop(kind: str, loop: Loop, life: Life, series: Series, *, small: bool) -> Iterator[str]:
    idle = series.lost["idle"]
    lost = {cause: part / max(0.1, 1 - idle) for cause, part in series.lost.items()}  # of the time it ran
    waits = {
        "CpuBound": lost["decode"],
        "IoBound": lost["read"],
        "CopyBound": lost["copy"],
        "CommunicationBound": lost["collectives"],
        "serial": lost["serial"],
    }
    top = max(waits.values())
    waiting = sum(waits.values())
    causes = {code for code, part in waits.items() if part >= 0.2 and part >= 0.5 * top}
    if top >= 0.4 or waiting >= 0.6:
        for code in causes:
            if code != "serial":
                yield code
            elif small and waits["serial"] >= 0.7:
                yield "GpuTooLarge"
            if code == "serial" and loop.cores == 1:  # the one core is what limits it
                yield "CpuBound"
            if code == "serial" and not (small and waits["serial"] >= 0.8):
                yield "LowUtilisation"
        if top < 0.6 or ("serial" in causes and waits["serial"] < 0.75):
            yield NONE
        # Workers are the limit, not cores: no figure shows how many workers a loader has.
        if "CpuBound" in causes and loop.workers < 0.8 * loop.cores:
            yield "LowUtilisation"
            if top < 0.8:
                yield NONE
    if idle > 0.4:  # most of what was seen is its warm-up
        yield from (NONE, "LowUtilisation")
        if life.warm_up_cores > 0.7 * loop.cores:
            yield "CpuBound"
    if waiting < 0.6:
        yield from _of_the_kernels(loop, series.filled, small=small, sure=waiting < 0.4 and idle < 0.2)


def _of_the_kernels(loop: Loop, filled: float, *, small: bool, sure: bool) -> Iterator[str]:
    found = False
    if filled < 0.35:
        found = filled < 0.2
        yield "KernelsTooSmall"
        if small:
            yield "GpuTooLarge"
    elif loop.dram >= 0.5 and loop.tensor < 0.1:
        found = loop.dram >= 0.7
        yield "MemoryBound"
        if loop.tensor < 0.01:
            yield "NoTensorCores"
    elif loop.tensor < 0.01:
        found = filled >= 0.6
        yield "NoTensorCores"
    if not (found and sure):
        yield NONE


@dataclass(frozen=True)
class Matrix:
    """Simulated jobs and what was said of them."""

    said: tuple[tuple[Simulated, Diagnosis | None], ...]

    @staticmethod
    def code(diagnosis: Diagnosis | None) -> str:
        return diagnosis.code if diagnosis else NONE

    def correct(self, *, seeing_only: bool = False) -> float:
        """Return the ratio of jobs with a right answer; `seeing_only`: of those with all figures needed."""
        counted = [(job, d) for job, d in self.said if not (seeing_only and job.blind)]
        return sum(self.code(d) in job.right for job, d in counted) / len(counted)

    def decided(self) -> float:
        """Return the ratio of right answers among jobs for which exactly one answer is right."""
        counted = [(job, d) for job, d in self.said if len(job.right) == 1]
        return sum(self.code(d) in job.right for job, d in counted) / len(counted)

    def found(self) -> float:
        """Return the ratio of right answers among jobs of which exactly one diagnosis is right."""
        counted = [(job, d) for job, d in self.said if len(job.right) == 1 and not job.is_healthy]
        return sum(self.code(d) in job.right for job, d in counted) / len(counted)

    def false_alarms(self) -> float:
        """Return the ratio of healthy jobs that got a diagnosis."""
        counted = [d for job, d in self.said if job.is_healthy]
        return sum(d is not None for d in counted) / len(counted)

    def by_confidence(self) -> Iterator[str]:
        for confidence in reversed(Confidence):
            counted = [(job, d) for job, d in self.said if d is not None and d.confidence is confidence]
            right = sum(self.code(d) in job.right for job, d in counted)
            yield f"{confidence.word} {right} of {len(counted)}"

    def details(self) -> Iterator[str]:
        """Describe every job with a wrong answer."""
        for job, diagnosis in self.said:
            if self.code(diagnosis) not in job.right:
                figures = job.series.figures
                yield f"\n{job.kind}: {self.code(diagnosis)}, right {sorted(job.right)}"
                yield f"  {job.loop}\n  {job.life}"
                yield f"  lost {job.series.lost} filled {job.series.filled:.2f}\n  {figures.mean()}"
                yield f"  {figures.host} {diagnosis.evidence if diagnosis else ''}"

    def text(self) -> str:
        """Format it: a row for each kind of job, a column for each answer, and the share that is right."""
        columns = [NONE, *DIAGNOSES]
        rows = [f"{'':18}" + "".join(f"{_short(code):>6}" for code in columns) + "   right"]
        for kind in KINDS:
            of_kind = [(job, self.code(d)) for job, d in self.said if job.kind == kind]
            if not of_kind:
                continue
            counts = Counter(code for _, code in of_kind)
            right = sum(code in job.right for job, code in of_kind)
            cells = "".join(f"{counts.get(code) or '.':>6}" for code in columns)
            rows.append(f"{kind:18}{cells}   {right}/{len(of_kind)}")
        healthy_jobs = sum(job.is_healthy for job, _ in self.said)
        alone = sum(len(job.right) == 1 for job, _ in self.said)
        wrong = Counter(
            (job.kind, self.code(d), " or ".join(sorted(job.right)))
            for job, d in self.said
            if self.code(d) not in job.right
        )
        return "\n".join(
            [
                *rows,
                "columns: " + ", ".join(f"{_short(code)} {code}" for code in DIAGNOSES),
                f"correct {self.correct():.1%} of {len(self.said)} jobs,"
                f" {self.correct(seeing_only=True):.1%} of those with all figures,"
                f" {self.decided():.1%} of {alone} with one right answer,"
                f" {self.found():.1%} of those of them that are not healthy",
                f"false alarms {self.false_alarms():.2%} of {healthy_jobs} healthy jobs",
                "right by confidence: " + ", ".join(self.by_confidence()),
                *(
                    f"wrong {n} x: {kind}: {code}, right {right}"
                    for (kind, code, right), n in wrong.most_common()
                ),
            ]
        )


def _short(code: str) -> str:
    return code if code == NONE else "".join(letter for letter in code if letter.isupper())[:1] + code[1:4]


def simulated_jobs(seed: int, kernels: Kernels, kinds: Mapping[str, int] = KINDS) -> Iterator[Simulated]:
    for kind, count in kinds.items():
        for number in range(count):
            yield draw(kind, random.Random(f"{seed} {kind} {number}"), kernels)


def matrix(seed: int, kernels: Kernels) -> Matrix:
    return Matrix(tuple((job, diagnose(job.series.figures)) for job in simulated_jobs(seed, kernels)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--acme", action="store_true", help="draw kernels from AcmeTrace's distributions")
    parser.add_argument("--details", action="store_true", help="print every job with a wrong answer")
    arguments = parser.parse_args()
    made = matrix(arguments.seed, AcmeKernels(ACME) if arguments.acme else Kernels())
    sys.stdout.write(made.text() + "\n")
    if arguments.details:
        sys.stdout.write("\n".join(made.details()) + "\n")
