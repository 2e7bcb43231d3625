"""Run the app with uvicorn, leaving signals to `Stop` and logging to our configuration."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

from fairway.server.listen import Serving
from fairway.server.shutdown import Stop

GRACE_SECONDS: Final = 3
"""How long running requests may continue after a request to stop."""


class UvicornServer:
    """uvicorn without its own handling of signals and logging."""

    def __init__(self, serving: Serving, app: Callable[..., object]) -> None:
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=GRACE_SECONDS,
                limit_concurrency=2000,  # half of them may be open pages that listen
                ssl_certfile=serving.tls_cert,
                ssl_keyfile=serving.tls_key,
            )
        )

    @asynccontextmanager
    async def running(self, listener: socket.socket, stop: Stop) -> AsyncIterator[None]:
        task = asyncio.create_task(self._server.serve(sockets=[listener]), name="the web server")
        stop.watch(task)
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([task, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        try:
            yield
        finally:
            self._server.should_exit = True
            await asyncio.wait([task], timeout=GRACE_SECONDS + 2)


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `Stop` does
