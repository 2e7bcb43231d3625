"""Policy behind the engine port: a connection of its own, every call bounded, told in the port's words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import structlog

from fairway.engines.kubernetes.client import ApiServer, connect, connection_of
from fairway.engines.kubernetes.jobs.recovering import Recoverer
from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.finding import find_policy
from fairway.engines.kubernetes.policy.nudging import Nudger
from fairway.engines.kubernetes.policy.workloads import activity
from fairway.engines.kubernetes.policy.writing import write
from fairway.engines.port import Refused, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.policy.objects import Activity, Change, FoundPolicy, Nudge, ObjectKey

R = TypeVar("R")

_log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 120.0
"""A look at the policy of thousands of teams is a dozen lists, each in pages."""
_CREDENTIALS: Final = frozenset({"Unauthorized", "CredentialsFailed", "TlsFailed"})
"""Refusals that new credentials in the file may cure: the file is read again."""


class Governor:
    """One cluster's policy. Observing goes on undisturbed beside it."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...], timeout_seconds: float) -> None:
        self._cluster = cluster
        self._pools = pools
        self._timeout_seconds = timeout_seconds
        self._nudger = Nudger(cluster.name)
        self._recoverer = Recoverer(time.monotonic)
        self._api: ApiServer | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def find_policy(self) -> FoundPolicy:
        return await self._bounded(lambda access: find_policy(access, self._pools))

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        return await self._bounded(lambda access: activity(access, keys))

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Each request is bounded in time, and so are they all: there are only so many changes."""
        access = await self._bounded(_itself)
        try:
            async for change in write(access, changes):
                yield change
        except FairwayError as e:
            await self._start_over_after(e)
            raise
        except Exception as e:
            raise self._unexpected(e) from e

    async def nudge(self, fleet: Fleet) -> tuple[Nudge, ...]:
        given = await self._bounded(lambda access: self._nudger.nudge(access, fleet))
        return (*given, *await self._bounded(self._recoverer.recover))

    async def close(self) -> None:
        self._closed = True
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def _bounded(self, act: Callable[[Access], Awaitable[R]]) -> R:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await act(Access(await self._connected(), self._timeout_seconds))
        except TimeoutError as e:
            raise self._too_slow() from e
        except FairwayError as e:
            await self._start_over_after(e)
            raise
        except Exception as e:
            raise self._unexpected(e) from e

    async def _connected(self) -> ApiServer:
        async with self._turn:
            if self._closed:
                raise Refused("Closed", f"the engine of {self._cluster.name} was closed", "make a new one")
            if self._api is None:
                self._api = await connect(connection_of(self._cluster))
            return self._api

    async def _start_over_after(self, error: FairwayError) -> None:
        if error.code in _CREDENTIALS:
            api, self._api = self._api, None
            if api is not None:
                await api.close()

    def _too_slow(self) -> Unreachable:
        server = self._api.server if self._api else self._cluster.name
        return Unreachable(
            "TimedOut",
            f"{server} did not show its policy within {_LOOK_SECONDS:g} s",
            f"is it overloaded or frozen? try: curl -k -m 5 {server}/readyz",
        )

    def _unexpected(self, error: Exception) -> Unreachable:
        _log.exception("governing failed in an unexpected way", cluster=self._cluster.name)
        return Unreachable(
            "GovernFailed",
            f"governing {self._cluster.name} failed: {type(error).__name__}: {error}",
            "this should not happen; please report it with the server's log",
        )


async def _itself(access: Access) -> Access:
    return access
