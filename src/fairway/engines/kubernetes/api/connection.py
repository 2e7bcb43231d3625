"""Connect to an API server on first use, and anew after its credentials were refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from fairway.engines.kubernetes.api.client import ApiServer, connect, connection_of
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.port import Unreachable
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, KubernetesConnection

_log = structlog.get_logger(__name__)

_CREDENTIALS: Final = frozenset({"Unauthorized", "CredentialsFailed", "TlsFailed"})
"""Refusals that new credentials in the file may resolve: the file is read again."""
_WARM_UP_SECONDS: Final = 60.0
"""How long a restarted API server may deny permissions: it has not read them yet."""


def lacks_right(error: Exception) -> bool:
    """Return whether a request was refused for who sent it, not for what it contains."""
    return (
        isinstance(error, Refused)
        and error.code == "Forbidden"
        and " cannot " in error.message
        and " resource " in error.message
    )


class ApiConnection:
    """The connection to one API server, for one kind of work: observing, governing, running or mirroring.

    Each kind has its own, so that a slow list of one does not hold up the others.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeout_seconds: float,
        *,
        connect: Callable[[KubernetesConnection], Awaitable[ApiServer]] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.timeout_seconds = timeout_seconds
        """For connecting, and for each request."""
        self._connect = connect
        self._clock = clock
        self._api: ApiServer | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._allowed_at = float("-inf")

    @asynccontextmanager
    async def use(self, within_seconds: float | None = None) -> AsyncIterator[ApiServer]:
        """Yield the API server, and raise whatever fails in the block as Unreachable or Refused.

        Connecting and the block together take at most `within_seconds`. None: only connecting is bounded,
        for blocks whose every request has a limit of its own.
        """
        api: ApiServer | None = None
        limit = self.timeout_seconds if within_seconds is None else within_seconds
        end = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(end):
                api = await self._connected()
            async with asyncio.timeout_at(None if within_seconds is None else end):
                yield api
        except TimeoutError as e:
            raise self._too_slow(limit) from e
        except FairwayError as e:
            if api is not None:
                await self._check(api, e)
            raise
        except Exception as e:
            raise self._unexpected(e) from e

    @asynccontextmanager
    async def requests(self, within_seconds: float | None = None) -> AsyncIterator[KubeRequests]:
        """Like `use`, but yield requests that have the time limit of this connection."""
        async with self.use(within_seconds) as api:
            yield KubeRequests(api, self.timeout_seconds)

    async def discard(self, api: ApiServer) -> None:
        """Close a connection, so that the next use reads the kubeconfig again and makes a new one.

        Does nothing if it was replaced already: of many requests that fail together the first one does it.
        """
        if self._api is api:
            self._api = None
            await api.close()

    async def close(self) -> None:
        """Close the connection for good. Safe to call twice."""
        self._closed = True
        if self._api is not None:
            await self.discard(self._api)

    def raise_if_closed(self) -> None:
        """Raise Refused after `close`."""
        if self._closed:
            raise Refused("Closed", f"the engine of {self.cluster.name} was closed", "make a new one")

    def note_allowed(self) -> None:
        """Record that the API server has just granted a request: it has read our permissions."""
        self._allowed_at = self._clock()

    def as_warm_up(self, error: FairwayError) -> FairwayError:
        """Return a missing permission as Unreachable if it existed a minute ago; any other error as it is.

        It is most likely back in a moment.
        """
        if lacks_right(error) and self._clock() - self._allowed_at < _WARM_UP_SECONDS:
            return Unreachable("WarmingUp", error.message, error.hint)
        return error

    async def _connected(self) -> ApiServer:
        async with self._connecting:
            self.raise_if_closed()
            if self._api is None:
                api = await self._connect(connection_of(self.cluster))
                if self._closed:  # meanwhile
                    await api.close()
                self.raise_if_closed()
                self._api = api
            return self._api

    async def _check(self, api: ApiServer, error: FairwayError) -> None:
        if error.code in _CREDENTIALS:
            await self.discard(api)
        elif self._api is not api and isinstance(error, Unreachable):
            # The 401 of another request, or `close`, closed the connection that this one was waiting on.
            raise Unreachable(
                "ConnectionFailed",
                f"the connection to {api.server} was closed while it was in use",
                "Fairway retries automatically, with the kubeconfig as it is now",
            ) from error

    def _too_slow(self, seconds: float) -> Unreachable:
        server = self._api.server if self._api else self.cluster.name
        return Unreachable(
            "TimedOut",
            f"{server} did not respond within {seconds:g} s",
            f"check whether it is overloaded: curl -k -m 5 {server}/readyz",
        )

    def _unexpected(self, error: Exception) -> Unreachable:
        _log.exception("a request failed in an unexpected way", cluster=self.cluster.name)
        return Unreachable(
            "ClientFailed",
            f"asking {self.cluster.name} failed: {type(error).__name__}: {error}",
            "this is a bug: please report it with the server's log",
        )
