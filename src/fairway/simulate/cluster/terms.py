"""The terms of a virtual cluster: the part of a fleet that its scheduler needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Priority, Team

SLURM_REQUEUE_SECONDS: Final = 121.0
"""How long a requeued job waits before Slurm considers it again: `AuthInfo=cred_expire`, 120 s unless a site
sets another, and one more."""


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """Teams, priorities and fairness, as in the policy objects of the cluster."""

    teams: tuple[Team, ...] = ()
    """Parents before children."""
    priorities: tuple[Priority, ...] = DEFAULT_PRIORITIES
    fairness: Fairness = field(default_factory=Fairness)
    default_teams: Mapping[UserName, TeamName] = field(default_factory=lambda: MappingProxyType({}))
    slurm_pools: frozenset[PoolName] = frozenset()
    """Pools of Slurm. There, all use of teams counts when shares are compared, not only what they borrow. A
    preemptible job starts only if it ends, by its time limit, before a waiting job would start in its place:
    backfill plans the start of each."""

    def priority(self, name: PriorityName) -> Priority | None:
        return next((p for p in self.priorities if p.name == name), None)

    @property
    def default_rank(self) -> int:
        """The rank of the default priority; jobs with a higher rank are urgent."""
        return next((p.rank for p in self.priorities if p.default), 0)


def terms_of(fleet: Fleet) -> ClusterTerms:
    """Return the terms of a fleet directly, without policy objects: for what-if runs and tests."""
    return ClusterTerms(
        fleet.teams,
        fleet.priorities,
        fleet.fairness,
        MappingProxyType(fleet.default_teams()),
        _slurm_pools(fleet),
    )


def requeue_seconds_of(fleet: Fleet) -> dict[PoolName, float]:
    """Return how long a preempted job waits before it can start again, by pool; at once in any other."""
    return dict.fromkeys(_slurm_pools(fleet), SLURM_REQUEUE_SECONDS)


def _slurm_pools(fleet: Fleet) -> frozenset[PoolName]:
    slurm = {cluster.name for cluster in fleet.clusters if cluster.engine is EngineKind.SLURM}
    return frozenset(pool.name for pool in fleet.pools if pool.cluster in slurm)
