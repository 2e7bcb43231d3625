"""Bound wrong tokens and open requests by client address.

Nobody guesses 256 random bits; the limit bounds the work and the log noise of trying. Behind a proxy all
clients share one address, and one that tries must not lock out the others: a token is looked up in any case,
and only a wrong one is refused for its address. Few unknown tokens are looked up at a time, so that trying
leaves the ledger's connections to others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from http import HTTPStatus
from typing import Final

from fairway.api.problems import ApiError

MAX_ATTEMPTS: Final = 60
"""How many wrong tokens an address may send in a burst."""
EACH_SECONDS: Final = 1.0
"""The time after which one more is allowed."""
MAX_REQUESTS: Final = 2000
MAX_REQUESTS_OF_ADDRESS: Final = 1500
"""Requests that a server answers at once; behind a proxy, all have its address."""
_MAX_ADDRESSES: Final = 10_000
_MAX_VALID: Final = 10_000
"""How many of each are stored; the oldest are dropped first."""
_MAX_LOOK_UPS: Final = 3
"""Unknown tokens that are looked up at once, which leaves most of a server's connections to others."""


class AddressLimiter:
    """A leaky bucket for each client address, in bounded memory."""

    def __init__(
        self, max_level: float, each_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Admit a burst of `max_level`, and one more after each `each_seconds`."""
        self._max_level = max_level
        self._each_seconds = each_seconds
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each address's bucket, and the time of that level."""

    def admits(self, client: tuple[str, int] | None) -> bool:
        """Count one more of an address. Returns whether there were not too many before."""
        address, now = address_of(client), self._clock()
        last, at = self._levels.get(address, (0.0, 0.0))
        level = max(0.0, last - (now - at) / self._each_seconds)
        self._levels[address] = (min(level, self._max_level) + 1, now)
        self._levels.move_to_end(address)
        if len(self._levels) > _MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return level < self._max_level


class WrongTokenLimiter:
    """Bounds the wrong tokens of each address."""

    def __init__(self, max_attempts: int = MAX_ATTEMPTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._wrong = AddressLimiter(max_attempts, EACH_SECONDS, clock)
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        self._look_ups = asyncio.Semaphore(_MAX_LOOK_UPS)

    def looking_up(self, digest: bytes) -> AbstractAsyncContextManager[object]:
        """Return the context to look a token up in: a recently valid one does not wait for others."""
        return nullcontext() if digest in self._valid else self._look_ups

    def record_wrong(self, client: tuple[str, int] | None) -> None:
        """Record a wrong token. Raises ApiError if the address sent too many."""
        if not self._wrong.admits(client):
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TooManyWrongTokens",
                "too many invalid tokens came from this address, and this one is invalid too",
                "use a valid token:  fairway context list  shows which one is used",
                headers={"Retry-After": "60"},
            )

    def record_valid(self, digest: bytes) -> None:
        """Record a valid token."""
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        if len(self._valid) > _MAX_VALID:
            self._valid.popitem(last=False)


class OpenRequests:
    """The requests that a server is answering, by address; half may be event streams of open pages."""

    def __init__(self, most: int = MAX_REQUESTS, most_of_address: int = MAX_REQUESTS_OF_ADDRESS) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._of_address: Counter[str] = Counter()

    @contextmanager
    def counted(self, client: tuple[str, int] | None) -> Iterator[None]:
        """Count a request while the context is open. Raises ApiError if there are too many."""
        address = address_of(client)
        total = self._of_address.total()
        if total >= self._most or self._of_address[address] >= self._most_of_address:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "TooManyRequests",
                f"{total} requests are in progress, {self._of_address[address]} from this address",
                "try again in a few seconds",
                headers={"Retry-After": "5", "Connection": "close"},
            )
        self._of_address[address] += 1
        try:
            yield
        finally:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]


def address_of(client: tuple[str, int] | None) -> str:
    """Return a client's address; of IPv6 the /64 network, which one customer has as a whole."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
