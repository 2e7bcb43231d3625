"""Define service level objectives (SLOs): what part of a team's jobs, or GPU-hours, is served in time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fairway.model.names import PoolName, PriorityName, TeamName
from fairway.model.text import duration_text

DAY: Final = 86_400
DEFAULT_WINDOW: Final = 30 * DAY
MAX_WINDOW: Final = 90 * DAY
"""Counts and pauses of jobs are stored for as long."""
MAX_BOUND: Final = 14 * DAY
SLOT_SECONDS: Final = 900
"""Counts are summed by slots of this length."""


@dataclass(frozen=True, slots=True)
class StartsWithin:
    """The promise that a job starts within a time of being able to. Its events are jobs."""

    seconds: int

    @property
    def text(self) -> str:
        return f"start within {duration_text(self.seconds)}"


@dataclass(frozen=True, slots=True)
class DeliveredWithin:
    """The promise that demand of up to some GPU-hours is served in time. Its events are GPU-seconds.

    Of the work submitted in any period of `seconds`, the first `gpu_hours` count; they are to be delivered
    within `seconds` of their submission. See ADR 0065.
    """

    gpu_hours: Decimal
    seconds: int

    @property
    def gpu_seconds(self) -> int:
        """Return the GPU-seconds that are promised in each period."""
        return int(self.gpu_hours * 3600)

    @property
    def text(self) -> str:
        return f"{self.gpu_hours:,f} GPU-hours within {duration_text(self.seconds)}"


Promise = StartsWithin | DeliveredWithin


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective of the fleet, of a team, or of some of its jobs."""

    name: str
    promise: Promise
    target: Decimal
    """The part of all events that must be good, below 1."""
    window_seconds: int = DEFAULT_WINDOW
    """The period that the target is for; it ends now."""
    team: TeamName | None = None
    """With all teams inside it; None: all teams."""
    pools: tuple[PoolName, ...] = ()
    """Empty: all."""
    gpus: int | None = None
    """Only jobs of up to so many GPUs or slices; None: all."""
    priority: PriorityName | None = None
    """None: all."""

    @property
    def scope(self) -> str:
        """Describe which jobs count: `jobs of up to 8 GPUs of research on hpc-a100`."""
        parts = (
            "jobs",
            f"of up to {self.gpus} GPUs" if self.gpus is not None else "",
            f"of {self.team}" if self.team else "of the fleet",
            f"on {' and '.join(self.pools)}" if self.pools else "",
            f"with priority {self.priority}" if self.priority else "",
        )
        return " ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """Describe it in one line: `95% of jobs of research start within 1h, over 30d`."""
        part = f"{(self.target * 100).normalize():f}%"
        over = f"over {duration_text(self.window_seconds)}"
        if isinstance(self.promise, StartsWithin):
            return f"{part} of {self.scope} {self.promise.text}, {over}"
        return f"{part} of {self.promise.text} for {self.scope}, {over}"

    @property
    def digest(self) -> str:
        """Return a digest of what decides how events are counted: neither the name nor the target does."""
        counted = (self.promise, self.window_seconds, self.team, self.pools, self.gpus, self.priority)
        return hashlib.sha256(repr(counted).encode()).hexdigest()[:16]
