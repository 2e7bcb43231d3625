"""Build engines when they are first needed, keep them, and limit how long one may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from fairway.engines.port import Runs
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Pool
from fairway.model.names import ClusterName


class Closes(Protocol):
    """Has something to let go of."""

    async def close(self) -> None: ...


class BuildRunner(Protocol):
    """Makes the engine of one cluster; `server` knows them all."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Runs: ...


E = TypeVar("E", bound=Closes)


class LazyEngine(Generic[E]):
    """Builds an engine at its first use and keeps it until it is closed.

    Built late so that a server that only waits for the lease opens no connections and watches nothing.
    """

    def __init__(self, build: Callable[[], E]) -> None:
        self._build = build
        self._engine: E | None = None

    def get(self) -> E:
        """The engine; the first call after a `close` builds a new one."""
        if self._engine is None:
            self._engine = self._build()
        return self._engine

    async def close(self) -> None:
        """Let the engine go, if there is one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


class EnginePool:
    """Keeps one engine for each cluster: built when first needed, and again if its pools change."""

    def __init__(self, build: BuildRunner) -> None:
        self._build = build
        self._held: dict[ClusterName, tuple[Cluster, tuple[Pool, ...], Runs]] = {}

    async def get(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Runs:
        """The engine of that cluster."""
        there = self._held.get(cluster.name)
        if there is None or there[:2] != (cluster, pools):
            self._held[cluster.name] = (cluster, pools, self._build(cluster, pools))
            if there is not None:
                await there[2].close()
        return self._held[cluster.name][2]

    async def close(self) -> None:
        """Let them all go."""
        held, self._held = self._held, {}
        for _, _, engine in held.values():
            await engine.close()


@asynccontextmanager
async def time_limit(seconds: float | None, late: FairwayError) -> AsyncIterator[asyncio.Timeout]:
    """Raise `late` if the block takes longer; a time-out raised inside stays what it is. None: no limit."""
    try:
        async with asyncio.timeout(seconds) as clock:
            yield clock
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise late from error
