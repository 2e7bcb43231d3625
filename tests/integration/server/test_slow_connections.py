"""Silent, slow and very many connections to a real server: they are closed, and probes always get through."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from fairway.server.connections import BODY_SECONDS, HEAD_SECONDS, MAX_RECEIVING_OF_ADDRESS
from tests.integration.server_process import Server, temporary_home
from tests.waiting import until

HEAD = b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with temporary_home() as home:
        server = home.start("--listen", "127.0.0.1:0")
        yield server
        assert server.stop() == 0, server.log


def connect(server: Server) -> socket.socket:
    host, _, port = server.url.rpartition("/")[2].partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def probe(server: Server, path: str = "/healthz") -> tuple[bytes, float]:
    """The status line of a probe, and how long it took."""
    began = time.monotonic()
    with closing(connect(server)) as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        return connection.recv(4096).partition(b"\r\n")[0], time.monotonic() - began


def is_closed(connection: socket.socket, seen: dict[socket.socket, bytes]) -> bool:
    """Whether the server closed it; what it sent before is added to `seen`."""
    connection.setblocking(False)
    try:
        while data := connection.recv(65536):
            seen[connection] = seen.get(connection, b"") + data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.timeout(300)
def test_silent_and_slow_connections_are_closed(server: Server) -> None:
    with ExitStack() as stack:

        def opened(first: bytes) -> socket.socket:
            connection = stack.enter_context(closing(connect(server)))
            connection.sendall(first)
            return connection

        seen: dict[socket.socket, bytes] = {}
        silent = opened(b"")
        half_head = opened(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        second = opened(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he")
        half_body = opened(HEAD + b"Content-Length: 100\r\n\r\ntoken=")
        chunked = opened(HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\ntoken=\r\n")
        dripping = opened(HEAD + b"Content-Length: 1000\r\n\r\n")
        began = time.monotonic()

        def drip() -> bool:
            try:
                dripping.sendall(b"x")
            except OSError:
                return True
            return is_closed(dripping, seen)

        for connection in (silent, half_head, second):
            until(lambda c=connection: is_closed(c, seen), HEAD_SECONDS + 10, "its end")  # type: ignore[misc]
        assert time.monotonic() - began > HEAD_SECONDS / 2
        assert not any(is_closed(connection, seen) for connection in (half_body, chunked))
        for connection in (half_body, chunked):
            until(lambda c=connection: is_closed(c, seen), BODY_SECONDS + 10, "its end")  # type: ignore[misc]
        until(drip, BODY_SECONDS, "the end of the one that drips")
        assert silent not in seen
        assert "Traceback" not in server.log
        assert seen[half_head].startswith(b"HTTP/1.1 408 ")
        assert seen[second].startswith(b"HTTP/1.1 200 ")
        assert all(seen[c].startswith(b"HTTP/1.1 408 ") for c in (half_body, chunked))


@pytest.mark.timeout(300)
def test_very_many_silent_connections_keep_nobody_out(server: Server) -> None:
    seen: dict[socket.socket, bytes] = {}
    with ExitStack() as stack:
        crowd = [stack.enter_context(closing(connect(server))) for _ in range(2100)]
        for connection in crowd[::3]:
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
        for path in ("/healthz", "/readyz", "/sign-in"):
            status, _ = probe(server, path)
            assert status == b"HTTP/1.1 200 OK", (path, status)
        # Those that send their body slowly hold no place among the requests that change something.
        with closing(connect(server)) as connection:
            connection.sendall(HEAD + b"Content-Length: 11\r\nConnection: close\r\n\r\ntoken=wrong")
            assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")
        until(
            lambda: sum(not is_closed(c, seen) for c in crowd) <= MAX_RECEIVING_OF_ADDRESS,
            20,
            "the end of most of them",
        )
        assert not is_closed(crowd[-1], seen)  # the newest stays: who comes gets in
        slowest = max(probe(server)[1] for _ in range(20))
        assert slowest < 3
    assert probe(server)[0] == b"HTTP/1.1 200 OK"


def test_a_request_with_two_lengths_is_refused(server: Server) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in answer.lower()
