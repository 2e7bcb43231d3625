"""A connection that is made when it is first needed, and made anew when its credentials no longer do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from fairway.engines.kubernetes.client import ApiServer, connect, connection_of
from fairway.engines.port import Refused, Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster

R = TypeVar("R")

_log = structlog.get_logger(__name__)

_CREDENTIALS: Final = frozenset({"Unauthorized", "CredentialsFailed", "TlsFailed"})
"""Refusals that new credentials in the file may cure: the file is read again."""
_WARM_UP_SECONDS: Final = 60.0
"""How long an API server that was restarted may say that we have no rights: it has not read them yet."""


def lacks_right(error: Exception) -> bool:
    """Whether it was refused for who asked, not for what was asked."""
    return (
        isinstance(error, Refused)
        and error.code == "Forbidden"
        and " cannot " in error.message
        and " resource " in error.message
    )


class Line:
    """One API server, for one kind of work. Every failure is Unreachable or Refused."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._api: ApiServer | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._worked_at = float("-inf")

    def worked(self) -> None:
        """What was asked was allowed."""
        self._worked_at = time.monotonic()

    def softened(self, error: FairwayError) -> FairwayError:
        """A right that was there a moment ago is most likely there again in a moment."""
        if lacks_right(error) and time.monotonic() - self._worked_at < _WARM_UP_SECONDS:
            return Unreachable("WarmingUp", error.message, error.hint)
        return error

    async def bounded(self, seconds: float, act: Callable[[ApiServer], Awaitable[R]]) -> R:
        """What `act` gives, within that time."""
        try:
            async with asyncio.timeout(seconds):
                return await act(await self.connected())
        except TimeoutError as e:
            raise self._too_slow(seconds) from e
        except FairwayError as e:
            await self.start_over_after(e)
            raise
        except Exception as e:
            raise self.unexpected(e) from e

    async def connected(self) -> ApiServer:
        """The API server; bound the wait at the call."""
        async with self._turn:
            if self._closed:
                raise Refused("Closed", f"the engine of {self.cluster.name} was closed", "make a new one")
            if self._api is None:
                self._api = await connect(connection_of(self.cluster))
            return self._api

    async def start_over_after(self, error: FairwayError) -> None:
        """Read the kubeconfig again where that may help."""
        if error.code in _CREDENTIALS:
            await self._drop()

    async def close(self) -> None:
        """Let go of all connections, for good."""
        self._closed = True
        await self._drop()

    def unexpected(self, error: Exception) -> Unreachable:
        """A defect of ours, told like everything else."""
        _log.exception("speaking to a cluster failed in an unexpected way", cluster=self.cluster.name)
        return Unreachable(
            "EngineFailed",
            f"speaking to {self.cluster.name} failed: {type(error).__name__}: {error}",
            "this should not happen; please report it with the server's log",
        )

    async def _drop(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    def _too_slow(self, seconds: float) -> Unreachable:
        server = self._api.server if self._api else self.cluster.name
        return Unreachable(
            "TimedOut",
            f"{server} did not answer within {seconds:g} s",
            f"is it overloaded or frozen? try: curl -k -m 5 {server}/readyz",
        )
