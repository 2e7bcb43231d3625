"""Bind the server's socket, and require TLS where tokens would be sent unencrypted."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fairway.model.errors import PermanentError
from fairway.model.hosts import is_loopback
from fairway.settings import Settings


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of a server beyond its settings."""

    settings: Settings
    fleet_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_listen: bool = False

    @property
    def base_folder(self) -> Path:
        """Return the folder that relative paths in fleet files refer to: the file's, or the current one."""
        return self.fleet_file.absolute().parent if self.fleet_file else Path.cwd()


@contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """Yield the bound socket. Enter it first: a port in use must be found before the database starts."""
    host, port = settings.listen_host, settings.listen_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name the protocol; without it, each answer on a kept
    # connection waits 40 ms for the acknowledgement of its head
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except (OSError, OverflowError, UnicodeError) as error:
            other = port + 1 if port < 65535 else 8470
            raise PermanentError(
                "CannotListen",
                f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
                f"choose another address:  fairway server --listen 127.0.0.1:{other}"
                f"   or find out which process uses it:  ss -ltnp 'sport = :{port}'",
            ) from error
        yield listener


def require_tls(options: ServerOptions) -> None:
    """Check the TLS options. Raises PermanentError if tokens would be sent unencrypted without consent."""
    cert, key, host = options.tls_cert, options.tls_key, options.settings.listen_host
    if (cert is None) != (key is None):
        raise PermanentError(
            "TlsIncomplete", "TLS needs both a certificate and its key", "give --tls-cert and --tls-key"
        )
    if cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise PermanentError(
                "TlsUnusable",
                f"cannot use {cert} with {key}: {error}",
                "check both:  openssl x509 -in FILE -text",
            ) from error
    elif not options.insecure_listen and not is_loopback(host):
        raise PermanentError(
            "OpenWithoutTls",
            f"{host} is reachable from other hosts, and tokens would be sent unencrypted",
            "give --tls-cert and --tls-key, or --insecure-listen if something in front speaks TLS",
        )


def check_engine_server(options: ServerOptions) -> None:
    """Check the setting `engine_server`. Raises PermanentError if it cannot work or is not private."""
    settings = options.settings
    if settings.engine_server is None:
        return
    if settings.serve != "api":
        raise PermanentError(
            "EngineServerSettings",
            "engine_server is for servers that only serve the API, and this one has  serve: "
            f"{settings.serve}",
            "set FAIRWAY_SERVE=api, or leave FAIRWAY_ENGINE_SERVER out",
        )
    address = urlsplit(settings.engine_server)
    if address.scheme != "https" and not options.insecure_listen and not is_loopback(address.hostname or ""):
        raise PermanentError(
            "EngineServerSettings",
            f"tokens would be sent unencrypted to {settings.engine_server}",
            "give an https: URL, or --insecure-listen if the network between the servers is private",
        )


def own_url(options: ServerOptions, listener: socket.socket) -> str:
    """Return the server's URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    in_url = f"[{host}]" if ":" in host else host
    return f"{'https' if options.tls_cert else 'http'}://{in_url}:{port}"
