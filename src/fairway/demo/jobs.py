"""What the demo's past and live jobs share: their fields, and how they are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

from fairway.engines.virtual import JobRequest
from fairway.model.fleet import Pool, VirtualPlace
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import Supply, Team

ABANDONED: Final = "notebook-friday"
"""The name of a live notebook that holds a GPU and that nobody works on."""


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
        )


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
