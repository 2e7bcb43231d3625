"""Real receivers on this machine: one of HTTP, one of mail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hooks:
    """What came by HTTP. `answers` are the statuses of the next requests, then 200."""

    url: str
    got: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it."""


@contextmanager
def hooks() -> Iterator[Hooks]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            received.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            received.hold.wait(20)
            status = received.answers.pop(0) if received.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", f"{received.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Hooks(f"http://127.0.0.1:{server.server_port}")
    received.hold.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        received.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Mails:
    """What came by mail, with the addresses of the envelope."""

    url: str
    got: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    refuse: bool = False
    logins: list[str] = field(default_factory=list)


@asynccontextmanager
async def mails() -> AsyncIterator[Mails]:
    """As much of SMTP (RFC 5321) as a client without TLS needs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(*lines: str) -> None:
            writer.write("".join(f"{line}\r\n" for line in lines).encode())

        to: list[str] = []
        say("220 test")
        while line := (await reader.readline()).decode().strip():
            verb = line[:4].upper()
            if verb == "EHLO":
                say("250-test", "250 AUTH PLAIN")
            elif verb == "AUTH":
                received.logins.append(line)
                say("235 ok")
            elif verb == "RCPT":
                to.append(line.partition("<")[2].rstrip(">"))
                say("550 no" if received.refuse else "250 ok")
            elif verb == "DATA":
                say("354 go on")
                data = await reader.readuntil(b"\r\n.\r\n")
                received.got.append((to, BytesParser(policy=default).parsebytes(data[:-5])))
                say("250 ok")
            elif verb == "QUIT":
                say("221 bye")
                break
            else:
                say("250 ok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    received = Mails(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield received
