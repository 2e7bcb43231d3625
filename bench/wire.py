"""A loopback forwarder that counts bytes: what Fairway and the bare call each move over the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(slots=True)
class Wire:
    """Listens on `port` and forwards to one server; `received` counts what that server sent."""

    port: int = 0
    received: int = 0

    def take(self) -> int:
        """Bytes since the last time."""
        count, self.received = self.received, 0
        return count


@contextlib.asynccontextmanager
async def counting(host: str, port: int) -> AsyncIterator[Wire]:
    """A Wire in front of host:port for the time of the block."""
    wire = Wire()
    open_tasks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: bool) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await source.read(1 << 16):
                if count:
                    wire.received += len(data)
                sink.write(data)
                await sink.drain()
        with contextlib.suppress(ConnectionError, RuntimeError):
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        for task in (
            asyncio.create_task(pump(reader, back, False)),
            asyncio.create_task(pump(there, writer, True)),
        ):
            open_tasks.add(task)
            task.add_done_callback(open_tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        for task in tuple(open_tasks):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
