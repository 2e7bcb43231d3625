"""A ledger of a benchmark's own, in an embedded PostgreSQL, and the processes that serve it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg

from fairway.ledger import Ledger, embedded
from fairway.ledger.connection import ConnectionLimits


@contextmanager
def own_server() -> Iterator[tuple[str, Path]]:
    """An empty PostgreSQL and its folder, wiped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fairway-bench-"))
    folder.chmod(0o711)  # as root, the server runs as somebody else and must get in
    server = embedded.start(folder / "postgres")
    try:
        yield server.url, folder
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def own_ledger() -> AsyncIterator[tuple[Ledger, str]]:
    """An empty ledger with a single connection, and its URL."""
    with own_server() as (url, _):
        ledger = await Ledger.connect(url, ConnectionLimits(connections=1))
        await ledger.migrate()
        yield ledger, url
        await ledger.close()


def backends(url: str) -> list[int]:
    """The processes of PostgreSQL that serve Fairway's connections."""
    with psycopg.connect(url) as db:
        wanted = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fairway'"
        return [pid for (pid,) in db.execute(wanted)]
