"""Writes what an engine showed."""

from __future__ import annotations

from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind
from fairway.model.observation import Observation


class Writing:
    """A short transaction under a lease; see `Ledger.writing`."""

    async def keep_observation(self, observation: Observation, *, engine: EngineKind | None = None) -> None:
        """Make the ledger show this observation; rows that did not change are not touched."""
        raise NotImplementedError

    async def keep_failure(
        self, cluster: str, error: FairwayError, *, engine: EngineKind | None = None
    ) -> None:
        """Note why the cluster cannot be reached; its last known state stays."""
        raise NotImplementedError
