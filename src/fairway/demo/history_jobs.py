"""Generate the jobs of the demo's history: by hour and weekday, with long tails. Pure, and seeded.

The distributions follow published traces of GPU clusters, see `docs/guides/demo.md`: most jobs are short
and use one GPU, a few large ones use most of the GPU-time, more than a third fail or are cancelled, nights
and weekends are quieter. Notebooks hold a GPU for most of a day and do little with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

from fairway.demo.jobs import (
    DAY,
    HOUR,
    DemoJob,
    JobKind,
    KindChoice,
    device_count,
    has_access,
    poisson,
    reduce_size,
    virtual_place,
)
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import PriorityName
from fairway.model.team import Supply, Team

LOAD: Final = 0.66
"""Average demand as a fraction of capacity; users submit less where many jobs wait."""
_DEMAND_FACTORS: Final = {Capacity.OWNED: 1.12, Capacity.ON_DEMAND: 0.94}
"""Factors on the demand: cheaper capacity is in higher demand."""

_NIGHT: Final = (52, 44, 40, 38, 38, 42, 50, 62)
_DAY: Final = (80, 112, 130, 132, 116, 120, 134, 138, 134, 124)
_EVENING: Final = (106, 92, 84, 74, 62, 50)
_BY_HOUR: Final = (*_NIGHT, *_DAY, *_EVENING)
_BY_WEEKDAY: Final = (1.0, 1.12, 1.15, 1.12, 1.02, 0.55, 0.52)
"""Starting on Monday."""


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
        self._random = random
        self._pool = pool
        self._supply = supply
        teams = [team for team in fleet.teams if has_access(team, supply)]
        self._teams = (teams, [_weight(team, supply) for team in teams])
        # In every team a few users submit many jobs and most submit few.
        self._user_weights = {
            team.name: [1 / (1 + rank) ** 0.8 for rank in range(len(team.members))] for team in teams
        }
        self._kinds = KindChoice(virtual_place(pool), supply)
        load = LOAD * _DEMAND_FACTORS.get(pool.capacity, 1.0)
        devices = device_count(pool, supply)
        self.jobs_per_hour: Final = load * devices * HOUR / self._kinds.mean_device_seconds()

    def generate(self, at: float, number: int) -> HistoricJob:
        random = self._random
        kind = self._kinds.draw(random)
        team = random.choices(*self._teams)[0]
        nodes, gpus = reduce_size(team, *self._kinds.draw_size(random, kind))
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
        urgent = 0.0 if kind.name in ("debug", "notebook") else 0.05
        name = "urgent" if chance < urgent else "low" if chance > 1 - low else None
        return PriorityName(name) if name and (not team.priorities or name in team.priorities) else None


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
