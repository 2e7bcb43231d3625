"""Run the app with uvicorn, leaving signals to `Shutdown` and logging to our configuration."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

from fairway.server.connections import BoundedProtocol, BoundedServerState, allow_open_files
from fairway.server.listen import ServerOptions
from fairway.server.shutdown import Shutdown

GRACE_SECONDS: Final = 3
"""How long running requests may continue after a request to stop."""


class UvicornServer(uvicorn.Server):
    """uvicorn without its own handling of signals and logging."""

    def __init__(self, options: ServerOptions, app: Callable[..., object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=GRACE_SECONDS,
                http=BoundedProtocol,
                ssl_certfile=options.tls_cert,
                ssl_keyfile=options.tls_key,
            )
        )
        self.server_state = BoundedServerState()
        self._up = asyncio.Event()

    @asynccontextmanager
    async def running(self, listener: socket.socket, stop: Shutdown) -> AsyncIterator[None]:
        """Serve on the socket while the context is open."""
        allow_open_files()
        task = asyncio.create_task(self.serve(sockets=[listener]), name="the web server")
        stop.watch(task)
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait([task, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        try:
            yield
        finally:
            self.should_exit = True
            await asyncio.wait([task], timeout=GRACE_SECONDS + 2)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `Shutdown` handles signals
