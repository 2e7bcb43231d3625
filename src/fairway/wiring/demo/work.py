"""What every job of the demo has, those of the past and those of now."""

from __future__ import annotations

from dataclasses import dataclass

from fairway.engines.virtual import JobRequest
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job, or an array of them: whose, where, how large, and what becomes of it if left alone."""

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
        """One of it as the virtual engine is asked for it."""
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
