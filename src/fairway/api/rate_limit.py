"""Rate-limit wrong tokens by client address.

Nobody guesses 256 random bits; the limit bounds the work and the log noise of trying. Behind a proxy all
clients share one address, and one that tries must not lock out the others: a recently valid token is still
accepted.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fastapi import Request

from fairway.api.problems import ApiError

MAX_ATTEMPTS: Final = 60
"""How many wrong tokens an address may send in a burst."""
EACH_SECONDS: Final = 1.0
"""The time after which one more is allowed."""
_MAX_ADDRESSES: Final = 10_000
_MAX_VALID: Final = 10_000
"""How many of each are stored; the oldest are dropped first."""


class WrongTokenLimiter:
    """A leaky bucket of wrong tokens for each address, in bounded memory."""

    def __init__(self, max_attempts: int = MAX_ATTEMPTS, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_attempts = max_attempts
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each address's bucket, and the time of that level."""
        self._valid: OrderedDict[bytes, None] = OrderedDict()

    def check(self, request: Request, digest: bytes) -> None:
        """Raise ApiError if the address sent too many wrong tokens. Call it before querying the ledger."""
        if self._level(address_of(request)) >= self.max_attempts and digest not in self._valid:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TooManyWrongTokens",
                "too many wrong tokens came from this address",
                "wait a minute; then use a token that is valid:  fairway context list  shows which is used",
                headers={"Retry-After": "60"},
            )

    def record_wrong(self, request: Request) -> None:
        """Record a wrong token."""
        address = address_of(request)
        level = self._level(address)
        self._levels[address] = (min(level + 1, self.max_attempts + EACH_SECONDS), self._clock())
        self._levels.move_to_end(address)
        if len(self._levels) > _MAX_ADDRESSES:
            self._levels.popitem(last=False)

    def record_valid(self, digest: bytes) -> None:
        """Record a valid token."""
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        if len(self._valid) > _MAX_VALID:
            self._valid.popitem(last=False)

    def _level(self, address: str) -> float:
        wrong, at = self._levels.get(address, (0.0, 0.0))
        return max(0.0, wrong - (self._clock() - at) / EACH_SECONDS)


def address_of(request: Request) -> str:
    """Return the client's address; of IPv6 the /64 network, which one customer has as a whole."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
