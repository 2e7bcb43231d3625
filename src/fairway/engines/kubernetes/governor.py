"""Implements the port's Governs and Nudges over one connection."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import Reconnecting
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.recover import Recoverer
from fairway.engines.kubernetes.policy.nudge.nudge import KubernetesNudger
from fairway.engines.kubernetes.policy.read import find_policy
from fairway.engines.kubernetes.policy.workloads import activity
from fairway.engines.kubernetes.policy.write import write
from fairway.model.fleet import Fleet, Pool
from fairway.policy.objects import Activity, Change, FoundPolicy, Nudge, ObjectKey

_READ_SECONDS: Final = 120.0
"""Reading the policy of thousands of teams takes a dozen lists, each in pages."""


class Governor:
    """Reads, writes and nudges the policy of one cluster. Observing goes on undisturbed beside it."""

    def __init__(self, connection: Reconnecting, pools: tuple[Pool, ...]) -> None:
        self._connection = connection
        self._pools = pools
        self._nudger = KubernetesNudger(connection.cluster.name)
        self._recoverer = Recoverer(time.monotonic)

    async def find_policy(self) -> FoundPolicy:
        async with self._connection.use(_READ_SECONDS) as api:
            return await find_policy(self._requests(api), self._pools)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        async with self._connection.use(_READ_SECONDS) as api:
            return await activity(self._requests(api), keys)

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Write changes.

        Each request is bounded in time, and so are they all: there are only so many changes.
        """
        async with self._connection.use() as api:
            async for change in write(self._requests(api), changes):
                yield change

    async def nudge(self, fleet: Fleet) -> tuple[Nudge, ...]:
        async with self._connection.use(_READ_SECONDS) as api:
            given = await self._nudger.nudge(self._requests(api), fleet)
        async with self._connection.use(_READ_SECONDS) as api:
            return (*given, *await self._recoverer.recover(self._requests(api)))

    async def close(self) -> None:
        await self._connection.close()

    def _requests(self, api: ApiServer) -> KubeRequests:
        return KubeRequests(api, self._connection.timeout_seconds)
