"""A real PostgreSQL for whoever asks: one server a session, a fresh migrated database a test."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import secrets
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from fairway.ledger import Ledger, embedded
from tests.waiting import until

pytest_plugins = ["tests.tier", "tests.timing"]

_numbers = itertools.count(1)

# Started in the background of a script, a shell has SIGINT ignored, and so would everything tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Told to end, tests end what they have started: servers in sessions of their own would outlive them.
signal.signal(signal.SIGTERM, signal.default_int_handler)

_SHARED = ("slurm-24", "slurm-26", "kubernetes")


def _group(nodeid: str) -> str:
    """The cluster of the lab that a test moves, else its file."""
    file, _, test = nodeid.partition("::")
    # Most say which by their parameter; a module that has only one cluster says so by its name.
    module = file.rpartition("/")[2] if "/integration/" in file else ""
    return next((name for name in _SHARED if name in test.partition("[")[2] or name in module), file)


class ByCluster(LoadScopeScheduling):
    """Tests that move one cluster of the lab never run at the same time; others go file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # they come in the order below
    return ByCluster(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, the longest first: clusters of the lab (they mostly wait), slow files, large files."""
    if hasattr(config, "workerinput"):
        group = {item: _group(item.nodeid) for item in items}
        sizes = Counter(group.values())
        usual = float(config.getini("timeout"))
        slow = {group[item] for item in items if _longest(item, usual) > usual}
        items.sort(key=lambda i: (group[i] not in _SHARED, group[i] not in slow, -sizes[group[i]]))


def _longest(item: pytest.Item, usual: float) -> float:
    mark = item.get_closest_marker("timeout")
    return usual if mark is None else float(mark.args[0])


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from what was imported: it lives as long as the session."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """FAIRWAY_TEST_DATABASE_URL (a superuser's), else the embedded server in a folder of its own."""
    given = os.environ.get("FAIRWAY_TEST_DATABASE_URL")
    if given:
        yield given
        return
    memory = Path("/dev/shm")  # what is written here never reaches a disk
    folder = Path(tempfile.mkdtemp(prefix="fairway-test-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o711)  # as root, the server runs as somebody else and must get in
    server = embedded.start(folder / "postgres")
    with psycopg.connect(server.url, autocommit=True) as admin:  # nothing here need survive a power cut
        admin.execute("ALTER SYSTEM SET fsync = off")
        admin.execute("SELECT pg_reload_conf()")
    try:
        yield server.url
    finally:  # an immediate end: nobody will read the databases again, so they need not be written out
        postmaster = int((folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGQUIT)
        until(lambda: not Path(f"/proc/{postmaster}").exists(), 30, "the end of PostgreSQL", pause=0.02)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def make_database(postgres_url: str) -> Iterator[Callable[[str | None], str]]:
    """Makes databases, empty or as copies of another, and drops them all at the end."""
    made: list[str] = []
    with psycopg.connect(postgres_url, autocommit=True) as admin:

        def make(template: str | None) -> str:
            name = f"fairway_test_{os.getpid()}_{next(_numbers)}"
            source = urlsplit(template).path[1:] if template else "template0"
            # A quarter of the time of the default, which writes every page to the log as well.
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" STRATEGY FILE_COPY')
            made.append(name)
            url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
            if (
                template
            ):  # a copy is another ledger: on one cluster neither may take the other's jobs for its own
                with psycopg.connect(url, autocommit=True) as own:
                    own.execute("UPDATE ledger_mark SET mark = %s", (secrets.token_hex(2),))
            return url

        yield make
        # The embedded server's whole folder goes, which is quicker.
        for name in made if os.environ.get("FAIRWAY_TEST_DATABASE_URL") else ():
            admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def migrated_url(make_database: Callable[[str | None], str]) -> str:
    """A migrated database that nobody writes to: the template of the others."""

    async def migrate(url: str) -> None:
        ledger = await Ledger.connect(url)
        await ledger.migrate()
        await ledger.close()

    url = make_database(None)
    asyncio.run(migrate(url))
    return url


@pytest.fixture
def empty_database_url(make_database: Callable[[str | None], str]) -> Iterator[str]:
    """A database with nothing in it."""
    url = make_database(None)
    yield url
    _drop(url)


@pytest.fixture
def database_url(make_database: Callable[[str | None], str], migrated_url: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    url = make_database(migrated_url)
    yield url
    _drop(url)


def _drop(url: str) -> None:
    """Drop a database at once: a thousand of them would fill the memory they are in."""
    parts = urlsplit(url)
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as admin:
        admin.execute(f'DROP DATABASE IF EXISTS "{parts.path[1:]}" WITH (FORCE)')


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """An open ledger on a migrated database of this test's own."""
    opened = await Ledger.connect(database_url)
    yield opened
    await opened.close()
