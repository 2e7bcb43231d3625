"""The terms of a virtual cluster: the part of a fleet that its scheduler needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairway.model.fleet import Fleet
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Priority, Team


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """Teams, priorities and fairness, as in the policy objects of the cluster."""

    teams: tuple[Team, ...] = ()
    """Parents before children."""
    priorities: tuple[Priority, ...] = DEFAULT_PRIORITIES
    fairness: Fairness = field(default_factory=Fairness)
    default_teams: Mapping[UserName, TeamName] = field(default_factory=lambda: MappingProxyType({}))
    counts_guaranteed: bool = False
    """Whether fair shares count all use, as Slurm's do, or what is held beyond guarantees."""

    def priority(self, name: PriorityName) -> Priority | None:
        return next((p for p in self.priorities if p.name == name), None)

    @property
    def default_rank(self) -> int:
        """The rank of the default priority; jobs with a higher rank are urgent."""
        return next((p.rank for p in self.priorities if p.default), 0)


def terms_of(fleet: Fleet, *, counts_guaranteed: bool = False) -> ClusterTerms:
    """Return the terms of a fleet directly, without policy objects: for forecasts, what-if runs and tests."""
    return ClusterTerms(
        fleet.teams,
        fleet.priorities,
        fleet.fairness,
        MappingProxyType(fleet.default_teams()),
        counts_guaranteed,
    )
