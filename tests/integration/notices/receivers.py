"""Receivers that fail as real ones do: a webhook over HTTP, and aiosmtpd as a mail server."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP

FAILURES = ("refused", "dropped", "lost-answer", "hangs")
"""A status of an error; the connection closed before anything is accepted; accepted, and the connection
closed without an answer; accepted, and no answer in time."""
HANG_SECONDS = 0.6


@dataclass
class Inbox:
    """What the receivers accepted: by channel and key, each time it came, and how often they failed."""

    dice: random.Random
    failing: float = 0.2
    accepted: list[tuple[str, str, Any]] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    busy: int = 0
    """Requests that are being answered."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self) -> str | None:
        """Return how the next request fails; None: it does not."""
        with self._lock:
            how = self.dice.choice(FAILURES) if self.dice.random() < self.failing else None
            self.failed.update([how] if how else [])
            return how

    def accept(self, channel: str, key: str, body: Any) -> None:
        with self._lock:
            self.accepted.append((channel, key, body))

    def by_key(self) -> dict[tuple[str, str], list[Any]]:
        """Return every time that a message came, by channel and key."""
        found: dict[tuple[str, str], list[Any]] = {}
        with self._lock:
            for channel, key, body in self.accepted:
                found.setdefault((channel, key), []).append(body)
        return found

    @contextmanager
    def answering(self) -> Iterator[None]:
        with self._lock:
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1


@contextmanager
def webhooks(inbox: Inbox) -> Iterator[str]:
    """Receive HTTP, and return the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with inbox.answering(), suppress(OSError, ValueError):  # whoever sent it was killed
                how = inbox.choose()
                body = self.rfile.read(int(self.headers["content-length"]))
                if how == "dropped":
                    self.close_connection = True
                    return
                if how == "refused":
                    self._answer(503)
                    return
                # Slack has no key for duplicates: what it would show twice counts by its text.
                key = self.headers.get("Idempotency-Key") or json.loads(body)["text"]
                inbox.accept(self.path, key, json.loads(body))
                if how == "lost-answer":
                    self.close_connection = True
                    return
                if how == "hangs":
                    time.sleep(HANG_SECONDS)
                self._answer(200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Mailbox:
    """Handles the commands of SMTP, as aiosmtpd calls them."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def handle_DATA(  # noqa: N802 - its name in aiosmtpd
        self, server: Any, session: Any, envelope: Any
    ) -> str:
        with self._inbox.answering():
            how = self._inbox.choose()
            if how == "refused":
                return "451 try again later"
            if how == "dropped":
                server.transport.abort()
                return "451 gone"
            mail = message_from_bytes(envelope.content, policy=default)
            for recipient in envelope.rcpt_tos:
                body = (mail["Subject"], mail.get_body().get_content())  # type: ignore[union-attr]
                self._inbox.accept(recipient, mail["Message-ID"], body)
            if how == "lost-answer":
                server.transport.abort()
            if how == "hangs":
                await asyncio.sleep(HANG_SECONDS)
            return "250 accepted"


@asynccontextmanager
async def mail_server(inbox: Inbox) -> AsyncIterator[str]:
    """Receive mail, and return the address of the server."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(_Mailbox(inbox), loop=loop), "127.0.0.1", 0)
    async with server:
        yield f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
