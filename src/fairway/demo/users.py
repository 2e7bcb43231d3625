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

from fairway.demo.jobs import (
    ABANDONED,
    DemoJob,
    JobKind,
    KindChoice,
    device_count,
    has_access,
    poisson,
    reduce_size,
    virtual_place,
)
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import PriorityName
from fairway.model.team import Supply, Team

MAX_SECONDS: Final = 6 * 3600.0
"""No live job is longer: nobody watches a demo for days."""
PRESSURE: Final = 1.1
"""Demand relative to capacity; three times as much while no job waits."""
WAITING_OF_RUNNING: Final = 0.4
"""Waiting jobs for each running one, above which users submit less."""


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
        self._kinds: dict[Supply, KindChoice] = {}
        for pool in fleet.pools:
            for supply in pool.supplies:
                teams = [(team, _weight(team, supply)) for team in fleet.teams if has_access(team, supply)]
                if teams:
                    self._teams[supply] = teams
                    self.devices[supply] = device_count(pool, supply)
                    kinds = self._kinds[supply] = KindChoice(virtual_place(pool), supply, MAX_SECONDS)
                    job_seconds = kinds.mean_device_seconds() / speed
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
            enough = 2 + WAITING_OF_RUNNING * self.devices[supply] / self._kinds[supply].mean_devices()
            eagerness = max(0.0, 3 - 2 * waiting.get(supply, 0) / enough)
            for _ in range(poisson(self._random, rate * PRESSURE * eagerness * seconds)):
                yield self._generate(supply)

    def _generate(self, supply: Supply, *, under_way: bool = False) -> PlannedJob:
        random = self._random
        self._number += 1
        teams = self._teams[supply]
        team = random.choices([t for t, _ in teams], [weight for _, weight in teams])[0]
        pool = self._pools[supply.pool]
        kind = self._kinds[supply].draw(random, running=under_way)
        nodes, gpus = reduce_size(team, *self._kinds[supply].draw_size(random, kind))
        # Of jobs that are running at some moment, long ones are over-represented, and part of each is left.
        median = kind.median * math.exp(kind.spread**2) if under_way else kind.median
        seconds = min(kind.max_seconds, MAX_SECONDS, random.lognormvariate(math.log(median), kind.spread))
        fails = random.random() < 0.3 * kind.failure_rate
        seconds = max(2.0, seconds * (random.random() if under_way or fails else 1.0) / self._speed)
        late = seconds > 120 and random.random() < 0.1
        tasks = random.choice(kind.tasks)
        return PlannedJob(
            user=random.choice(team.members),
            team=team.name,
            supply=supply,
            name=f"{kind.name}-{self._number}",
            command=kind.command,
            gpus=gpus,
            nodes=nodes,
            seconds=seconds,
            limit_seconds=_limit(seconds * (random.uniform(0.4, 0.7) if late else random.uniform(1.5, 4))),
            exit_code=random.choice((1, 1, 2, 137)) if fails else 0,
            priority=self._priority(team, kind),
            spot=pool.capacity is Capacity.SPOT,
            native=tasks == 1 and random.random() < 0.35,
            any_pool=supply.slice is None and pool.capacity is not Capacity.SPOT and random.random() < 0.3,
            tasks=tasks,
            retries=random.choice((0, 0, 2)) if fails else 0,
            cancelled_after=seconds * random.random() if random.random() < 0.2 * kind.cancel_rate else None,
        )

    def _priority(self, team: Team, kind: JobKind) -> PriorityName | None:
        chance = self._random.random()
        urgent = 0.0 if kind.name in ("debug", "notebook") else 0.05
        name = "urgent" if chance < urgent else "low" if chance > 0.88 else None
        return PriorityName(name) if name and (not team.priorities or name in team.priorities) else None


def _weight(team: Team, supply: Supply) -> int:
    grant = team.grant(supply)
    return 4 + (grant.guarantee if grant else 0)


def _limit(seconds: float) -> int:
    """Round a time limit up to what a user would write."""
    step = 60 if seconds < 600 else 600 if seconds < 7200 else 3600
    return math.ceil(seconds / step) * step
