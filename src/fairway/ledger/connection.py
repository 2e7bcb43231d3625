"""Connect to PostgreSQL: a small pool, time limits on both sides, driver errors mapped to Fairway's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import URL, Executable, make_url, text
from sqlalchemy import exc as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fairway.ledger.errors import InvalidText, LedgerBusy, LedgerNotMigrated, LedgerRefused, LedgerUnreachable
from fairway.ledger.sql_values import AnyRow
from fairway.model.errors import FairwayError


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Time limits of calls, and the number of connections one server holds."""

    connections: int = 12
    connect_seconds: int = 5
    call_seconds: float = 15
    """For a whole call, including the wait for a connection; holds even if the network drops packets."""
    statement_seconds: float = 10
    lock_seconds: float = 3
    idle_in_transaction_seconds: float = 10


_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""When whoever asked stops waiting, by the clock of the event loop."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Give all calls inside together no more than `seconds`: nobody waits for what takes longer."""
    before = _DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(before)


class Connections:
    """A bounded pool of connections to one database."""

    def __init__(self, url: str, limits: ConnectionLimits) -> None:
        parsed = _parse(url)
        self.url = url
        """May contain a password: not to be printed."""
        self.limits = limits
        self._address = _address(parsed)
        self._engine = _engine(parsed, limits)
        # Shares the pool; saves BEGIN and COMMIT around what is one statement anyway.
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def single(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for one statement, in autocommit mode."""
        async with self._bounded(seconds), self._single.connect() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a transaction for several statements; it is rolled back if the body raises."""
        async with self._bounded(seconds), self._engine.begin() as connection:
            yield connection

    async def check_writable(self, connection: AsyncConnection) -> None:
        """Raise LedgerUnreachable if the server takes no writes: a standby after a failover."""
        if (await connection.execute(text("SHOW transaction_read_only"))).scalar_one() == "on":
            raise _unreachable(self._address, "it is read-only")

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def _bounded(self, seconds: float | None) -> AsyncIterator[None]:
        limit = self.limits.call_seconds if seconds is None else seconds
        if (ends := _DEADLINE.get()) is not None:
            limit = min(limit, ends - asyncio.get_running_loop().time())
            if limit <= 0:
                raise _busy("the time limit of this request was reached")
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        with _map_errors(self._address):
            try:
                async with asyncio.timeout(limit) as clock:
                    yield
            except (TimeoutError, sa.DBAPIError) as error:
                # Cancelled in the middle of the check of a connection, SQLAlchemy sets its mode back, which
                # fails, and the failure hides that it was cancelled.
                if task is not None and task.cancelling() > cancelled:
                    raise asyncio.CancelledError from error
                if not clock.expired():
                    raise
                raise _unreachable(self._address, f"no answer within {limit:g} s") from error


class OneConnection(Connections):
    """A `Connections` that always returns one connection: taking and checking one costs more than a query."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def single(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        del seconds  # the caller's connection is bounded already
        yield self._connection


class LedgerStore:
    """The queries and writes of one subject, on a pool of connections."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def _fetch(
        self, statement: Executable, values: Mapping[str, Any] | None = None
    ) -> Sequence[AnyRow]:
        """Run one statement. Returns its rows."""
        async with self._connections.single() as connection:
            return (await connection.execute(statement, values)).all()

    async def _fetch_first(
        self, statement: Executable, values: Mapping[str, Any] | None = None
    ) -> AnyRow | None:
        """Run one statement. Returns its first row, or None if there is none."""
        async with self._connections.single() as connection:
            return (await connection.execute(statement, values)).first()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except sa.ArgumentError as error:
        raise _bad_url("it is not a URL") from error
    except ValueError:
        raise _bad_url("its port is not a number") from None  # the cause would show the URL
    if parsed.drivername not in {"postgresql", "postgres", "postgresql+psycopg"}:
        raise _bad_url(f"it begins with {parsed.drivername}://")
    return parsed.set(drivername="postgresql+psycopg")


def _address(url: URL) -> str:
    """Return the URL as messages show it: of its query, which may have a password, the host alone."""
    place = {name: value for name, value in url.query.items() if name in ("host", "port")}
    return url.set(drivername="postgresql", query=place).render_as_string(hide_password=True)


def _bad_url(why: str) -> LedgerRefused:
    # The URL itself is not repeated: a mistyped one may show its password.
    return LedgerRefused(
        "LedgerUrlInvalid",
        f"the database URL cannot be used: {why}",
        "write it as  postgresql://USER:PASSWORD@HOST:5432/DATABASE",
    )


def _engine(url: URL, limits: ConnectionLimits) -> AsyncEngine:
    settings = {
        "statement_timeout": limits.statement_seconds,
        "lock_timeout": limits.lock_seconds,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_seconds,
    }
    configured = url.query.get("options", "")
    options = " ".join(
        [
            *([configured] if isinstance(configured, str) else configured),
            *(f"-c {name}={round(seconds * 1000)}" for name, seconds in settings.items()),
            "-c timezone=UTC",
            # The plan of a statement depends on its values: how many jobs a name or a team has. PostgreSQL's
            # generic plan, which it takes after ten runs, was up to 60 times as slow.
            "-c plan_cache_mode=force_custom_plan",
        ]
    ).strip()
    return create_async_engine(
        url.difference_update_query(["options"]),
        pool_size=limits.connections,
        max_overflow=0,
        pool_timeout=limits.call_seconds,
        pool_pre_ping=True,
        pool_recycle=1800,
        # Parameters are users' commands and environments, and a failed statement is logged.
        hide_parameters=True,
        connect_args={
            "connect_timeout": limits.connect_seconds,
            "options": options,
            "application_name": "fairway",
            # A peer that vanished without closing is noticed in seconds, not in the kernel's two hours.
            "tcp_user_timeout": round(limits.call_seconds * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )


# SQLSTATEs. Serialization and deadlock, lock not available, cancelled by a time limit, too long idle.
_BUSY = frozenset({"40001", "40P01", "55P03", "57014", "25P03"})
# Authorization, password, unknown database, missing rights.
_REFUSED = frozenset({"28000", "28P01", "3D000", "42501"})
_REFUSED_PHRASES = ("authentication failed", "does not exist", "no pg_hba.conf entry")
# Table or column missing.
_MISSING = frozenset({"42P01", "42703"})


@contextmanager
def _map_errors(address: str) -> Iterator[None]:
    try:
        yield
    except sa.TimeoutError as error:
        raise _busy("every connection of this server is in use") from error
    except UnicodeEncodeError as error:
        raise _invalid_text() from error
    except sa.DBAPIError as error:
        mapped = _mapped(error, address)
        if mapped is None:
            raise
        raise mapped from error


def _mapped(error: sa.DBAPIError, address: str) -> FairwayError | None:
    """Map a driver error to one of Fairway's. Returns None for a bug of ours, which is not hidden."""
    cause = error.orig
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    message = str(cause).strip().partition("\n")[0]
    if state in _BUSY:
        return _busy(message)
    if state in _MISSING:
        return not_migrated()
    # Before a session exists there is no state: libpq only gives a message.
    connecting = state is None and isinstance(cause, psycopg.OperationalError)
    if isinstance(cause, psycopg.DataError) and (state == "22021" or "NUL" in message):
        return _invalid_text()
    if state in _REFUSED or (connecting and any(phrase in message for phrase in _REFUSED_PHRASES)):
        return LedgerRefused(
            "LedgerRefused",
            f"the ledger at {address} refuses: {message}",
            "correct the user, password or database in FAIRWAY_DATABASE_URL or FAIRWAY_DATABASE_URL_FILE",
        )
    # Of a read-only server, a standby after a failover, and of one whose disk fails: as good as away.
    if connecting or state == "25006" or (state or "")[:2] in {"08", "53", "57", "58"}:
        return _unreachable(address, message)
    return None


def _unreachable(address: str, why: str) -> LedgerUnreachable:
    return LedgerUnreachable(
        "LedgerUnreachable",
        f"the ledger at {address} is not reachable: {why}",
        f"check that PostgreSQL is running and reachable from this host:  pg_isready -d '{address}'",
    )


def _invalid_text() -> InvalidText:
    return InvalidText(
        "InvalidText",
        "a text contains a character that cannot be stored: NUL or an unpaired surrogate",
        "remove the character",
    )


def _busy(why: str) -> LedgerBusy:
    return LedgerBusy(
        "LedgerBusy",
        f"the ledger is too busy: {why}",
        "try again; if it continues, check pg_stat_activity for sessions that hold locks",
    )


def not_migrated() -> LedgerNotMigrated:
    """Return the error for tables that are missing or older than this code."""
    return LedgerNotMigrated(
        "LedgerNotMigrated",
        "the ledger's tables are missing or older than this Fairway",
        "upgrade them:  fairway ledger upgrade   (servers do so at start, unless  migrate: no  is set)",
    )
