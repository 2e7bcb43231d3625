"""Generate the jobs of the demo's history: by hour and weekday, with long tails. Pure, and seeded.

The distributions follow published traces of GPU clusters, see `docs/guides/demo.md`: most jobs are short
and use one GPU, a few large ones use most of the GPU-time, more than a third fail or are cancelled, nights
and weekends are quieter. Notebooks hold a GPU for most of a day and do little with it.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, Generic, TypeVar

from fairway.demo.jobs import Work
from fairway.model.fleet import Capacity, Fleet, Pool, VirtualPlace
from fairway.model.names import PriorityName
from fairway.model.team import Supply, Team

_T = TypeVar("_T")

HOUR: Final = 3600
DAY: Final = 86400
LOAD: Final = 0.66
"""Average demand as a fraction of capacity; users submit less where many jobs wait."""
_WANTED: Final = {Capacity.OWNED: 1.12, Capacity.ON_DEMAND: 0.94}
"""Factors on the demand: cheaper capacity is in higher demand."""
LONGEST_SECONDS: Final = 5 * DAY
LOW: Final = PriorityName("low")

_NIGHT: Final = (52, 44, 40, 38, 38, 42, 50, 62)
_DAY: Final = (80, 112, 130, 132, 116, 120, 134, 138, 134, 124)
_EVENING: Final = (106, 92, 84, 74, 62, 50)
_BY_HOUR: Final = (*_NIGHT, *_DAY, *_EVENING)
_BY_WEEKDAY: Final = (1.0, 1.12, 1.15, 1.12, 1.02, 0.55, 0.52)
"""Starting on Monday."""


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
    fails: float
    regretted: float
    tasks: tuple[int, ...] = (1,)
    longest: float = LONGEST_SECONDS


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
    JobKind("notebook", ("jupyter", "lab"), 8, 5 * HOUR, 0.8, _ONE, 0.02, 0.45, longest=30 * HOUR),
    JobKind("sweep", ("python", "sweep.py"), 1.2, 900, 1.0, _ONE, 0.12, 0.08, tasks=(6, 8, 12)),
)
_OF_SLICES: Final = (
    JobKind("notebook", ("jupyter", "lab"), 50, 4 * HOUR, 0.8, _ONE, 0.02, 0.40, longest=20 * HOUR),
    JobKind("eval", ("python", "evaluate.py"), 32, 1200, 1.1, ((1, 1, 85), (1, 2, 15)), 0.16, 0.08),
    JobKind("embed", ("python", "embed.py", "--shard", "3"), 18, 4800, 1.2, _ONE, 0.12, 0.08),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoricJob(Work):
    """A generated job: its submission, and its outcome if nothing interferes."""

    at: float
    kind: JobKind
    number: int
    regretted: bool
    """The owner cancels it after `seconds`."""
    patience: float | None
    """Seconds after which the owner cancels the job if it has not started."""

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}"


def asked(fleet: Fleet, start: int, end: int, seed: int) -> Iterator[HistoricJob]:
    """Generate all jobs in order of submission."""
    random = Random(seed)  # noqa: S311 - nothing secret
    streams = [_Stream(fleet, pool, supply, random) for pool in fleet.pools for supply in pool.supplies]
    number = 0
    for hour in range(start - start % HOUR, end, HOUR):
        pressure = _pressure(hour)
        due: list[tuple[float, int, _Stream]] = []
        for place, stream in enumerate(streams):
            count = _poisson(random, stream.an_hour * pressure)
            due += [(hour + HOUR * random.random(), place, stream) for _ in range(count)]
        for at, _, stream in sorted(due, key=lambda one: one[:2]):
            if start <= at < end:
                number += 1
                yield stream.one(round(at, 3), number)


class _Stream:
    """Generates the jobs that request one supply."""

    def __init__(self, fleet: Fleet, pool: Pool, supply: Supply, random: Random) -> None:
        place = pool.place
        if not isinstance(place, VirtualPlace):
            raise TypeError(f"pool {pool.name} of the demo is not virtual")
        self._random = random
        self._pool = pool
        self._supply = supply
        self._most = place.gpus_per_node
        self._nodes = place.nodes
        each = 1 if supply.slice is None else place.slices_per_gpu[supply.slice]
        devices = place.nodes * place.gpus_per_node * each
        wanting = [team for team in fleet.teams if _wants(team, supply)]
        self._teams = _Drawn(wanting, [_weight(team, supply) for team in wanting])
        # In every team some send much and most send little.
        self._people = {
            team.name: _Drawn(team.members, [1 / (1 + place) ** 0.8 for place in range(len(team.members))])
            for team in wanting
        }
        kinds = KINDS if supply.slice is None else _OF_SLICES
        self._kinds = _Drawn(kinds, [kind.weight for kind in kinds])
        self._sizes = {kind.name: _Drawn(*_fitting(kind, self._most, self._nodes)) for kind in kinds}
        wanted = LOAD * _WANTED.get(pool.capacity, 1.0)
        self.an_hour: Final = wanted * devices * HOUR / self._mean_device_seconds(kinds)

    def one(self, at: float, number: int) -> HistoricJob:
        random = self._random
        kind = self._kinds.draw(random)
        team = self._teams.draw(random)
        nodes, gpus = self._sizes[kind.name].draw(random)
        nodes, gpus = _within(team, nodes, gpus)
        seconds = min(kind.longest, random.lognormvariate(math.log(kind.median), kind.spread))
        fails, regretted = random.random() < kind.fails, random.random() < kind.regretted
        if fails:  # mostly soon
            seconds *= random.random() ** 2
        seconds = max(5.0, round(seconds, 3))
        late = not fails and random.random() < 0.05
        limit = seconds * (random.uniform(0.5, 0.95) if late else random.uniform(1.4, 5))
        return HistoricJob(
            at=at,
            user=self._people[team.name].draw(random),
            team=team.name,
            supply=self._supply,
            kind=kind,
            number=number,
            nodes=nodes,
            gpus=gpus,
            tasks=random.choice(kind.tasks),
            seconds=seconds,
            limit_seconds=_neat(limit, seconds, late=late),
            exit_code=random.choice((1, 1, 1, 2, 137)) if fails else 0,
            regretted=regretted and not fails and not late,
            patience=random.uniform(0.3, 4) * HOUR if random.random() < 0.10 else None,
            priority=self._priority(team, kind, seconds),
            spot=self._pool.capacity is Capacity.SPOT,
            native=random.random() < 0.35,
        )

    def _priority(self, team: Team, kind: JobKind, seconds: float) -> PriorityName | None:
        chance = self._random.random()
        # Nobody sends as low what takes days: it would never end.
        low = 0.4 if kind.name == "sweep" else 0.10 if seconds < 2 * HOUR else 0.0
        word = "urgent" if chance < 0.03 else "low" if chance > 1 - low else None
        return PriorityName(word) if word and (not team.priorities or word in team.priorities) else None

    def _mean_device_seconds(self, kinds: Sequence[JobKind]) -> float:
        return sum(
            kind.weight * self._mean_size(kind) * _mean_seconds(kind) * _mean(kind.tasks) for kind in kinds
        ) / sum(kind.weight for kind in kinds)

    def _mean_size(self, kind: JobKind) -> float:
        sizes, weights = _fitting(kind, self._most, self._nodes)
        return sum(n * g * w for (n, g), w in zip(sizes, weights, strict=True)) / sum(weights)


class _Drawn(Generic[_T]):
    """A weighted random choice."""

    def __init__(self, those: Sequence[_T], weights: Sequence[float]) -> None:
        self._those = those
        self._sums = list(accumulate(weights))

    def draw(self, random: Random) -> _T:
        return self._those[bisect(self._sums, random.random() * self._sums[-1])]


def _fitting(kind: JobKind, most: int, nodes: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the sizes that fit the pool at least twice, and their weights; one device if none does."""
    found = [(n, g, w) for n, g, w in kind.sizes if g <= most and 2 * n <= nodes] or [(1, 1, 1.0)]
    return [(n, g) for n, g, _ in found], [w for _, _, w in found]


def _within(team: Team, nodes: int, gpus: int) -> tuple[int, int]:
    """Halve a size until it is within the team's limits per job and per user."""
    most = min(team.limits.job_gpus or 64, team.limits.user_gpus or 64)
    while nodes * gpus > most:
        nodes, gpus = (nodes // 2, gpus) if nodes > 1 else (1, gpus // 2)
    return nodes, gpus


def _mean_seconds(kind: JobKind) -> float:
    whole = min(kind.longest, kind.median * math.exp(kind.spread**2 / 2))
    return whole * (1 - kind.fails * 2 / 3)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _neat(limit: float, seconds: float, *, late: bool) -> int:
    """Round a time limit up, above the duration unless the job is to exceed it."""
    for step in (HOUR, 600, 60):
        rounded = math.ceil(limit / step) * step
        if limit > 4 * step and not (late and rounded >= seconds):
            return rounded
    return max(1, math.floor(limit)) if late else math.ceil(limit / 60) * 60


def _pressure(at: int) -> float:
    """Return the demand of this hour relative to the weekly mean."""
    hour, weekday = at % DAY // HOUR, (at // DAY + 3) % 7
    return _BY_HOUR[hour] / _mean(_BY_HOUR) * _BY_WEEKDAY[weekday] * 7 / sum(_BY_WEEKDAY)


def _poisson(random: Random, mean: float) -> int:
    if mean > 30:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count


def _wants(team: Team, supply: Supply) -> bool:
    grant = team.grant(supply)
    return bool(team.members) and grant is not None and grant.ceiling != 0


def _weight(team: Team, supply: Supply) -> float:
    grant = team.grant(supply)
    return 3.0 + (grant.guarantee if grant else 0) + 0.3 * len(team.members)
