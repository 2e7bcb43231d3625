"""Graceful shutdown of a server: by signal, or because a part failed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Shutdown:
    """A request to stop: by signal, or because a part failed."""

    def __init__(self) -> None:
        self.requested = False
        self.stop_children: Callable[[], None] = lambda: None
        """Stops child processes that would outlive this one; called on a second signal, before exiting."""
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._starting: asyncio.Task[None] | None = None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._starting = asyncio.current_task()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def wait(self) -> None:
        """Wait for a request to stop; from now on a signal stops gracefully and cancels no start-up."""
        self._starting = None
        await self._event.wait()

    def watch(self, task: asyncio.Task[None]) -> None:
        """Request a stop if `task` ends unexpectedly."""

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and not self.requested:
                self._failure = done.exception() or RuntimeError(f"{done.get_name()} ended by itself")
                self._request()

        task.add_done_callback(ended)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_signal(self, number: int) -> None:
        if self.requested:
            try:
                self.stop_children()
            finally:
                os._exit(128 + number)
        self._request()

    def _request(self) -> None:
        self.requested = True
        self._event.set()
        if self._starting is not None:
            self._starting.cancel()
