"""Shed load: bound how many requests of each kind run and wait, and refuse the others at once.

A server that takes on more than it can do answers nobody in time. Kinds do not wait for each other: reports
leave submits alone. Health probes and metrics are never limited.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from math import ceil
from operator import attrgetter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from fairway.api.problems import ApiError
from fairway.ledger.connection import deadline
from fairway.model.metric import Metric


class RequestKind(StrEnum):
    """What a request costs the server."""

    READ = "read"
    """A few rows of the ledger."""
    WRITE = "write"
    """A short transaction: submits, cancels, tokens."""
    REPORT = "report"
    """Sums over many rows."""
    ENGINE = "engine"
    """Waits for an engine: plans, imports, logs, `why`."""
    UNLIMITED = "unlimited"
    """Answered in any case: probes, metrics, static files."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What one kind of request may take of a server."""

    running: int
    waiting: int
    wait_seconds: float
    """A request that would wait longer is refused at once."""
    total_seconds: float
    """What a request may take altogether; calls of the ledger get what is left of it."""


LIMITS: Final[Mapping[RequestKind, QueueLimits]] = {
    RequestKind.READ: QueueLimits(5, 500, 5, 25),
    RequestKind.WRITE: QueueLimits(3, 500, 10, 25),
    RequestKind.REPORT: QueueLimits(2, 10, 10, 60),
    RequestKind.ENGINE: QueueLimits(8, 20, 10, 120),
}
"""More of them at once would not be faster: one event loop computes. The pool of connections has one for each
request of the first three kinds, and some for probes and requests that wait for engines."""

_SMOOTHING: Final = 0.1
"""How much the newest request counts in the mean time of requests."""
_MAX_RETRY_SECONDS: Final = 30

RUNNING: Final = Metric(
    "fairway_api_running", "gauge", "Requests that are being answered, by kind.", ("kind",)
)
WAITING: Final = Metric(
    "fairway_api_waiting", "gauge", "Requests that wait for their turn, by kind.", ("kind",)
)
SHED: Final = Metric(
    "fairway_api_shed_total", "counter", "Requests refused because too many came.", ("kind",)
)


class RequestQueue:
    """The requests of one kind: so many run, so many wait, first come, first served."""

    def __init__(
        self,
        limits: QueueLimits,
        on_shed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.running = 0
        self.shed = 0
        self._on_shed = on_shed
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._mean_seconds = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def expected_wait(self) -> float:
        """Return the seconds that one more request would wait, as requests took lately."""
        if self.running < self.limits.running:
            return 0.0
        return (self.waiting + 1) * self._mean_seconds / self.limits.running

    def check(self) -> None:
        """Raise ApiError if a request that came now would wait too long."""
        full = self.running >= self.limits.running
        if full and (self.waiting >= self.limits.waiting or self.expected_wait > self.limits.wait_seconds):
            raise self._refuse()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises ApiError at once if that would take too long."""
        arrived = self._clock()
        self.check()
        await self._wait()
        started = self._clock()
        try:
            with deadline(self.limits.total_seconds - (started - arrived)):
                yield
        finally:
            self._mean_seconds += _SMOOTHING * (self._clock() - started - self._mean_seconds)
            self._hand_over()

    async def _wait(self) -> None:
        if self.running < self.limits.running:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self.limits.wait_seconds):
                await turn
        except BaseException as error:
            with suppress(ValueError):
                self._waiting.remove(turn)
            if turn.done() and not turn.cancelled():
                self._hand_over()  # its turn came in the same moment
            if isinstance(error, TimeoutError):
                raise self._refuse() from None
            raise

    def _hand_over(self) -> None:
        """Give a place to the first that waits; it stays counted as running."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _refuse(self) -> ApiError:
        self.shed += 1
        self._on_shed()
        seconds = min(_MAX_RETRY_SECONDS, max(1, ceil(self.expected_wait)))
        return ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "ServerBusy",
            f"the server is busy with requests of this kind: {self.running} run and {self.waiting} wait",
            f"nothing was done; try again in {seconds} s, as Retry-After says",
            headers={"Retry-After": str(seconds)},
        )


class RequestQueues:
    """The queues of one server, with their metrics."""

    def __init__(
        self, registry: CollectorRegistry, limits: Mapping[RequestKind, QueueLimits] = LIMITS
    ) -> None:
        shed = Counter(SHED.name, SHED.help, SHED.labels, registry=registry)
        self.by_kind = {kind: RequestQueue(own, shed.labels(kind).inc) for kind, own in limits.items()}
        running = Gauge(RUNNING.name, RUNNING.help, RUNNING.labels, registry=registry)
        waiting = Gauge(WAITING.name, WAITING.help, WAITING.labels, registry=registry)
        for kind, queue in self.by_kind.items():
            running.labels(kind).set_function(partial(attrgetter("running"), queue))
            waiting.labels(kind).set_function(partial(attrgetter("waiting"), queue))

    def check(self, kind: RequestKind) -> None:
        """Raise ApiError if there are too many requests of a kind."""
        if kind is not RequestKind.UNLIMITED:
            self.by_kind[kind].check()

    @asynccontextmanager
    async def place(self, kind: RequestKind) -> AsyncIterator[None]:
        """Hold a place among the requests of a kind. Raises ApiError if there are too many."""
        if kind is RequestKind.UNLIMITED:
            yield
            return
        async with self.by_kind[kind].place():
            yield
