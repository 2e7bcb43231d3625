"""Run pure functions of the model in a process of its own, so that the server stays quick."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

from fairway.model.errors import TemporaryError
from fairway.simulate.garbage import collect_garbage_less_often
from fairway.simulate.replay.tasks import allow_sending, end_processes

A = TypeVar("A")
B = TypeVar("B")

MAX_SECONDS: Final = 30.0
"""A process that takes longer for one call is ended."""
_CALLS: Final = 500
"""After so many calls a process is replaced: its memory is returned."""


class ModelWorker:
    """One process beside the server, at a low priority; it is started by the first call."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._pool: ProcessPoolExecutor | None = None
        self._calls = 0
        self._busy = asyncio.Lock()

    async def run(self, function: Callable[[A], B], argument: A) -> B:
        """Call a function of a module, and return its result. Raises TemporaryError if it takes too long."""
        async with self._busy:  # a call that waits must not end the one before it
            try:
                async with asyncio.timeout(self._seconds):
                    return await asyncio.get_running_loop().run_in_executor(self._start(), function, argument)
            except (TimeoutError, BrokenProcessPool) as error:
                self.close()
                raise TemporaryError(
                    "ModelTimedOut",
                    f"the model did not answer within {self._seconds:g} s, or its process ended",
                    "check the load of the server's machine; the next call starts a new process",
                ) from error

    def _start(self) -> ProcessPoolExecutor:
        if self._calls >= _CALLS:  # not max_tasks_per_child, with which a pool of Python 3.11 may hang
            self.close()
        self._calls += 1
        if self._pool is None:
            allow_sending()
            # A forked server would share its connections.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_begin)
        return self._pool

    def close(self) -> None:
        """End the process, whatever it does."""
        pool, self._pool, self._calls = self._pool, None, 0
        if pool is not None:
            end_processes(pool)


def _begin() -> None:
    """Prepare a process: the server goes first."""
    os.nice(10)
    collect_garbage_less_often()
