"""Forward requests that ask an engine to the one server that has the engines' credentials.

The caller was authorized here, and is authorized there again, by the same ledger. What is forwarded is what a
route reads: method, target, body, the caller's own credential and few headers. So nothing of a hop comes
along, and a stolen forwarding server has no more rights than its callers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx2
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fairway.api.problems import ApiError
from fairway.model.errors import PermanentError, TemporaryError

CONNECT_SECONDS: Final = 5.0
_KEPT_SECONDS: Final = 5.0
"""Half of what a server gives a silent connection: it is not used again while the other end closes it."""
_MAX_CONNECTIONS: Final = 100
_RETRY_SECONDS: Final = 5
_REQUEST_HEADERS: Final = frozenset({b"accept", b"content-type", b"hx-request", b"hx-target"})
"""What routes read, besides the caller's credential."""
_OWN_HEADERS: Final = frozenset(
    {
        "connection",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "server",
        "strict-transport-security",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
"""Of a hop, or set by each server itself: not those of the other server."""
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class EngineServer:
    """The server that asks engines for this one."""

    def __init__(
        self, url: str, ca_file: Path | None = None, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """Raises PermanentError if the certificate authority cannot be read."""
        self._url = httpx2.URL(url)
        self._http = httpx2.AsyncClient(
            verify=_ssl_context(ca_file) if self._url.scheme == "https" else False,
            # A proxy of the environment would see people's tokens; a redirect would send them elsewhere.
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEPT_SECONDS),
            transport=transport,
        )

    async def answer(self, request: Request, credentials: Mapping[str, str], seconds: float) -> Response:
        """Send a request on, and return the answer, whose body is still to come.

        Raises ApiError if the other server does not begin to answer within `seconds`; nor may it be silent
        for longer afterwards.
        """
        is_read = request.method in ("GET", "HEAD")
        own = {"Accept-Encoding": "identity", "X-Request-Id": request.state.request_id}
        headers = [
            *((name, value) for name, value in request.headers.raw if name in _REQUEST_HEADERS),
            *((name.encode(), value.encode("latin-1")) for name, value in {**credentials, **own}.items()),
        ]
        forwarded = self._http.build_request(
            request.method,
            self._target(request.scope),
            headers=headers,
            content=None if is_read else await request.body(),
            timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
        )
        try:
            async with asyncio.timeout(seconds):
                answered = await self._http.send(forwarded, stream=True)
        except _NOT_SENT as error:
            raise _away() from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise (_away() if is_read else _silent()) from error
        return _RelayedResponse(answered)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _target(self, scope: Scope) -> httpx2.URL:
        """Return the URL of the same path and query on the other server, whatever they are."""
        query: bytes = scope["query_string"]
        path = self._url.raw_path.rstrip(b"/") + scope["raw_path"]
        target = path + b"?" + query if query else path
        return self._url.copy_with(raw_path=target.replace(b"#", b"%23"))  # no fragment reaches a server


class _RelayedResponse(StreamingResponse):
    """The answer of the other server, as it comes."""

    def __init__(self, answered: httpx2.Response) -> None:
        super().__init__(_parts(answered), answered.status_code)
        self._answered = answered
        self.raw_headers = [
            (name.lower(), value)
            for name, value in answered.headers.raw
            if name.decode("latin-1").lower() not in _OWN_HEADERS
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answered.aclose()


async def _parts(answered: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answered.aiter_raw():
            yield part
    except httpx2.HTTPError as error:
        raise TemporaryError(
            "EngineServerAway",
            f"the server that queries the clusters stopped during a response ({type(error).__name__})",
            "ask again",
        ) from error


def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise PermanentError(
            "EngineServerSettings",
            f"cannot use the certificate authority {ca_file}: {error.strerror or error}",
            "set FAIRWAY_ENGINE_SERVER_CA to a PEM file that this server can read",
        ) from error


def _away() -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "EngineServerAway",
        "the server that queries the clusters is not reachable",
        f"nothing was done; try again in {_RETRY_SECONDS} s. Data of the ledger is still available",
        headers={"Retry-After": str(_RETRY_SECONDS)},
    )


def _silent() -> ApiError:
    return ApiError(
        HTTPStatus.GATEWAY_TIMEOUT,
        "EngineServerSilent",
        "the server that asks the clusters got the request, and did not respond in time",
        "it may have been carried out: check before you repeat it, or repeat it with the same key",
    )
