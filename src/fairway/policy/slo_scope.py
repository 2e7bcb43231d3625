"""Decide which jobs an objective counts: by team, pool, size and priority. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairway.model.names import PriorityName, TeamName
from fairway.model.slo import Slo
from fairway.model.team import TeamTree


@dataclass(frozen=True, slots=True)
class JobTraits:
    """What of a job decides whether an objective counts it. An empty string means none."""

    team: str
    pool: str
    priority: str
    devices: int


class SloScope:
    """The jobs that an objective counts."""

    def __init__(self, slo: Slo, tree: TeamTree, default_priority: PriorityName | None = None) -> None:
        """`default_priority` is that of jobs of which none is known, such as native ones."""
        self._teams: Final = _teams(slo.team, tree)
        self._pools: Final = frozenset(slo.pools)
        self._gpus: Final = slo.gpus
        self._priority: Final = slo.priority
        self._default: Final = default_priority or ""

    def counts(self, job: JobTraits) -> bool:
        """Return whether the objective counts a job. One without GPUs counts nowhere."""
        return (
            job.devices > 0
            and (self._gpus is None or job.devices <= self._gpus)
            and (not self._pools or job.pool in self._pools)
            and (self._teams is None or job.team in self._teams)
            and (self._priority is None or (job.priority or self._default) == self._priority)
        )


def _teams(team: TeamName | None, tree: TeamTree) -> frozenset[str] | None:
    """Return a team and those inside it; a team that is gone has no jobs. None: every team."""
    if team is None:
        return None
    return frozenset(one.name for one in tree.subtree(tree[team])) if team in tree else frozenset()
