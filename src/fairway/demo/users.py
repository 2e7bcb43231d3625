"""Generate the requests of the demo's users. Seeded: the same seed gives the same jobs.

Demand for each supply slightly exceeds its capacity, and users submit less while many of their jobs wait:
so pools are nearly full, some jobs always wait, and the queue stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from fairway.demo.jobs import ABANDONED, DemoJob, device_count, has_access, poisson, virtual_place
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import PriorityName
from fairway.model.team import Supply, Team

MEDIAN_SECONDS: Final = 1800.0
SPREAD: Final = 1.0
"""Sigma of the log-normal distribution: many jobs of minutes, some of hours."""
MAX_SECONDS: Final = 6 * 3600.0
PRESSURE: Final = 1.1
"""Demand relative to capacity; three times as much while no job waits."""
WAITING_OF_RUNNING: Final = 0.4
"""Waiting jobs for each running one, above which users submit less."""

_GPUS: Final = ((1, 40), (2, 22), (4, 18), (8, 14))
_GANGS: Final = ((2, 8, 4), (4, 4, 2))
"""Nodes, GPUs per node, weight."""
_COMMANDS: Final = (
    ("train", ("python", "train.py", "--config", "base.yaml")),
    ("finetune", ("torchrun", "finetune.py")),
    ("eval", ("python", "evaluate.py")),
    ("sweep", ("python", "sweep.py")),
    ("embed", ("python", "embed.py", "--shard", "3")),
    ("notebook", ("jupyter", "lab")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob(DemoJob):
    """A job that a user is about to submit."""

    name: str
    command: tuple[str, ...]
    any_pool: bool
    """The user leaves the choice of pool to Fairway."""
    retries: int
    cancelled_after: float | None
    """Seconds after which the owner cancels it. None means never."""


class Users:
    """All users of the fleet."""

    def __init__(self, fleet: Fleet, speed: float, seed: int) -> None:
        """`speed`: the factor by which durations are shortened."""
        self._speed = speed
        self._random = Random(seed)  # noqa: S311 - nothing secret
        self._number = 0
        self._pools = {pool.name: pool for pool in fleet.pools}
        self._teams: dict[Supply, list[tuple[Team, int]]] = {}
        self.devices: Final[dict[Supply, int]] = {}
        self._jobs_per_second: dict[Supply, float] = {}
        mean_seconds = min(MAX_SECONDS, MEDIAN_SECONDS * math.exp(SPREAD**2 / 2))
        for pool in fleet.pools:
            for supply in pool.supplies:
                teams = [(team, _weight(team, supply)) for team in fleet.teams if has_access(team, supply)]
                if teams:
                    self._teams[supply] = teams
                    self.devices[supply] = device_count(pool, supply)
                    job_seconds = self._mean_devices(supply) * mean_seconds / speed
                    self._jobs_per_second[supply] = self.devices[supply] / job_seconds

    def abandoned_notebook(self) -> PlannedJob:
        """Return a notebook that holds a device of the first supply for hours while nobody works on it."""
        supply = next(iter(self._teams))
        team, _ = max(self._teams[supply], key=lambda found: found[1])
        return PlannedJob(
            user=team.members[-1],
            team=team.name,
            supply=supply,
            name=ABANDONED,
            command=("jupyter", "lab"),
            gpus=1,
            nodes=1,
            tasks=1,
            seconds=12 * 3600.0,
            limit_seconds=24 * 3600,
            exit_code=0,
            priority=None,
            spot=False,
            native=False,
            any_pool=False,
            retries=0,
            cancelled_after=None,
        )

    def initial_jobs(self) -> Iterator[PlannedJob]:
        """Generate the jobs that run and wait when the demo opens: enough to fill every pool, partly done."""
        for supply, devices in self.devices.items():
            requested = 0
            while requested < devices * 1.5:
                job = self._generate(supply, under_way=True)
                requested += job.gpus * job.nodes * job.tasks
                yield job

    def next_jobs(self, seconds: float, waiting: Mapping[Supply, int]) -> Iterator[PlannedJob]:
        """Generate the jobs submitted within `seconds`, given the number of waiting jobs for each supply."""
        for supply, rate in self._jobs_per_second.items():
            enough = 2 + WAITING_OF_RUNNING * self.devices[supply] / self._mean_devices(supply)
            eagerness = max(0.0, 3 - 2 * waiting.get(supply, 0) / enough)
            for _ in range(poisson(self._random, rate * PRESSURE * eagerness * seconds)):
                yield self._generate(supply)

    def _generate(self, supply: Supply, *, under_way: bool = False) -> PlannedJob:
        random = self._random
        self._number += 1
        teams = self._teams[supply]
        team = random.choices([t for t, _ in teams], [weight for _, weight in teams])[0]
        pool = self._pools[supply.pool]
        nodes, gpus = self._size(pool, supply, team)
        seconds = min(MAX_SECONDS, random.lognormvariate(math.log(MEDIAN_SECONDS), SPREAD)) / self._speed
        if under_way:
            seconds *= random.uniform(0.2, 1.0)
        seconds = max(2.0, seconds)
        name, command = random.choice(_COMMANDS)
        late = random.random() < 0.02
        fails = random.random() < 0.06
        tasks = random.choice((4, 6, 8)) if nodes == 1 and gpus == 1 and random.random() < 0.04 else 1
        return PlannedJob(
            user=random.choice(team.members),
            team=team.name,
            supply=supply,
            name=f"{name}-{self._number}",
            command=command,
            gpus=gpus,
            nodes=nodes,
            seconds=seconds,
            limit_seconds=math.ceil(
                seconds * (random.uniform(0.4, 0.9) if late else random.uniform(1.5, 4)) + 1
            ),
            exit_code=random.choice((1, 1, 2, 137)) if fails else 0,
            priority=self._priority(team),
            spot=pool.capacity is Capacity.SPOT,
            native=tasks == 1 and random.random() < 0.35,
            any_pool=supply.slice is None and pool.capacity is not Capacity.SPOT and random.random() < 0.3,
            tasks=tasks,
            retries=random.choice((0, 0, 2)) if fails else 0,
            cancelled_after=seconds * random.random() if random.random() < 0.03 else None,
        )

    def _size(self, pool: Pool, supply: Supply, team: Team) -> tuple[int, int]:
        """Draw the number of nodes, and of devices on each."""
        random = self._random
        if supply.slice is not None:
            return 1, 1 if random.random() < 0.8 else 2
        gpus_per_node = virtual_place(pool).gpus_per_node
        limit = min(team.limits.job_gpus or 64, team.limits.user_gpus or 64)
        if random.random() < 0.06:
            sizes = [(n, g, w) for n, g, w in _GANGS if g <= gpus_per_node and n * g <= limit]
            if sizes:
                nodes, gpus, _ = random.choices(sizes, [weight for _, _, weight in sizes])[0]
                return nodes, gpus
        fitting = [(gpus, weight) for gpus, weight in _GPUS if gpus <= min(gpus_per_node, limit)]
        return 1, random.choices([g for g, _ in fitting], [weight for _, weight in fitting])[0]

    def _mean_devices(self, supply: Supply) -> float:
        if supply.slice is not None:
            return 1.2
        gpus_per_node = virtual_place(self._pools[supply.pool]).gpus_per_node
        fitting = [(gpus, weight) for gpus, weight in _GPUS if gpus <= gpus_per_node]
        single = sum(g * w for g, w in fitting) / sum(w for _, w in fitting)
        return 0.94 * single + 0.06 * 16

    def _priority(self, team: Team) -> PriorityName | None:
        chance = self._random.random()
        name = "urgent" if chance < 0.04 else "low" if chance > 0.88 else None
        return PriorityName(name) if name and (not team.priorities or name in team.priorities) else None


def _weight(team: Team, supply: Supply) -> int:
    grant = team.grant(supply)
    return 4 + (grant.guarantee if grant else 0)
