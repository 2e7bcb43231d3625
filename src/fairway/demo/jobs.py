"""The common fields of the demo's jobs, past and live."""

from __future__ import annotations

from dataclasses import dataclass

from fairway.engines.virtual import JobRequest
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
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
