"""Share reads of the ledger between open pages: a change that all of them hear of is read once or twice,
not once for each. A caller never gets what was read before it asked, unless a page may be that old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from fastapi import Request, Response

T = TypeVar("T")

_LONGEST_APART: Final = 2.0


class SingleFlight(Generic[T]):
    """Reads one thing for all who ask for it at the same time.

    Who asks while a look is under way waits for the next one, shared with all others who asked meanwhile:
    that look began after they asked, so it shows the change they heard of.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[T]],
        *,
        keep_seconds: float = 0,
        stale_seconds: float = 0,
        apart_seconds: float = 0,
    ) -> None:
        """With `keep_seconds`, a look that began less than that ago is good enough.

        With `stale_seconds`, an older one is shown once more while the next is under way: nobody waits for
        what is not needed at once.

        With `apart_seconds`, looks of a crowd begin at least so far apart: those who ask during one wait
        a moment and share the next. Who asks alone never waits.
        """
        self._look = look
        self._apart_seconds = apart_seconds
        self._began = self._lasted = 0.0
        self._keep_seconds = keep_seconds
        self._stale_seconds = stale_seconds
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._kept: tuple[float, T] | None = None

    async def get(self) -> T:
        """What was seen; raises what the look raised."""
        if self._kept is not None:
            began, seen = self._kept
            age = time.monotonic() - began
            if age >= self._keep_seconds and self._under_way is None:
                self._begin()
            if age < max(self._keep_seconds, self._stale_seconds):
                return seen
        # Whoever goes away does not take the look away from the others.
        return await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Task[T]:
        """The look that begins next, for all who ask until it does."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way), name="a shared look")
            self._next.add_done_callback(_heed)
        return self._next

    def _apart(self) -> float:
        """Longer where a look is: a crowd keeps the ledger busy a quarter of the time at most."""
        return max(self._apart_seconds, min(_LONGEST_APART, 4 * self._lasted) if self._apart_seconds else 0)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
            await asyncio.sleep(max(0.0, self._began + self._apart() - time.monotonic()))
        self._under_way, self._next = self._next, None
        self._began = began = time.monotonic()
        try:
            seen = await self._look()
        finally:
            self._under_way = None
            self._lasted = time.monotonic() - began
        if self._keep_seconds:
            self._kept = (began, seen)
        return seen


class SingleFlightGroup(Generic[T]):
    """One SingleFlight for each key; the oldest is forgotten when there are too many."""

    def __init__(
        self, most: int, *, keep_seconds: float = 0, stale_seconds: float = 0, apart_seconds: float = 0
    ) -> None:
        """As `SingleFlight`, for each."""
        self._most = most
        self._new: Callable[[Callable[[], Awaitable[T]]], SingleFlight[T]] = partial(
            SingleFlight,
            keep_seconds=keep_seconds,
            stale_seconds=stale_seconds,
            apart_seconds=apart_seconds,
        )
        self._looks: dict[Hashable, SingleFlight[T]] = {}

    def __len__(self) -> int:
        return len(self._looks)

    async def get(self, key: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` sees, or saw for another one who asked by the same key."""
        if key not in self._looks:
            while len(self._looks) >= self._most:
                self._looks.pop(next(iter(self._looks)))
            self._looks[key] = self._new(look)
        return await self._looks[key].get()


class SharedParts:
    """A part of a page as it was drawn last: all open pages that share a look share the drawing."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._of: tuple[object, ...] = ()
        self._drawn: dict[Hashable, Response] = {}

    def show(
        self, request: Request, of: tuple[object, ...], key: Hashable, draw: Callable[[], Response]
    ) -> Response:
        """What `draw` makes of these looks; `key` says all that the part depends on beside them.

        The whole page, which greets its reader, is drawn for each.
        """
        if not request.headers.get("hx-request") or request.headers.get("hx-target") != self._target:
            return draw()
        if len(of) != len(self._of) or any(a is not b for a, b in zip(of, self._of, strict=True)):
            self._of, self._drawn = of, {}
        if key not in self._drawn:
            self._drawn[key] = draw()
        first = self._drawn[key]
        # A new one: what an answer passes on its way out adds headers to it.
        return Response(first.body, headers=dict(first.headers))


def _heed(task: asyncio.Task[T]) -> None:
    """An error is raised to those who wait; if all of them left, nobody must be told of it."""
    if not task.cancelled():
        task.exception()
