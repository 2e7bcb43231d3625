"""Generate the jobs of the demo's history: by hour and weekday, with long tails. Pure, and seeded.

The distributions follow published traces of GPU clusters, see `docs/guides/demo.md`: most jobs are short
and use one GPU, a few large ones use most of the GPU-time, more than a third fail or are cancelled, nights
and weekends are quieter. Notebooks hold a GPU for most of a day and do little with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

from fairway.demo.jobs import DemoJob, device_count, has_access, poisson, virtual_place
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import PriorityName
from fairway.model.team import Supply, Team

HOUR: Final = 3600
DAY: Final = 86400
LOAD: Final = 0.66
"""Average demand as a fraction of capacity; users submit less where many jobs wait."""
_DEMAND_FACTORS: Final = {Capacity.OWNED: 1.12, Capacity.ON_DEMAND: 0.94}
"""Factors on the demand: cheaper capacity is in higher demand."""
MAX_SECONDS: Final = 5 * DAY

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
    failure_rate: float
    cancel_rate: float
    tasks: tuple[int, ...] = (1,)
    max_seconds: float = MAX_SECONDS


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
    JobKind("sweep", ("python", "sweep.py"), 1.2, 900, 1.0, _ONE, 0.12, 0.08, tasks=(6, 8, 12)),
)
SLICE_KINDS: Final = (
    JobKind("notebook", ("jupyter", "lab"), 50, 4 * HOUR, 0.8, _ONE, 0.02, 0.40, max_seconds=20 * HOUR),
    JobKind("eval", ("python", "evaluate.py"), 32, 1200, 1.1, ((1, 1, 85), (1, 2, 15)), 0.16, 0.08),
    JobKind("embed", ("python", "embed.py", "--shard", "3"), 18, 4800, 1.2, _ONE, 0.12, 0.08),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoricJob(DemoJob):
    """A generated job: its submission, and its outcome if nothing interferes."""

    at: float
    kind: JobKind
    number: int
    cancelled: bool
    """The owner cancels it after `seconds`."""
    gives_up_after: float | None
    """Seconds after which the owner cancels the job if it has not started."""

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}"


def generate_jobs(fleet: Fleet, start: int, end: int, seed: int) -> Iterator[HistoricJob]:
    """Generate all jobs in order of submission."""
    random = Random(seed)  # noqa: S311 - nothing secret
    generators = [_JobGenerator(fleet, pool, s, random) for pool in fleet.pools for s in pool.supplies]
    number = 0
    for hour in range(start - start % HOUR, end, HOUR):
        demand = _demand(hour)
        due: list[tuple[float, int, _JobGenerator]] = []
        for order, generator in enumerate(generators):
            count = poisson(random, generator.jobs_per_hour * demand)
            due += [(hour + HOUR * random.random(), order, generator) for _ in range(count)]
        for at, _, generator in sorted(due, key=lambda entry: entry[:2]):
            if start <= at < end:
                number += 1
                yield generator.generate(round(at, 3), number)


class _JobGenerator:
    """Generates the jobs that request one supply."""

    def __init__(self, fleet: Fleet, pool: Pool, supply: Supply, random: Random) -> None:
        place = virtual_place(pool)
        self._random = random
        self._pool = pool
        self._supply = supply
        teams = [team for team in fleet.teams if has_access(team, supply)]
        self._teams = (teams, [_weight(team, supply) for team in teams])
        # In every team a few users submit many jobs and most submit few.
        self._user_weights = {
            team.name: [1 / (1 + rank) ** 0.8 for rank in range(len(team.members))] for team in teams
        }
        kinds = KINDS if supply.slice is None else SLICE_KINDS
        self._kinds = (kinds, [kind.weight for kind in kinds])
        self._sizes = {kind.name: _fitting(kind, place.gpus_per_node, place.nodes) for kind in kinds}
        load = LOAD * _DEMAND_FACTORS.get(pool.capacity, 1.0)
        devices = device_count(pool, supply)
        self.jobs_per_hour: Final = load * devices * HOUR / self._mean_device_seconds(kinds)

    def generate(self, at: float, number: int) -> HistoricJob:
        random = self._random
        kind = random.choices(*self._kinds)[0]
        team = random.choices(*self._teams)[0]
        nodes, gpus = _reduce_size(team, *random.choices(*self._sizes[kind.name])[0])
        seconds = min(kind.max_seconds, random.lognormvariate(math.log(kind.median), kind.spread))
        fails, cancelled = random.random() < kind.failure_rate, random.random() < kind.cancel_rate
        if fails:  # mostly soon
            seconds *= random.random() ** 2
        seconds = max(5.0, round(seconds, 3))
        late = not fails and random.random() < 0.05
        limit = seconds * (random.uniform(0.5, 0.95) if late else random.uniform(1.4, 5))
        return HistoricJob(
            at=at,
            user=random.choices(team.members, self._user_weights[team.name])[0],
            team=team.name,
            supply=self._supply,
            kind=kind,
            number=number,
            nodes=nodes,
            gpus=gpus,
            tasks=random.choice(kind.tasks),
            seconds=seconds,
            limit_seconds=_round_limit(limit, seconds, late=late),
            exit_code=random.choice((1, 1, 1, 2, 137)) if fails else 0,
            cancelled=cancelled and not fails and not late,
            gives_up_after=random.uniform(0.3, 4) * HOUR if random.random() < 0.10 else None,
            priority=self._priority(team, kind, seconds),
            spot=self._pool.capacity is Capacity.SPOT,
            native=random.random() < 0.35,
        )

    def _priority(self, team: Team, kind: JobKind, seconds: float) -> PriorityName | None:
        chance = self._random.random()
        # Nobody submits a job of days with priority low: it would never end.
        low = 0.4 if kind.name == "sweep" else 0.10 if seconds < 2 * HOUR else 0.0
        name = "urgent" if chance < 0.03 else "low" if chance > 1 - low else None
        return PriorityName(name) if name and (not team.priorities or name in team.priorities) else None

    def _mean_device_seconds(self, kinds: Sequence[JobKind]) -> float:
        return sum(
            kind.weight * self._mean_size(kind) * _mean_seconds(kind) * fmean(kind.tasks) for kind in kinds
        ) / sum(kind.weight for kind in kinds)

    def _mean_size(self, kind: JobKind) -> float:
        sizes, weights = self._sizes[kind.name]
        return sum(n * g * w for (n, g), w in zip(sizes, weights, strict=True)) / sum(weights)


def _fitting(kind: JobKind, gpus_per_node: int, nodes: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the sizes that fit the pool at least twice, and their weights; one device if none does."""
    found = [(n, g, w) for n, g, w in kind.sizes if g <= gpus_per_node and 2 * n <= nodes] or [(1, 1, 1.0)]
    return [(n, g) for n, g, _ in found], [w for _, _, w in found]


def _reduce_size(team: Team, nodes: int, gpus: int) -> tuple[int, int]:
    """Halve a size until it is within the team's limits per job and per user."""
    limit = min(team.limits.job_gpus or 64, team.limits.user_gpus or 64)
    while nodes * gpus > limit:
        nodes, gpus = (nodes // 2, gpus) if nodes > 1 else (1, gpus // 2)
    return nodes, gpus


def _mean_seconds(kind: JobKind) -> float:
    mean = min(kind.max_seconds, kind.median * math.exp(kind.spread**2 / 2))
    return mean * (1 - kind.failure_rate * 2 / 3)


def _round_limit(limit: float, seconds: float, *, late: bool) -> int:
    """Round a time limit up, above the duration unless the job is to exceed it."""
    for step in (HOUR, 600, 60):
        rounded = math.ceil(limit / step) * step
        if limit > 4 * step and not (late and rounded >= seconds):
            return rounded
    return max(1, math.floor(limit)) if late else math.ceil(limit / 60) * 60


def _demand(at: int) -> float:
    """Return the demand of this hour relative to the weekly mean."""
    hour, weekday = at % DAY // HOUR, (at // DAY + 3) % 7
    return _BY_HOUR[hour] / fmean(_BY_HOUR) * _BY_WEEKDAY[weekday] * 7 / sum(_BY_WEEKDAY)


def _weight(team: Team, supply: Supply) -> float:
    grant = team.grant(supply)
    return 3.0 + (grant.guarantee if grant else 0) + 0.3 * len(team.members)
