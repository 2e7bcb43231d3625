"""What jobs do with their GPUs: one load for each diagnosis, recorded series, and seeded noise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import Final, Literal, get_args

ShapeName = Literal[
    "good",
    "loader",
    "io",
    "copy",
    "small",
    "comm",
    "idle",
    "unused",
    "some-unused",
    "memory-bound",
    "no-tensor",
    "too-large",
    "replay",
]
SHAPE_NAMES: Final[tuple[ShapeName, ...]] = get_args(ShapeName)
Point = tuple[float, float, float]
"""Of a recorded series: second, duty in percent, memory in MiB."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a job does to one GPU at a moment, and on the host for it."""

    engine: float = 0.0  # this and the next four: shares of one
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    memory: float = 0.0
    pcie: float = 0.0  # bytes a second, from the host to the GPU
    nvlink: float = 0.0  # bytes a second
    cpu: float = 0.0  # the share of the job's cores that is busy
    io: float = 0.0  # the share of the time in which tasks wait for storage


IDLE: Final = Load()
# What each shape is diagnosed by is so far inside the limits that noise of 0.1 leaves it there.
SHAPES: Final[dict[str, Load]] = {
    "good": Load(0.96, 0.85, 0.42, 0.45, 0.85, pcie=2e8, nvlink=8e9, cpu=0.3),
    "loader": Load(0.25, 0.21, 0.1, 0.12, 0.6, pcie=2e8, cpu=0.98),
    "io": Load(0.2, 0.17, 0.08, 0.1, 0.6, pcie=1e8, cpu=0.12, io=0.45),
    "copy": Load(0.55, 0.18, 0.06, 0.15, 0.5, pcie=1.2e10, cpu=0.15),
    "small": Load(0.93, 0.14, 0.03, 0.06, 0.12, pcie=1e8, cpu=0.13),
    "comm": Load(0.97, 0.78, 0.06, 0.09, 0.8, pcie=2e8, nvlink=4e10, cpu=0.13),
    "idle": Load(memory=0.3, cpu=0.002),
    "unused": Load(cpu=0.13),
    "memory-bound": Load(0.92, 0.38, 0.05, 0.75, 0.7, pcie=1e8, cpu=0.13),
    "no-tensor": Load(0.95, 0.78, 0.0, 0.4, 0.6, pcie=1e8, cpu=0.13),
    "too-large": Load(0.09, 0.05, 0.01, 0.02, 0.05, pcie=2e7, cpu=0.5),
}
CORES: Final = 8
"""A GPU gets so many of the host's, unless its job says another number …"""
CORES_OF: Final = {"too-large": 1}


def load(shape: str, rank: int, since: float, points: Sequence[Point], memory_mib: int) -> Load:
    """What a shape does so many seconds after its start, without noise. `rank` counts the GPUs of a job."""
    if shape == "replay":
        return _replayed(points, since, memory_mib)
    if shape == "some-unused":
        shape = "good" if rank == 0 else "unused"
    return SHAPES[shape]


def _replayed(points: Sequence[Point], since: float, memory_mib: int) -> Load:
    """What a recorded series says, over and over."""
    period = points[-1][0] + (points[-1][0] - points[-2][0] if len(points) > 1 else 1)
    at = bisect_right(points, since % period, key=lambda point: point[0]) - 1
    _, duty, memory = points[max(at, 0)]
    busy = duty / 100
    held = min(1.0, memory / memory_mib)
    return Load(busy, busy * 0.8, busy * 0.4, busy * 0.5, held, pcie=2e8 * busy, cpu=0.3 * busy)


def blur(clear: Load, noise: float, job: tuple[object, ...], moment: tuple[object, ...]) -> Load:
    """Add noise: each job differs from its shape in every figure, and each moment from the job's mean.

    The same keys always give the same noise. Memory varies with the job only.
    """
    if not noise:
        return clear
    now = 1 + noise * _uniform(*job, *moment)
    values = astuple(clear)
    values = tuple(value * (1 + noise * _uniform(*job, at)) for at, value in enumerate(values))
    engine, sm, tensor, dram, memory, pcie, nvlink, cpu, io = values
    engine = min(1.0, engine * now)
    return Load(
        engine,
        min(engine, sm * now),
        min(1.0, tensor * now),
        min(1.0, dram * now),
        min(1.0, memory),
        pcie * now,
        nvlink * now,
        min(1.0, cpu * now),
        min(1.0, io * now),
    )


def together(loads: Iterable[Load]) -> Load:
    """What jobs that share a GPU do to it."""
    sums = [sum(column) for column in zip(*(astuple(one) for one in loads), strict=True)]
    if not sums:
        return IDLE
    engine, sm, tensor, dram, memory, pcie, nvlink, cpu, io = sums
    engine, sm, tensor, dram, memory = (min(1.0, share) for share in (engine, sm, tensor, dram, memory))
    return Load(engine, sm, tensor, dram, memory, pcie, nvlink, cpu, io)


def _uniform(*key: object) -> float:
    """A number from -1 to 1 that depends on the key alone."""
    digest = blake2b(repr(key).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**47 - 1
