"""The terms a virtual cluster runs under: what of a fleet its scheduler needs, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairway.model.fleet import Fleet
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Priority, Team

_WEEK = Fairness()


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """Teams, priorities and fairness, as the cluster's policy objects state them."""

    teams: tuple[Team, ...] = ()
    """Parents before children."""
    priorities: tuple[Priority, ...] = DEFAULT_PRIORITIES
    fairness: Fairness = _WEEK
    default_teams: Mapping[UserName, TeamName] = field(default_factory=lambda: MappingProxyType({}))

    def priority(self, name: PriorityName) -> Priority | None:
        return next((p for p in self.priorities if p.name == name), None)

    @property
    def default_rank(self) -> int:
        """Ranks above it are urgent."""
        return next((p.rank for p in self.priorities if p.default), 0)


def terms_of(fleet: Fleet) -> ClusterTerms:
    """A fleet's terms, without the way through policy objects: for what-if runs and tests."""
    return ClusterTerms(
        fleet.teams, fleet.priorities, fleet.fairness, MappingProxyType(fleet.default_teams())
    )
