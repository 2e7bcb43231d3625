"""Sign in from the command line: the secrets of one sign-in, and the listener that a browser returns to."""

from __future__ import annotations

import base64
import hashlib
import queue
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

_PAGE: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Fairway</title>
<p>The command line is signed in. You can close this page.</p></html>"""
_SECONDS: Final = 5.0
"""How long a connection to the listener may take."""


@dataclass(frozen=True, slots=True)
class LoginSecret:
    """The secret of one sign-in: only its hash is sent before the sign-in is confirmed (PKCE, RFC 7636)."""

    verifier: str = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """Generate a secret of 256 random bits."""
        return cls(secrets.token_urlsafe(32))

    @property
    def challenge(self) -> str:
        """Return the S256 challenge."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class BrowserListener:
    """Waits on 127.0.0.1 for the code that the person's browser brings. Use it as a context manager.

    Anybody on this machine, and any page in its browser, may send something here: a code is worth nothing
    before the server has accepted it together with the verifier.
    """

    def __init__(self) -> None:
        self._codes: queue.Queue[str] = queue.Queue(maxsize=10)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def code(self, timeout_seconds: float) -> str | None:
        """Wait for a code. Returns None after the timeout."""
        try:
            return self._codes.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        listener, codes = self, self._codes

        class Handler(BaseHTTPRequestHandler):
            timeout = _SECONDS

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                code = parse_qs(parts.query).get("code", [""])[-1]
                # A name that somebody points to 127.0.0.1 (DNS rebinding) is another host.
                here = self.headers.get("Host") == f"127.0.0.1:{listener.port}"
                if not here or parts.path != "/" or not code or len(code) > 128 or codes.full():
                    self.send_error(404)
                    return
                codes.put_nowait(code)
                self.send_response(200)
                headers: Mapping[str, str] = {
                    "Content-Type": "text/html; charset=utf-8",
                    "Content-Length": str(len(_PAGE)),
                    "Cache-Control": "no-store",
                    "Referrer-Policy": "no-referrer",
                }
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(_PAGE)

            def log_message(self, *_: object) -> None:
                return

        return Handler
