"""Close HTTP connections that are silent or slow, and bound those that wait for a request.

uvicorn has a time limit between requests only: a connection that sends nothing, half of its headers or half
of a body would stay for ever.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from enum import Enum
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fairway.api.rate_limit import address_of

HEAD_SECONDS: Final = 10.0
"""For request line and headers, from the connection's start or the previous response."""
BODY_SECONDS: Final = 30.0
"""For the body, and more for a large one: see BODY_BYTES_PER_SECOND."""
BODY_BYTES_PER_SECOND: Final = 256 * 1024
RESPONSE_SECONDS: Final = 60.0
"""For a client to read on when the response waits for it."""
MAX_RECEIVING: Final = 1000
MAX_RECEIVING_OF_ADDRESS: Final = 500
"""Connections that wait for a request or receive one; beyond, the oldest is closed: new ones get in."""
_OPEN_FILES: Final = 16_384


class _Phase(Enum):
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    """The request is complete."""


class ReceivingConnections:
    """The connections of a server whose next request is not complete, oldest first."""

    def __init__(self, most: int = MAX_RECEIVING, most_of_address: int = MAX_RECEIVING_OF_ADDRESS) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._all: OrderedDict[BoundedProtocol, str] = OrderedDict()
        self._of_address: dict[str, OrderedDict[BoundedProtocol, None]] = {}

    def add(self, connection: BoundedProtocol, address: str) -> None:
        """Add a connection, and close the oldest one if there are too many."""
        if connection in self._all:
            return
        own = self._of_address.setdefault(address, OrderedDict())
        if len(own) >= self._most_of_address:
            self._close(next(iter(own)))
        elif len(self._all) >= self._most:
            self._close(next(iter(self._all)))
        self._all[connection] = address
        self._of_address.setdefault(address, own)[connection] = None

    def discard(self, connection: BoundedProtocol) -> None:
        """Remove a connection, if it is here."""
        address = self._all.pop(connection, None)
        if address is None:
            return
        own = self._of_address[address]
        del own[connection]
        if not own:
            del self._of_address[address]

    def _close(self, connection: BoundedProtocol) -> None:
        self.discard(connection)
        connection.transport.abort()


class BoundedServerState(ServerState):
    """uvicorn's state of a server, with the connections that are receiving."""

    def __init__(self) -> None:
        super().__init__()
        self.receiving = ReceivingConnections()


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a time limit for each phase of a request."""

    def __init__(
        self,
        config: Config,
        server_state: BoundedServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._receiving = server_state.receiving
        self._phase: _Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = address_of(self.client)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiving.discard(self)
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.BODY:
            self._body_bytes += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; whoever is answering an earlier part of it need not go on."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(RESPONSE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _follow(self) -> None:
        """Start the time limit of a new phase."""
        if self.transport.is_closing():
            return
        match self.conn.their_state:
            case h11.IDLE:
                phase = _Phase.HEAD
            case h11.SEND_BODY:
                phase = _Phase.BODY
            case _:
                phase = _Phase.ANSWER
        if phase is self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase is _Phase.ANSWER:
            self._receiving.discard(self)
            return
        self._receiving.add(self, self._address)
        if phase is _Phase.HEAD:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        else:
            self._body_bytes = 0
            self._timer = self.loop.call_later(BODY_SECONDS, self._check_body, BODY_SECONDS)

    def _check_body(self, allowed: float) -> None:
        """Close a connection whose body is late, unless the server itself stopped reading."""
        earned = BODY_SECONDS + self._body_bytes / BODY_BYTES_PER_SECOND
        more = BODY_SECONDS if self.flow.read_paused else earned - allowed
        if more < 1:
            self._too_slow()
        else:
            self._timer = self.loop.call_later(more, self._check_body, allowed + more)

    def _too_slow(self) -> None:
        """Close the connection; with an answer if a request has begun and has none yet."""
        begun = self._phase is _Phase.BODY or bool(self.conn.trailing_data[0])
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = b"the request did not arrive in time\n"
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text)
            )
        self.transport.close()


def allow_open_files() -> None:
    """Raise the soft limit of open files, often 1024, so that connections do not use up all of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
