"""What Fairway asks of an engine, as small protocols. An engine implements those it can keep."""

from __future__ import annotations

from typing import Protocol

from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.observation import Observation


class Unreachable(TemporaryError):
    """The engine did not answer: down, restarting, network, time-out."""


class Refused(PermanentError):
    """The engine answered no: bad credentials, missing rights, unknown partition."""


class Observes(Protocol):
    """Can say what a cluster has and how it is."""

    async def observe(self) -> Observation:
        """One look at the cluster. Bounded in time; raises Unreachable or Refused, nothing else."""
        ...

    async def close(self) -> None:
        """Let go of connections and background work. Safe to call twice."""
        ...
