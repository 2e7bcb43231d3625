"""Builds the parts of a server, starts them in order, and ends them in the reverse."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from fairway.api.app import create_app, create_own_app
from fairway.control import Runner
from fairway.control.bell import Bell
from fairway.files import fleet_digest, parse_fleet, read_fleet
from fairway.ledger import Ledger, LedgerNotMigrated, Revision, embedded
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.settings import Settings
from fairway.web.app import add_pages, stop_pages
from fairway.wiring.door import Serving, check_door, listening, own_url
from fairway.wiring.engines import Engines
from fairway.wiring.first_admin import ADMIN_TOKEN, make_first_admin
from fairway.wiring.jobs import job_parts
from fairway.wiring.policy import policy_parts
from fairway.wiring.stopping import Stop
from fairway.wiring.web import Web

_LOOPS_END_SECONDS: Final = 8
_TABLES_SECONDS: Final = 60
"""How long a server that leaves the tables to somebody else waits for them before it gives up."""
_REVISIONS_KEPT: Final = 8

log = structlog.get_logger("fairway.server")


@dataclass(frozen=True, slots=True)
class Started:
    """What a server that just started tells whoever started it."""

    url: str
    fleet: str | None
    admin_token_file: Path
    """Where a server keeps the token it makes on a ledger without any; need not exist."""
    made_admin: bool
    """Whether this start made it."""
    answers: bool = True
    """Whether it serves the API, or only looks after clusters."""


Beside = Callable[[Started, Engines], Coroutine[None, None, None]]
"""What runs in a server's process as long as it does; if it ends by itself, so does the server."""
Before = Callable[[Ledger], Coroutine[None, None, None]]
"""What is done with a ledger before anybody else is let to it."""


def serve(
    serving: Serving,
    tell: Callable[[Started], None],
    beside: Beside | None = None,
    before: Before | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT. Raises FairwayError if it cannot start."""
    # Whatever can be found wrong without starting anything is found first.
    text = _checked_text(serving.fleet_file) if serving.fleet_file else None
    check_door(serving)
    collect_garbage_less_often()
    with listening(serving.settings) as listener:
        asyncio.run(_serve(serving, text, listener, tell, beside, before))


def collect_garbage_less_often() -> None:
    """A plan makes a hundred thousand values that live; looking at them every 700 is a third of its time."""
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
            parse = _parser(serving.fleet_file)
            newest = await ledger.fleet()
            fleet = parse(newest).name if newest else None
            # Who leaves the tables to others has no disk where anybody would look for a token.
            made = settings.migrate and await make_first_admin(ledger, settings.state_dir)
            registry = _registry()
            engines, bell = Engines(), Bell()
            if settings.serve == "loops":
                app = create_own_app(ledger, registry)
            else:
                policy = policy_parts(_folder(serving.fleet_file), engines, ledger)
                jobs = await parts.enter_async_context(job_parts(ledger, engines, parse, bell))
                app = create_app(ledger, registry, parse, policy, jobs)
                add_pages(app, ledger, app.state.fleets, policy, jobs, settings)
            if settings.serve != "api":
                runner = Runner(ledger, engines, settings, registry, parse, bell=bell)
                await parts.enter_async_context(_running(runner.run(), "the runner of loops", stop))
            web = Web(serving, app)
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
    """Bring the tables forward, or wait for whoever does; raises LedgerNotMigrated if nobody did."""
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
            ledger.use_archive(settings.archive_url)
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
    revision = await ledger.keep_fleet(text, fleet_digest(text), "fairway server")
    log.info("fleet kept", revision=revision.id)


def _parser(file: Path | None) -> Callable[[Revision], Fleet]:
    """Reads revisions, each once: every loop of every cluster asks, and a large fleet takes a second."""
    folder = _folder(file)

    @lru_cache(maxsize=_REVISIONS_KEPT)
    def parse(revision: Revision) -> Fleet:
        return parse_fleet(revision.text, f"fleet revision {revision.id}", folder)

    return parse


def _folder(file: Path | None) -> Path:
    """Where relative paths count from: the file's folder, or where the server was started."""
    return file.absolute().parent if file else Path.cwd()


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
