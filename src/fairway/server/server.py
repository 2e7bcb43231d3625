"""Build the parts of a server, start them in order, and stop them in reverse."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from fairway.api.app import create_app, create_own_app
from fairway.control import Runner
from fairway.files import fleet_digest, parse_fleet, read_fleet
from fairway.ledger import Ledger, LedgerNotMigrated, Revision, embedded
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.server.engines import Engines
from fairway.server.first_admin import ADMIN_TOKEN, make_first_admin
from fairway.server.listen import Serving, listening, own_url, require_tls
from fairway.server.services import job_parts, policy_parts
from fairway.server.shutdown import Stop
from fairway.server.uvicorn import UvicornServer
from fairway.services.fleets import Fleets
from fairway.services.wakeup import Wakeup
from fairway.settings import Settings
from fairway.web.app import add_pages, stop_pages

_LOOPS_END_SECONDS: Final = 8
_TABLES_SECONDS: Final = 60
"""How long a server with `migrate: no` waits for the tables before it gives up."""

log = structlog.get_logger("fairway.server")


@dataclass(frozen=True, slots=True)
class Started:
    """What a server reports to its caller once it has started."""

    url: str
    fleet: str | None
    admin_token_file: Path
    """Where a server stores the token that it creates on an empty ledger; may not exist."""
    made_admin: bool
    """Whether this start created it."""
    answers: bool = True
    """Whether it serves the API, or only runs loops."""


Beside = Callable[[Started, Engines], Coroutine[None, None, None]]
"""A coroutine that runs as long as the server; if it ends, the server stops."""
Before = Callable[[Ledger], Coroutine[None, None, None]]
"""A coroutine that prepares the ledger before the server uses it."""


def serve(
    serving: Serving,
    tell: Callable[[Started], None],
    beside: Beside | None = None,
    before: Before | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT. Raises FairwayError if it cannot start."""
    # Whatever can be found wrong without starting anything is found first.
    text = _checked_text(serving.fleet_file) if serving.fleet_file else None
    require_tls(serving)
    collect_garbage_less_often()
    with listening(serving.settings) as listener:
        asyncio.run(_serve(serving, text, listener, tell, beside, before))


def collect_garbage_less_often() -> None:
    """Raise the thresholds of the garbage collector.

    A plan allocates a hundred thousand values that survive; at the default of 700, scanning them takes a
    third of the time.
    """
    gc.set_threshold(50_000, 20, 50)


async def _serve(
    serving: Serving,
    text: str | None,
    listener: socket.socket,
    tell: Callable[[Started], None],
    beside: Beside | None,
    before: Before | None,
) -> None:
    settings = serving.settings
    stop = Stop()
    try:
        async with AsyncExitStack() as parts:
            parts.enter_context(stop.on_signals())
            ledger = await parts.enter_async_context(_open_ledger(settings, stop))
            await _tables(ledger, settings)
            if before is not None:
                await before(ledger)
            if text is not None:
                await _keep_fleet(ledger, text)
            fleets = Fleets(ledger, _parser(serving.fleet_file))
            fleet = (await fleets.current()).name or None
            # Who leaves the tables to others has no disk where anybody would look for a token.
            made = settings.migrate and await make_first_admin(ledger, settings.state_dir)
            registry = _registry()
            engines, wakeup = Engines(), Wakeup()
            if settings.serve == "loops":
                app = create_own_app(ledger, registry)
            else:
                policy = policy_parts(_folder(serving.fleet_file), engines, ledger)
                jobs = await parts.enter_async_context(job_parts(ledger, engines, fleets, wakeup))
                app = create_app(ledger, registry, fleets, policy, jobs)
                add_pages(app, ledger, fleets, policy, jobs, settings)
            if settings.serve != "api":
                runner = Runner(ledger, engines, settings, registry, fleets, wakeup=wakeup)
                await parts.enter_async_context(_running(runner.run(), "the runner of loops", stop))
            web = UvicornServer(serving, app)
            await parts.enter_async_context(web.running(listener, stop))
            parts.callback(stop_pages, app)  # open pages listen for ever: the web server would wait for them
            token_file = settings.state_dir / ADMIN_TOKEN
            started = Started(own_url(serving, listener), fleet, token_file, made, settings.serve != "loops")
            tell(started)
            if beside is not None:
                running = _running(beside(started, engines), "what runs beside the server", stop)
                await parts.enter_async_context(running)
            await stop.wait()
            log.info("stopping")
    except asyncio.CancelledError:
        if not stop.asked:
            raise
    stop.raise_failure()


async def _tables(ledger: Ledger, settings: Settings) -> None:
    """Migrate the tables, or wait until they are migrated. Raises LedgerNotMigrated if they never are."""
    if settings.migrate:
        await ledger.migrate()
        return
    for second in range(_TABLES_SECONDS):
        try:
            await ledger.ready()
        except LedgerNotMigrated as error:
            if second == 0:
                log.warning("waiting for the ledger's tables", code=error.code, hint=error.hint)
            await asyncio.sleep(1)
        else:
            break
    await ledger.ready()
    version = await ledger.table_version()
    if version.current is not None and version.current > version.newest:
        # As during a rolling upgrade: tables only gain columns and tables within one release.
        log.warning("the ledger's tables are a newer Fairway's", step=version.current, known=version.newest)


@asynccontextmanager
async def _running(work: Coroutine[None, None, None], name: str, stop: Stop) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    stop.watch(task)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=_LOOPS_END_SECONDS)


@asynccontextmanager
async def _open_ledger(settings: Settings, stop: Stop) -> AsyncIterator[Ledger]:
    url, own = settings.database_url, None
    if url is None:
        log.info("starting the embedded PostgreSQL", folder=str(settings.state_dir / "postgres"))
        own = await asyncio.to_thread(embedded.start, settings.state_dir / "postgres")
        url, stop.at_once = own.url, own.stop
    try:
        ledger = await Ledger.connect(url)
        if settings.archive_url is not None:
            ledger.usage.use_archive(settings.archive_url)
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
    revision = await ledger.revisions.keep(text, fleet_digest(text), "fairway server")
    log.info("fleet kept", revision=revision.id)


def _parser(file: Path | None) -> Callable[[Revision], Fleet]:
    """Make the function that parses revisions; relative paths in them count from the server's folder."""
    folder = _folder(file)

    def parse(revision: Revision) -> Fleet:
        return parse_fleet(revision.text, f"fleet revision {revision.id}", folder)

    return parse


def _folder(file: Path | None) -> Path:
    """Return the folder that relative paths refer to: the file's, or the current directory."""
    return file.absolute().parent if file else Path.cwd()


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
