"""How often an address may be wrong about a token before nobody looks any more.

Nobody guesses 256 random bits; what this bounds is the work and the noise that trying makes. Behind a proxy
everybody has one address, so that one who tries must not lock the others out: a token that was good lately is
still looked at.
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

MOST: Final = 60
"""Wrong tokens at once."""
EACH_SECONDS: Final = 1.0
"""After which another one is forgiven."""
_ADDRESSES: Final = 10_000
_GOOD: Final = 10_000
"""How many of each are remembered; the oldest go first."""


class WrongTokens:
    """Wrong tokens by address, in bounded memory."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How many are not yet forgiven, and when that was so."""
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def check(self, request: Request, digest: bytes) -> None:
        """Raise ApiError, before the ledger is asked, if this address was wrong too often."""
        if self._left(address_of(request)) >= self.most and digest not in self._good:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TooManyWrongTokens",
                "too many wrong tokens came from this address",
                "wait a minute; then use a token that is valid:  fairway context list  shows which is used",
                headers={"Retry-After": "60"},
            )

    def note_wrong(self, request: Request) -> None:
        """One more."""
        address = address_of(request)
        left = self._left(address)
        self._wrong[address] = (min(left + 1, self.most + EACH_SECONDS), self._clock())
        self._wrong.move_to_end(address)
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)

    def note_good(self, digest: bytes) -> None:
        """This token was valid."""
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > _GOOD:
            self._good.popitem(last=False)

    def _left(self, address: str) -> float:
        wrong, at = self._wrong.get(address, (0.0, 0.0))
        return max(0.0, wrong - (self._clock() - at) / EACH_SECONDS)


def address_of(request: Request) -> str:
    """Who asks, as far as the network tells; of IPv6 the part that one customer has as a whole."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
