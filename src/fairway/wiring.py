"""The one place that knows every concrete part: it builds engines, ledger, loops and app, and runs them."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from fairway.api.access import hash_secret, new_secret
from fairway.api.app import create_app
from fairway.client.private import write_private
from fairway.control import Runner
from fairway.engines.port import Observes
from fairway.files import parse_fleet, read_fleet
from fairway.ledger import Ledger, Revision, TokenNameTaken, embedded
from fairway.model.access import Role
from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Cluster, EngineKind, Fleet, Pool
from fairway.settings import Settings

GRACE_SECONDS: Final = 3
"""How long running requests may go on once the server is told to stop."""
_LOOPS_END_SECONDS: Final = 8
_MOST_ADMINS: Final = 100
_ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - a file name

log = structlog.get_logger("fairway.server")


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve, beyond the settings."""

    settings: Settings
    fleet_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_listen: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """What a server that just started tells whoever started it."""

    url: str
    fleet: str | None
    admin_token_file: Path
    """Where a server keeps the token it makes on a ledger without any; need not exist."""
    made_admin: bool
    """Whether this start made it."""


def build_engine(cluster: Cluster, pools: tuple[Pool, ...]) -> Observes:
    """The engine of a cluster. Its libraries are loaded only where a fleet has such a cluster."""
    match cluster.engine:
        case EngineKind.SLURM:
            from fairway.engines.slurm.engine import SlurmEngine  # noqa: PLC0415

            return SlurmEngine(cluster, pools)
        case EngineKind.KUBERNETES:
            from fairway.engines.kubernetes.engine import KubernetesEngine  # noqa: PLC0415

            return KubernetesEngine(cluster, pools)
        case EngineKind.VIRTUAL:
            from fairway.engines.virtual.engine import VirtualEngine  # noqa: PLC0415

            return VirtualEngine(cluster, pools)


def serve(serving: Serving, tell: Callable[[Started], None]) -> None:
    """Run a server until SIGTERM or SIGINT. Raises FairwayError if it cannot start."""
    # Whatever can be found wrong without starting anything is found first.
    text = _checked_text(serving.fleet_file) if serving.fleet_file else None
    _check_door(serving)
    with _listening(serving.settings) as listener:
        asyncio.run(_serve(serving, text, listener, tell))


async def _serve(
    serving: Serving, text: str | None, listener: socket.socket, tell: Callable[[Started], None]
) -> None:
    settings = serving.settings
    stop = _Stop()
    try:
        async with AsyncExitStack() as parts:
            parts.enter_context(stop.on_signals())
            ledger = await parts.enter_async_context(_open_ledger(settings, stop))
            await ledger.migrate()
            if text is not None:
                await _keep_fleet(ledger, text)
            parse = _parser(serving.fleet_file)
            newest = await ledger.fleet()
            fleet = parse(newest).name if newest else None
            made = await _make_first_admin(ledger, settings.state_dir)
            registry = _registry()
            runner = Runner(ledger, build_engine, settings, registry, parse)
            web = _Web(serving, create_app(ledger, registry, parse))
            await parts.enter_async_context(_running(runner, stop))
            await parts.enter_async_context(web.running(listener, stop))
            tell(Started(_url(serving, listener), fleet, settings.state_dir / _ADMIN_TOKEN, made))
            await stop.wait()
            log.info("stopping")
    except asyncio.CancelledError:
        if not stop.asked:
            raise
    stop.raise_failure()


class _Stop:
    """The wish to stop: by signal, or because a part failed."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once: Callable[[], None] = lambda: None
        """Ends what would outlive this process; for a second signal, when waiting is over."""
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._starting: asyncio.Task[None] | None = None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._starting = asyncio.current_task()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def wait(self) -> None:
        """Until asked to stop; from now on a signal does not cancel but ends in good order."""
        self._starting = None
        await self._event.wait()

    def watch(self, task: asyncio.Task[None]) -> None:
        """Stop everything when a part ends that should not."""

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and not self.asked:
                self._failure = done.exception() or RuntimeError(f"{done.get_name()} ended by itself")
                self._ask()

        task.add_done_callback(ended)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_signal(self, number: int) -> None:
        if self.asked:
            try:
                self.at_once()
            finally:
                os._exit(128 + number)
        self._ask()

    def _ask(self) -> None:
        self.asked = True
        self._event.set()
        if self._starting is not None:
            self._starting.cancel()


class _Web:
    """uvicorn, with our own idea of signals and of logging."""

    def __init__(self, serving: Serving, app: Callable[..., object]) -> None:
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=GRACE_SECONDS,
                limit_concurrency=1000,
                ssl_certfile=serving.tls_cert,
                ssl_keyfile=serving.tls_key,
            )
        )

    @asynccontextmanager
    async def running(self, listener: socket.socket, stop: _Stop) -> AsyncIterator[None]:
        task = asyncio.create_task(self._server.serve(sockets=[listener]), name="the web server")
        stop.watch(task)
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([task, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        try:
            yield
        finally:
            self._server.should_exit = True
            await asyncio.wait([task], timeout=GRACE_SECONDS + 2)


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `_Stop` does


@asynccontextmanager
async def _running(runner: Runner, stop: _Stop) -> AsyncIterator[None]:
    task = asyncio.create_task(runner.run(), name="the runner of loops")
    stop.watch(task)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=_LOOPS_END_SECONDS)


@asynccontextmanager
async def _open_ledger(settings: Settings, stop: _Stop) -> AsyncIterator[Ledger]:
    url, own = settings.database_url, None
    if url is None:
        log.info("starting the embedded PostgreSQL", folder=str(settings.state_dir / "postgres"))
        own = await asyncio.to_thread(embedded.start, settings.state_dir / "postgres")
        url, stop.at_once = own.url, own.stop
    try:
        ledger = await Ledger.connect(url)
        try:
            yield ledger
        finally:
            await ledger.close()
    finally:
        if own is not None:
            await asyncio.to_thread(_stop_embedded, own)


def _stop_embedded(own: embedded.Embedded) -> None:
    try:
        own.stop()
    except FairwayError as error:  # it is said; the server's own end was still a good one
        log.warning(error.message, code=error.code, hint=error.hint)


def _checked_text(file: Path) -> str:
    read_fleet(file)  # raises InvalidFile with every fault
    return file.read_text(encoding="utf-8")


async def _keep_fleet(ledger: Ledger, text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    revision = await ledger.keep_fleet(text, digest, "fairway server")
    log.info("fleet kept", revision=revision.id)


def _parser(file: Path | None) -> Callable[[Revision], Fleet]:
    """Reads revisions; relative paths count from the file's folder, or from where the server was started."""
    folder = file.absolute().parent if file else Path.cwd()
    return lambda revision: parse_fleet(revision.text, f"fleet revision {revision.id}", folder)


async def _make_first_admin(ledger: Ledger, state_dir: Path) -> bool:
    """On a ledger without any token, make one and keep it where only this user can read it."""
    if await ledger.has_tokens():
        return False
    file = state_dir / _ADMIN_TOKEN
    secret = new_secret()
    # The file comes first: a token that nobody can read any more would lock everybody out.
    _write_token(file, secret)
    for number in range(1, _MOST_ADMINS):
        try:
            await ledger.create_token(
                "admin" if number == 1 else f"admin-{number}", Role.ADMIN, hash_secret(secret), "first start"
            )
        except TokenNameTaken:
            if await ledger.has_tokens():  # another server was faster
                file.unlink(missing_ok=True)
                return False
        else:
            return True
    raise PermanentError(
        "NoAdmin",
        f"{_MOST_ADMINS - 1} admin tokens were made and none is valid any more",
        "revoke less, or start with another database",
    )


def _write_token(file: Path, secret: str) -> None:
    try:
        write_private(file, secret + "\n")
    except OSError as error:
        raise PermanentError(
            "StateNotWritable",
            f"cannot write {file}: {error.strerror}",
            "fairway server --state-dir DIR  chooses another folder",
        ) from error


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The bound socket, before anything else is started: a port in use must not cost a started database."""
    host, port = settings.listen_host, settings.listen_port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except (OSError, OverflowError, UnicodeError) as error:
            other = port + 1 if port < 65535 else 8470
            raise PermanentError(
                "CannotListen",
                f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
                f"choose another:  fairway server --listen 127.0.0.1:{other}"
                f"   or see who has it:  ss -ltnp 'sport = :{port}'",
            ) from error
        yield listener


def _check_door(serving: Serving) -> None:
    """Refuse to let tokens travel unencrypted unless somebody said so."""
    cert, key, host = serving.tls_cert, serving.tls_key, serving.settings.listen_host
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
                "look at both:  openssl x509 -in FILE -text",
            ) from error
    elif not serving.insecure_listen and not _is_loopback(host):
        raise PermanentError(
            "OpenWithoutTls",
            f"{host} can be reached from elsewhere, and tokens would travel unencrypted",
            "give --tls-cert and --tls-key, or --insecure-listen if something in front speaks TLS",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(serving: Serving, listener: socket.socket) -> str:
    """Where this machine's own clients find the server."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if serving.tls_cert else 'http'}://{shown}:{port}"
