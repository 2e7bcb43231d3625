"""Share reads of the ledger between open pages.

After a change that all pages are notified of, the ledger is read once or twice, not once for each page. A
caller never gets a result that was read before it called, unless the page allows that age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from fastapi import Request, Response

T = TypeVar("T")

_MAX_INTERVAL: Final = 2.0


class SingleFlight(Generic[T]):
    """One read for all concurrent callers.

    A call during a read waits for the next read, shared with all other calls made meanwhile: it began after
    they called, so its result includes the change that they were notified of.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        max_age: float = 0,
        stale_age: float = 0,
        min_interval: float = 0,
    ) -> None:
        """Share `read`.

        All options are in seconds. A result is reused for `max_age` after its read began. Up to `stale_age`,
        it is returned while the next read is running: nobody waits for data that is not needed at once.

        With `min_interval`, reads for many callers begin at least so far apart: calls during a read wait
        a moment and share the next one. A single caller never waits.
        """
        self._read = read
        self._min_interval = min_interval
        self._began = self._lasted = 0.0
        self._max_age = max_age
        self._stale_age = stale_age
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._cached: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return the result of a read. Raises what the read raised."""
        if self._cached is not None:
            began, result = self._cached
            age = time.monotonic() - began
            if age >= self._max_age and self._running is None:
                self._schedule()
            if age < max(self._max_age, self._stale_age):
                return result
        # A caller that is cancelled must not cancel the read of the others.
        return await asyncio.shield(self._schedule())

    def _schedule(self) -> asyncio.Task[T]:
        """Return the read that begins next, shared by all callers until it does."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._running), name="a shared look")
            self._next.add_done_callback(_retrieve_exception)
        return self._next

    async def _read_after(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait([previous])
            # Slow reads are spaced further: many callers keep the ledger busy a quarter of the time at most.
            slow = min(_MAX_INTERVAL, 4 * self._lasted) if self._min_interval else 0
            interval = max(self._min_interval, slow)
            await asyncio.sleep(max(0.0, self._began + interval - time.monotonic()))
        self._running, self._next = self._next, None
        self._began = began = time.monotonic()
        try:
            result = await self._read()
        finally:
            self._running = None
            self._lasted = time.monotonic() - began
        if self._max_age:
            self._cached = (began, result)
        return result


async def within(seconds: float, result: Awaitable[T]) -> T | None:
    """Return a shared result. Returns None if it takes longer; the read goes on for the next caller."""
    try:
        async with asyncio.timeout(seconds):
            return await result
    except TimeoutError:
        return None


class SingleFlightGroup(Generic[T]):
    """One SingleFlight for each key; the oldest is dropped when there are too many."""

    def __init__(
        self,
        max_keys: int,
        *,
        max_age: float = 0,
        stale_age: float = 0,
        min_interval: float = 0,
    ) -> None:
        """Set the limit of keys, and the options of each SingleFlight."""
        self._max_keys = max_keys
        self._new: Callable[[Callable[[], Awaitable[T]]], SingleFlight[T]] = partial(
            SingleFlight,
            max_age=max_age,
            stale_age=stale_age,
            min_interval=min_interval,
        )
        self._flights: dict[Hashable, SingleFlight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, or of the read of another caller with the same key."""
        if key not in self._flights:
            while len(self._flights) >= self._max_keys:
                self._flights.pop(next(iter(self._flights)))
            self._flights[key] = self._new(read)
        return await self._flights[key].get()


class FragmentCache:
    """A cache of one page fragment as last rendered: open pages with the same data share it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._data: tuple[object, ...] = ()
        self._rendered: dict[Hashable, Response] = {}

    def show(
        self, request: Request, data: tuple[object, ...], key: Hashable, render: Callable[[], Response]
    ) -> Response:
        """Return the fragment rendered from `data`; `key` is everything else that it depends on.

        A whole page, which names its user, is rendered for each request.
        """
        if not request.headers.get("hx-request") or request.headers.get("hx-target") != self._target:
            return render()
        if len(data) != len(self._data) or any(a is not b for a, b in zip(data, self._data, strict=True)):
            self._data, self._rendered = data, {}
        if key not in self._rendered:
            self._rendered[key] = render()
        first = self._rendered[key]
        # Return a copy: middleware adds headers to it.
        return Response(first.body, headers=dict(first.headers))


def _retrieve_exception(task: asyncio.Task[T]) -> None:
    """Mark the exception as retrieved: if all callers have left, asyncio would log it as unhandled."""
    if not task.cancelled():
        task.exception()
