"""Time limits and bounds of connections, over real sockets with small numbers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from fairway.server import connections
from fairway.server.connections import BoundedProtocol, BoundedServerState, ReceivingConnections
from tests.waiting import eventually

BIG = b"x" * 1024 * 1024
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "


async def app(scope: object, receive: object, send: object) -> None:
    """Reads the whole body, then answers: with much, if it is asked for that."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)  # type: ignore[operator]
    much = scope["path"] == "/much"  # type: ignore[index]
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    for _ in range(64 if much else 1):
        body = {"type": "http.response.body", "body": BIG if much else b"ok", "more_body": much}
        await send(body)  # type: ignore[operator]
    if much:
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


@pytest.fixture
def state() -> BoundedServerState:
    made = BoundedServerState()
    made.receiving = ReceivingConnections(most=8, most_of_address=5)
    return made


@pytest.fixture
async def port(state: BoundedServerState, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A server that is in a hurry, and takes five connections that wait for a request."""
    for name, seconds in (("HEAD_SECONDS", 0.5), ("BODY_SECONDS", 1.0), ("RESPONSE_SECONDS", 1.0)):
        monkeypatch.setattr(connections, name, seconds)
    config = uvicorn.Config(app, http=BoundedProtocol, log_config=None, lifespan="off", ws="none")
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for connection in list(state.connections):
        connection.transport.abort()


async def ask(port: int, request: bytes) -> bytes:
    """Send a request, or a part of one, and return all that the server sends until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost", b"HTTP/1.1 408 "),
        (HEAD + b"9\r\n\r\nabc", b"HTTP/1.1 408 "),
        (HEAD + b"3\r\n\r\nabc", b"HTTP/1.1 200 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 "),
    ],
)
async def test_every_phase_has_an_end(port: int, request_: bytes, answer: bytes) -> None:
    found = await ask(port, request_)
    assert found.startswith(answer) and bool(found) == bool(answer)


async def test_a_body_that_drips_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(HEAD + b"1000\r\n\r\n")

        def is_cut_off() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        await eventually(is_cut_off, 10, "the end of the connection", pause=0.1)


async def test_a_body_that_flows_may_take_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_BYTES_PER_SECOND", 16 * 1024)
    pieces = [b"x" * 64 * 1024] * 24  # a tenth of a second each, and one second was given for all
    left = iter(pieces)
    with socket.create_connection(("127.0.0.1", port)) as steady:
        steady.sendall(HEAD + b"%d\r\n\r\n" % sum(map(len, pieces)))

        def all_sent() -> bool:
            piece = next(left, None)
            if piece is not None:
                steady.sendall(piece)
            return piece is None

        assert await eventually(all_sent, 20, "the whole body", pause=0.1) > 2 * connections.BODY_SECONDS
        answer = await asyncio.to_thread(steady.recv, 100)
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_who_does_not_read_the_answer_is_cut_off(port: int, state: BoundedServerState) -> None:
    with socket.create_connection(("127.0.0.1", port)) as lazy:
        lazy.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: state.connections, 10, "the connection", pause=0.02)
        await eventually(lambda: not state.connections, 10, "its end", pause=0.1)


async def test_the_oldest_silent_connection_makes_room(
    port: int, state: BoundedServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60.0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
    await eventually(lambda: len(state.connections) == 5, 10, "the end of the oldest", pause=0.02)
    own = [c for c in state.connections if isinstance(c, BoundedProtocol)]
    still_open = {connection.client[1] for connection in own if connection.client}
    assert still_open == {writer.get_extra_info("sockname")[1] for _, writer in silent[4:]}
    answer = await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    for _, writer in silent:
        writer.close()
