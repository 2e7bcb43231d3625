"""Show the last known result, with its age, where a new one takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

T = TypeVar("T")

HURRY_SECONDS: Final = 0.1
FRESH: Final = timedelta(minutes=2)
"""A result of this age is shown without a remark."""


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A result, and when it was calculated."""

    result: T
    at: datetime
    late: bool = False
    """Whether it is old, and a newer result could not be calculated in time."""


class LastKnown(Generic[T]):
    """Keeps the last result of each key; the least recently calculated is dropped when there are too many.

    A key must contain everything that a result depends on, the rights of its reader included.
    """

    def __init__(self, max_keys: int = 64) -> None:
        self._max_keys = max_keys
        self._known: dict[Hashable, Known[T]] = {}

    async def get(
        self, key: Hashable, read: Callable[[], Awaitable[T]], seconds: float, *, hurry: bool = False
    ) -> Known[T] | None:
        """Return a new result, or the last one if that takes longer. None: there is none either.

        With `hurry`, wait for a new result only a moment if there is a last one: a page that has just been
        opened shows that, and its next live update the new one.

        Raises what `read` raises. Shared reads below it go on, so that a retry finds their results.
        """
        known = self._known.get(key)
        try:
            async with asyncio.timeout(HURRY_SECONDS if hurry and known is not None else seconds):
                result = await read()
        except TimeoutError:
            if known is None:
                return None
            return Known(known.result, known.at, late=datetime.now(UTC) - known.at > FRESH)
        self._known.pop(key, None)
        while len(self._known) >= self._max_keys:
            self._known.pop(next(iter(self._known)))
        self._known[key] = Known(result, datetime.now(UTC))
        return self._known[key]
