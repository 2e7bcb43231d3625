"""Define a job of a trace: what was submitted when, how long it ran, and what really happened to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairway.model.names import PriorityName, SliceName, TeamName, UserName

NO_USER: Final = UserName("")
NO_TEAM: Final = TeamName("")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a history or a public trace. Times are seconds since 1970, or since the trace's start."""

    at: float
    """When it was submitted."""
    seconds: float
    """How long it runs if nothing interferes."""
    gpus: int = 1
    """On each node."""
    nodes: int = 1
    user: UserName = NO_USER
    """Empty: the trace does not tell."""
    team: TeamName = NO_TEAM
    """The team, virtual cluster or account; empty: the trace does not tell."""
    pool: str = ""
    """The pool or partition; empty: any."""
    slice: SliceName | None = None
    name: str = ""
    limit_seconds: float | None = None
    priority: PriorityName | None = None
    failed: bool = False
    """Whether it ended with an error."""
    started: float | None = None
    """When it really started, if known: what a simulated start is compared with."""
    preemptions: int = 0
    """How often it was really preempted, if known."""
    tolerates_loss: bool = False
    together: bool = False
    cancelled_after: float | None = None
    """The seconds after its submission after which its user cancelled it while it waited, if so."""

    @property
    def devices(self) -> int:
        """Return the GPUs or slices on all nodes."""
        return self.gpus * self.nodes
