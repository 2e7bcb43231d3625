"""What the demo's past and live jobs share: their fields, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final
from zlib import crc32

from fairway.model.fleet import Pool, VirtualPlace
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import Supply, Team
from fairway.simulate.cluster import JobRequest

HOUR: Final = 3600
DAY: Final = 86400

ABANDONED: Final = "notebook-friday"
"""The name of a live notebook that holds a GPU and that nobody works on."""


PROJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "nlp": ("llama-8b", "translation"),
    "vision": ("detector",),
    "speech": ("whisper", "voices"),
    "search": ("ranking", "embeddings"),
    "serving": ("assistant",),
}
"""The projects of each team, as in fleet.yaml."""
EXPERIMENTS: Final = 6
"""Of a project."""
_OF_EXPERIMENTS: Final = frozenset({"train", "finetune", "pretrain", "sweep", "eval"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """A job or an array: owner, supply, size, and its outcome if nothing interferes."""

    user: UserName
    team: TeamName
    supply: Supply
    gpus: int
    nodes: int
    tasks: int
    seconds: float
    """How long it will run."""
    limit_seconds: int
    exit_code: int
    priority: PriorityName | None
    spot: bool
    native: bool

    @property
    def project(self) -> str | None:
        """Return the project that its owner works on. Students have none."""
        projects = PROJECTS.get(self.team)
        return projects[crc32(self.user.encode()) % len(projects)] if projects else None

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of a job of this name: what trains and evaluates is part of an experiment."""
        kind, _, number = name.partition("-")
        if self.project is None or kind not in _OF_EXPERIMENTS or not number.isdigit():
            return {}
        experiment = crc32(f"{self.user} {int(number) // 2000}".encode()) % EXPERIMENTS
        return {"experiment": f"{self.project}-{experiment + 1}"}

    def request(self, name: str = "") -> JobRequest:
        """Convert one task to a request of the virtual engine."""
        return JobRequest(
            self.user,
            self.supply.pool,
            gpus=self.gpus,
            nodes=self.nodes,
            slice=self.supply.slice,
            team=self.team,
            seconds=self.seconds,
            limit_seconds=self.limit_seconds,
            priority=self.priority,
            tolerates_loss=self.spot,
            name=name,
            exit_code=self.exit_code,
            project=self.project or "",
            labels=tuple(self.labels(name).items()),
        )


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of work: frequency, duration (median and sigma of a log-normal), sizes, failure rate."""

    name: str
    command: tuple[str, ...]
    weight: float
    median: float
    spread: float
    sizes: tuple[tuple[int, int, float], ...]
    """Nodes, GPUs per node, weight."""
    failure_rate: float
    cancel_rate: float
    tasks: tuple[int, ...] = (1,)
    max_seconds: float = 5 * DAY

    def mean_seconds(self, max_seconds: float = math.inf) -> float:
        """Return the mean duration, of which jobs that fail run a third."""
        mean = min(self.max_seconds, max_seconds, self.median * math.exp(self.spread**2 / 2))
        return mean * (1 - self.failure_rate * 2 / 3)


_ONE: Final = ((1, 1, 1.0),)
KINDS: Final = (
    JobKind(
        "debug", ("python", "train.py", "--steps", "20"), 24, 240, 1.1, ((1, 1, 95), (1, 2, 5)), 0.34, 0.12
    ),
    JobKind("eval", ("python", "evaluate.py"), 17, 600, 1.1, _ONE, 0.14, 0.08),
    JobKind(
        "train",
        ("python", "train.py", "--config", "base.yaml"),
        24,
        3300,
        1.75,
        ((1, 1, 70), (1, 2, 14), (1, 4, 12), (1, 8, 4)),
        0.20,
        0.18,
    ),
    JobKind("finetune", ("torchrun", "finetune.py"), 7, 9000, 1.3, ((1, 4, 55), (1, 8, 45)), 0.20, 0.20),
    JobKind(
        "pretrain",
        ("torchrun", "--nnodes", "4", "pretrain.py"),
        2.2,
        6 * HOUR,
        1.2,
        ((2, 8, 60), (4, 8, 25), (4, 4, 15)),
        0.26,
        0.26,
    ),
    JobKind("notebook", ("jupyter", "lab"), 8, 5 * HOUR, 0.8, _ONE, 0.02, 0.45, max_seconds=30 * HOUR),
    JobKind("sweep", ("python", "sweep.py"), 1.2, 1800, 1.0, _ONE, 0.12, 0.08, tasks=(6, 8, 12)),
)
SLICE_KINDS: Final = (
    JobKind("notebook", ("jupyter", "lab"), 50, 4 * HOUR, 0.8, _ONE, 0.02, 0.40, max_seconds=20 * HOUR),
    JobKind("eval", ("python", "evaluate.py"), 32, 1200, 1.1, ((1, 1, 85), (1, 2, 15)), 0.16, 0.08),
    JobKind("embed", ("python", "embed.py", "--shard", "3"), 18, 4800, 1.2, _ONE, 0.12, 0.08),
)


class KindChoice:
    """The kinds of jobs that request one supply, and their sizes that fit its pool."""

    def __init__(self, place: VirtualPlace, supply: Supply, max_seconds: float = math.inf) -> None:
        """`max_seconds`: no job runs longer."""
        self._kinds = KINDS if supply.slice is None else SLICE_KINDS
        self._max_seconds = max_seconds
        self._weights = [kind.weight for kind in self._kinds]
        self._sizes = {kind.name: _fitting(kind, place.gpus_per_node, place.nodes) for kind in self._kinds}
        self._running_weights = [kind.weight * kind.mean_seconds(max_seconds) for kind in self._kinds]

    def draw(self, random: Random, *, running: bool = False) -> JobKind:
        """Draw a kind: of a job that is submitted, or of one that is running at some moment."""
        return random.choices(self._kinds, self._running_weights if running else self._weights)[0]

    def draw_size(self, random: Random, kind: JobKind) -> tuple[int, int]:
        """Draw the number of nodes, and of devices on each."""
        return random.choices(*self._sizes[kind.name])[0]

    def mean_device_seconds(self) -> float:
        """Return the mean of all tasks of a job together."""
        return self._mean(lambda kind: self._mean_devices(kind) * kind.mean_seconds(self._max_seconds))

    def mean_devices(self) -> float:
        """Return the mean number of devices of a job."""
        return self._mean(self._mean_devices)

    def _mean(self, value: Callable[[JobKind], float]) -> float:
        return sum(kind.weight * value(kind) for kind in self._kinds) / sum(self._weights)

    def _mean_devices(self, kind: JobKind) -> float:
        sizes, weights = self._sizes[kind.name]
        mean = sum(n * g * w for (n, g), w in zip(sizes, weights, strict=True)) / sum(weights)
        return mean * fmean(kind.tasks)


def _fitting(kind: JobKind, gpus_per_node: int, nodes: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the sizes that fit the pool at least twice, and their weights; one device if none does."""
    found = [(n, g, w) for n, g, w in kind.sizes if g <= gpus_per_node and 2 * n <= nodes] or [(1, 1, 1.0)]
    return [(n, g) for n, g, _ in found], [w for _, _, w in found]


def reduce_size(team: Team, nodes: int, gpus: int) -> tuple[int, int]:
    """Halve a size until it is within the team's limits per job and per user."""
    limit = min(team.limits.job_gpus or 64, team.limits.user_gpus or 64)
    while nodes * gpus > limit:
        nodes, gpus = (nodes // 2, gpus) if nodes > 1 else (1, gpus // 2)
    return nodes, gpus


def virtual_place(pool: Pool) -> VirtualPlace:
    """Return the nodes of a pool. Raises TypeError if it is not virtual."""
    if not isinstance(pool.place, VirtualPlace):
        raise TypeError(f"pool {pool.name} of the demo is not virtual")
    return pool.place


def device_count(pool: Pool, supply: Supply) -> int:
    """Return the number of GPUs or slices of a supply."""
    place = virtual_place(pool)
    per_gpu = 1 if supply.slice is None else place.slices_per_gpu[supply.slice]
    return place.nodes * place.gpus_per_node * per_gpu


def has_access(team: Team, supply: Supply) -> bool:
    """Return whether users of the team may run jobs on the supply."""
    grant = team.grant(supply)
    return bool(team.members) and grant is not None and grant.ceiling != 0


def poisson(random: Random, mean: float) -> int:
    """Draw from a Poisson distribution: Knuth's algorithm for small means, a Gaussian for large ones."""
    if mean > 30:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count
