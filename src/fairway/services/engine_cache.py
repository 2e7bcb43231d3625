"""Build engines on demand, cache them, and limit how long a call may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from fairway.engines.port import Runs
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Pool
from fairway.model.names import ClusterName


class Closable(Protocol):
    """An object with resources to release."""

    async def close(self) -> None: ...


class BuildRunner(Protocol):
    """Builds the engine of one cluster; `server` implements it for every kind."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Runs: ...


E = TypeVar("E", bound=Closable)


class LazyEngine(Generic[E]):
    """An engine that is built at its first use and kept until it is closed.

    So a server that only waits for the lease opens no connections and no watches.
    """

    def __init__(self, build: Callable[[], E]) -> None:
        self._build = build
        self._engine: E | None = None

    def get(self) -> E:
        """Return the engine; the first call after a `close` builds a new one."""
        if self._engine is None:
            self._engine = self._build()
        return self._engine

    async def close(self) -> None:
        """Close the engine, if there is one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


class EngineCache:
    """A cache of one engine per cluster: built on demand, and again if the cluster or its pools change."""

    def __init__(self, build: BuildRunner) -> None:
        self._build = build
        self._engines: dict[ClusterName, tuple[Cluster, tuple[Pool, ...], Runs]] = {}

    async def get(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Runs:
        """Return the engine of a cluster."""
        cached = self._engines.get(cluster.name)
        if cached is None or cached[:2] != (cluster, pools):
            self._engines[cluster.name] = (cluster, pools, self._build(cluster, pools))
            if cached is not None:
                await cached[2].close()
        return self._engines[cluster.name][2]

    async def close(self) -> None:
        """Close all engines."""
        engines, self._engines = self._engines, {}
        for _, _, engine in engines.values():
            await engine.close()


@asynccontextmanager
async def time_limit(seconds: float | None, timed_out: FairwayError) -> AsyncIterator[asyncio.Timeout]:
    """Raise `timed_out` if the block takes longer than `seconds`; None is no limit.

    A TimeoutError raised inside the block is passed on.
    """
    try:
        async with asyncio.timeout(seconds) as timeout:
            yield timeout
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise timed_out from error
