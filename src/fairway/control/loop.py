"""The pattern of every control loop: take a lease, then repeatedly read, call the engine, write briefly.

Any number of servers run the same loops; for each loop and cluster, the holder of the lease does the work.
The lease is renewed concurrently with the work, so that a slow engine does not lose it; a round has a time
limit, so that a stuck one does not keep it forever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from fairway.control.metrics import UNEXPECTED, LoopMetrics
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.model.backoff import Backoff
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.services.engine_cache import time_limit
from fairway.services.wakeup import Sleep

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

Step = Callable[[Lease], Awaitable[None]]

CLEANUP_SECONDS: Final = 3
"""Time limit for releasing the lease at the end of a tenure, in case the ledger does not respond."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals, time limits and backoff of a loop."""

    lease_seconds: float = 15
    interval_seconds: float = 10
    step_seconds: float | None = 60
    """Time limit of a round; exceeding it is a temporary failure. None means that the step limits itself."""
    max_backoff_seconds: float = 60
    permanent_seconds: float = 60
    """Wait between rounds after a permanent error, which remains until someone intervenes."""

    @property
    def backoff(self) -> Backoff:
        """Delays after failures in a row."""
        return Backoff(self.interval_seconds, self.max_backoff_seconds)


class LeasedLoop:
    """Runs `step` for one cluster while this server holds the lease."""

    def __init__(
        self,
        name: str,
        cluster: str,
        step: Step,
        ledger: Ledger,
        *,
        holder: str,
        pace: Pace,
        metrics: LoopMetrics,
        cleanup: Callable[[], Awaitable[None]] | None = None,
        sleep: Sleep = asyncio.sleep,
        pause: Sleep | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`let_go` is called at the end of each tenure, to close what `step` opened.

        `pause` is the sleep after a successful round, which can be woken early; after a failure it cannot.
        """
        self.name = name
        self.cluster = cluster
        self._step = step
        self._ledger = ledger
        self._holder = holder
        self._pace = pace
        self._metrics = metrics
        self._cleanup = cleanup
        self._sleep = sleep
        self._pause = pause or sleep
        self._clock = clock
        self._jitter = jitter
        self._log = log.bind(loop=name, cluster=cluster)

    async def run(self) -> None:
        """Run until cancelled; releases the lease at the end."""
        try:
            while True:
                await self._tenure()
        finally:
            self._metrics.forget(self.name, self.cluster)

    async def _tenure(self) -> None:
        self._metrics.waiting(self.name, self.cluster)
        lease = await self._acquire()
        self._metrics.holding(self.name, self.cluster)
        self._log.info("lease taken", token=lease.token)
        try:
            await self._work(lease)
        except LeaseLost as lost:
            self._log.warning("lease lost", token=lease.token, message=str(lost))
        except Exception as unexpected:
            self._record_failure(unexpected, failures=1)
        finally:
            await self._end_tenure(lease)

    async def _work(self, lease: Lease) -> None:
        """Run rounds and lease renewals concurrently until one of them fails.

        Do not use a TaskGroup: before Python 3.13, one that fails while it is being cancelled loses the
        cancellation, and a loop that lost its lease just when it was to stop would run forever.
        """
        tasks = (asyncio.create_task(self._renew(lease)), asyncio.create_task(self._rounds(lease)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [end for end in ends if isinstance(end, Exception)]
        if failures:
            raise next((end for end in failures if isinstance(end, LeaseLost)), failures[0])

    async def _acquire(self) -> Lease:
        failures = 0
        while True:
            try:
                lease = await self._ledger.leases.take(
                    self.name, self.cluster, self._holder, self._pace.lease_seconds
                )
            except Exception as error:
                failures += 1
                await self._sleep(self._record_failure(error, failures))
                continue
            if lease is not None:
                return lease
            failures = 0
            # Often enough to take over within twice the lease's time, and with jitter between servers.
            await self._sleep(self._pace.lease_seconds / 4 * (0.75 + self._jitter() / 2))

    async def _renew(self, lease: Lease) -> None:
        good_until = self._clock() + self._pace.lease_seconds
        while True:
            await self._sleep(self._pace.lease_seconds / 3)
            requested_at = self._clock()
            try:
                renewed = await self._ledger.leases.renew(lease)
            except FairwayError as error:
                # The ledger may be back before the lease ends; past that, somebody else may hold it.
                self._log.warning("lease not renewed", code=error.code, message=error.message)
                if self._clock() >= good_until:
                    raise _lost(lease) from error
                continue
            if renewed is None:
                raise _lost(lease)
            good_until = requested_at + self._pace.lease_seconds

    async def _rounds(self, lease: Lease) -> None:
        failures = 0
        while True:
            started = self._clock()
            try:
                await self._bounded_step(lease)
            except LeaseLost:
                raise
            except Exception as error:
                failures += 1
                sleep, delay = self._sleep, self._record_failure(error, failures)
            else:
                failures = 0
                self._metrics.succeeded(self.name, self.cluster)
                sleep, delay = self._pause, max(0.0, started + self._pace.interval_seconds - self._clock())
            finally:
                self._metrics.took(self.name, self.cluster, self._clock() - started)
            await sleep(delay)

    async def _bounded_step(self, lease: Lease) -> None:
        limit = self._pace.step_seconds
        timed_out = TemporaryError(
            "StepTimedOut",
            f"one round of {self.name} on cluster {self.cluster} took longer than {limit or 0:g} s",
            "check whether the cluster responds slowly:  fairway get clusters",
        )
        async with time_limit(limit, timed_out):
            await self._step(lease)

    def _record_failure(self, error: Exception, failures: int) -> float:
        """Count and log an error. Returns how long to wait."""
        if not isinstance(error, FairwayError):
            self._metrics.failed(self.name, self.cluster, UNEXPECTED)
            self._log.error("unexpected error", failures=failures, exc_info=error)
            return self._pace.backoff.seconds(failures, self._jitter())
        self._metrics.failed(self.name, self.cluster, error.code)
        self._log.warning(
            "failed", code=error.code, message=error.message, hint=error.hint, failures=failures
        )
        if isinstance(error, PermanentError):
            return max(self._pace.permanent_seconds, self._pace.interval_seconds)
        return self._pace.backoff.seconds(failures, self._jitter())

    async def _end_tenure(self, lease: Lease) -> None:
        """End a tenure for whatever reason: release the lease first, so that other servers need not wait."""
        await self._bounded(self._ledger.leases.release(lease), "lease not given back; it runs out by itself")
        if self._cleanup is not None:
            await self._bounded(self._cleanup(), "engine not closed in time")

    async def _bounded(self, ending: Awaitable[None], warning: str) -> None:
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await ending
        except (FairwayError, TimeoutError) as error:
            self._log.warning(warning, message=str(error))
        except Exception as error:
            self._log.error(warning, exc_info=error)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        "LeaseLost",
        f"the {lease.loop} lease of cluster {lease.cluster} (token {lease.token}) was not renewed in time",
        "nothing to do: another server has taken over",
    )
