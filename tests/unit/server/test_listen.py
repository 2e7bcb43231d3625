"""The socket that a server listens on."""

from __future__ import annotations

import asyncio
import socket

from fairway.server.listen import listening
from fairway.settings import read_settings


async def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """A connection that the server accepts sends small packets at once."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own: socket.socket = writer.get_extra_info("socket")
        accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listening(read_settings({"listen_host": "127.0.0.1", "listen_port": 0})) as listener:
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await accepted
            writer.close()
