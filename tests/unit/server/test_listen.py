"""The socket that a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fairway.model.errors import PermanentError
from fairway.server.listen import ServerOptions, check_engine_server, listening
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


def options(serve: str, engine_server: str | None, insecure: bool = False) -> ServerOptions:
    given = {"serve": serve, "engine_server": engine_server}
    return ServerOptions(read_settings(given, {"HOME": "/nowhere"}), insecure_listen=insecure)


def test_engines_elsewhere_are_for_servers_that_only_answer() -> None:
    for serve in ("all", "loops"):
        with pytest.raises(PermanentError, match=f"serve: {serve}"):
            check_engine_server(options(serve, "https://control.test"))
    check_engine_server(options("api", "https://control.test"))
    check_engine_server(options("api", None))


def test_tokens_do_not_travel_unencrypted_to_the_other_server() -> None:
    url = "http://control.test:8471"
    with pytest.raises(PermanentError, match="unencrypted") as caught:
        check_engine_server(options("api", url))
    assert "https:" in (caught.value.hint or "")
    check_engine_server(options("api", url, insecure=True))  # said to be private, as is the network before it
    check_engine_server(options("api", "http://127.0.0.1:8471"))
