"""Build the parts of a server, start them in order, and stop them in reverse."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from fairway.api.app import create_app
from fairway.api.forward import EngineServer
from fairway.control import Runner
from fairway.files import parse_fleet, read_fleet
from fairway.ledger import Ledger, LedgerNotMigrated, embedded
from fairway.model.errors import FairwayError
from fairway.server.embedded import EmbeddedWatch
from fairway.server.engines import EngineFactory
from fairway.server.first_admin import ADMIN_TOKEN, make_first_admin
from fairway.server.fleet_file import keep_fleet_file
from fairway.server.listen import ServerOptions, check_engine_server, listening, own_url, require_tls
from fairway.server.services import build_job_services, build_policy_services
from fairway.server.shutdown import Shutdown
from fairway.server.uvicorn import UvicornServer
from fairway.services.fleets import Fleets
from fairway.services.jobs import OpenJobLimits
from fairway.services.wakeup import Wakeup
from fairway.settings import Settings
from fairway.simulate.garbage import collect_garbage_less_often
from fairway.web.app import add_pages, stop_pages

_LOOPS_END_SECONDS: Final = 8
_TABLES_SECONDS: Final = 60
"""How long a server with `migrate: no` waits for the tables before it gives up."""

log = structlog.get_logger("fairway.server")


@dataclass(frozen=True, slots=True)
class StartedServer:
    """What a server reports to its caller once it has started."""

    url: str
    fleet: str | None
    admin_token_file: Path
    """Where a server stores the token that it creates on an empty ledger; may not exist."""
    made_admin: bool
    """Whether this start created it."""
    answers: bool = True
    """Whether it serves the API, or only runs loops."""


SideTask = Callable[[StartedServer, EngineFactory], Coroutine[None, None, None]]
"""A coroutine that runs as long as the server; if it ends, the server stops."""
PrepareLedger = Callable[[Ledger], Coroutine[None, None, None]]
"""A coroutine that prepares the ledger before the server uses it."""


def serve(
    options: ServerOptions,
    on_started: Callable[[StartedServer], None],
    side_task: SideTask | None = None,
    prepare: PrepareLedger | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT. Raises FairwayError if it cannot start."""
    # Check everything that can be checked before anything is started.
    text = None
    if options.fleet_file:
        read_fleet(options.fleet_file)  # raises InvalidFile with every fault
        text = options.fleet_file.read_text(encoding="utf-8")
    require_tls(options)
    check_engine_server(options)
    collect_garbage_less_often()
    with listening(options.settings) as listener:
        asyncio.run(_serve(options, text, listener, on_started, side_task, prepare))


async def _serve(
    options: ServerOptions,
    text: str | None,
    listener: socket.socket,
    on_started: Callable[[StartedServer], None],
    side_task: SideTask | None,
    prepare: PrepareLedger | None,
) -> None:
    settings, folder = options.settings, options.base_folder
    stop = Shutdown()
    try:
        async with AsyncExitStack() as parts:
            parts.enter_context(stop.on_signals())
            ledger, for_loops = await parts.enter_async_context(_open_ledger(settings, stop))
            await _prepare_tables(ledger, settings)
            if prepare is not None:
                await prepare(ledger)
            fleets = Fleets(
                ledger, lambda r: parse_fleet(r.text, f"fleet revision {r.id}", folder, stored=True)
            )
            if text is not None:
                wanted = parse_fleet(text, str(options.fleet_file), folder)
                await keep_fleet_file(ledger, fleets, wanted, text, str(options.fleet_file))
            fleet = (await fleets.current()).name or None
            # A server that does not migrate the tables has no disk where anybody would look for a token.
            made = settings.migrate and await make_first_admin(ledger, settings.state_dir)
            registry = CollectorRegistry()
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=registry)
            engines, wakeup = EngineFactory(settings.engine_server), Wakeup()
            if options.insecure_listen and settings.public_url is None and settings.serve != "loops":
                log.warning(
                    "pages do not know that something in front speaks TLS",
                    hint="set  public_url: https://HOST , or have it send X-Forwarded-Proto",
                )
            policy = build_policy_services(folder, engines, ledger)
            limits = OpenJobLimits(settings.max_open_jobs_user, settings.max_open_jobs_team)
            jobs = await parts.enter_async_context(
                build_job_services(ledger, engines, fleets, wakeup, limits)
            )
            engine_server = None
            if settings.engine_server is not None:
                engine_server = EngineServer(settings.engine_server, settings.engine_server_ca)
                parts.push_async_callback(engine_server.close)
            app = create_app(ledger, registry, fleets, policy, jobs, engine_server)
            loops_only = settings.serve == "loops"
            add_pages(app, ledger, fleets, policy, jobs, settings, only_engine_routes=loops_only)
            if settings.serve != "api":
                runner = Runner(for_loops, engines, settings, registry, fleets, wakeup=wakeup)
                await parts.enter_async_context(_background(runner.run(), "the runner of loops", stop))
            web = UvicornServer(options, app)
            await parts.enter_async_context(web.running(listener, stop))
            parts.callback(stop_pages, app)  # open pages never disconnect: the web server would wait for them
            token_file = settings.state_dir / ADMIN_TOKEN
            started = StartedServer(
                own_url(options, listener), fleet, token_file, made, settings.serve != "loops"
            )
            on_started(started)
            if side_task is not None:
                running = _background(side_task(started, engines), "what runs beside the server", stop)
                await parts.enter_async_context(running)
            await stop.wait()
            log.info("stopping")
    except asyncio.CancelledError:
        if not stop.requested:
            raise
    stop.raise_failure()


async def _prepare_tables(ledger: Ledger, settings: Settings) -> None:
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
async def _background(work: Coroutine[None, None, None], name: str, stop: Shutdown) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    stop.watch(task)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=_LOOPS_END_SECONDS)


@asynccontextmanager
async def _open_ledger(settings: Settings, stop: Shutdown) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """Connect twice: for requests, and for loops, which keep their leases however many requests come."""
    url, own = settings.database_url, None
    if url is None:
        log.info("starting the embedded PostgreSQL", folder=str(settings.state_dir / "postgres"))
        own = await asyncio.to_thread(embedded.start, settings.state_dir / "postgres")
        url, stop.stop_children = own.url, own.stop
    try:
        async with _connected(url, settings) as ledger, _connected(url, settings) as for_loops:
            if own is None:
                yield ledger, for_loops
            else:
                watch = EmbeddedWatch(own, ledger)
                async with _background(watch.run(), "the watch over the embedded PostgreSQL", stop):
                    yield ledger, for_loops
    finally:
        if own is not None:
            await asyncio.to_thread(_stop_embedded, own)


@asynccontextmanager
async def _connected(url: str, settings: Settings) -> AsyncIterator[Ledger]:
    ledger = await Ledger.connect(url)
    if settings.archive_url is not None:
        ledger.usage.use_archive(settings.archive_url)
    try:
        yield ledger
    finally:
        await ledger.close()


def _stop_embedded(own: embedded.EmbeddedPostgres) -> None:
    try:
        own.stop()
    except FairwayError as error:  # logged only: the server itself stopped properly
        log.warning(error.message, code=error.code, hint=error.hint)
