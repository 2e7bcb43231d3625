"""Real PostgreSQL: the machine's own, on a data folder of the instance's."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from lab import apt, processes
from lab.errors import LabError
from lab.instance import Instance
from lab.kinds import Command
from lab.programs import output_of
from lab.progress import step
from lab.versions import POSTGRES_PACKAGE
from lab.waiting import wait_until

INSTALLED = Path("/usr/lib/postgresql")
ROLE = DATABASE = "fairway"
MAX_SOCKET_PATH_LENGTH = 107
SETTINGS = {"listen_addresses": "127.0.0.1", "max_connections": "300", "logging_collector": "off"}


class Postgres:
    """The kind `postgres`."""

    options: Mapping[str, int] = {}
    variables: Mapping[str, str] = {"url": "DATABASE_URL"}

    @property
    def versions(self) -> Sequence[str]:
        if not (found := _installed()):
            with step(f"Install {POSTGRES_PACKAGE}"):
                apt.install(POSTGRES_PACKAGE)
            found = _installed()
        return found

    def up(self, instance: Instance) -> None:
        instance.reserve(sql=1)
        if not (_data(instance) / "PG_VERSION").exists():
            with step(f"{instance.name}: a new database"):
                _initialise(instance)
        if not instance.daemon("postgres"):
            with step(f"{instance.name}: postgres"):
                self.start(instance, "postgres")
        known = _ask(instance, f"select 1 from pg_database where datname = '{DATABASE}'")
        if not known.stdout:
            instance.run("createdb", DATABASE)

    def down(self, instance: Instance) -> None:
        # SIGINT: no new connections, running ones end now; SIGTERM would wait for clients to leave.
        instance.end("postgres", patience=30, ask=signal.SIGINT)

    def daemons(self, instance: Instance) -> Sequence[str]:
        return ("postgres",)

    def start(self, instance: Instance, daemon: str) -> None:
        _clear_after_a_crash(instance)
        settings = {
            **SETTINGS,
            "port": str(instance.port("sql")),
            "unix_socket_directories": _socket(instance),
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command: list[str | Path] = [
            *_unprivileged(instance),
            _bin(instance) / "postgres",
            "-D",
            _data(instance),
            *flags,
        ]
        instance.launch(daemon, command, env=_environment(instance))

        def ready() -> bool:
            if not instance.daemon(daemon):
                raise LabError("postgres ended at once", instance.last_words(daemon))
            return _ask(instance, "select 1").returncode == 0

        wait_until(ready, 60, "postgres does not answer", why=lambda: instance.last_words(daemon))

    def facts(self, instance: Instance) -> dict[str, str]:
        password = _password(instance).read_text()
        where = f"127.0.0.1:{instance.port('sql')}/{DATABASE}"
        return {"url": f"postgresql+psycopg://{ROLE}:{password}@{where}"}

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        own = _bin(instance) / argv[0]  # Debian's wrappers in the PATH would look for clusters of their own
        program = str(own) if own.exists() else argv[0]
        return Command([program, *argv[1:]], {**os.environ, **_environment(instance)})


def _clear_after_a_crash(instance: Instance) -> None:
    """End what a killed server left, then drop its lock files: the pid may be a zombie's."""
    processes.end(instance.processes())
    for lock in (_data(instance) / "postmaster.pid", *(instance.folder / "socket").glob(".s.PGSQL.*.lock")):
        lock.unlink(missing_ok=True)


def _installed() -> list[str]:
    found = [server.parent.parent.name for server in INSTALLED.glob("*/bin/postgres")]
    return sorted(found, key=float, reverse=True)


def _bin(instance: Instance) -> Path:
    return INSTALLED / instance.version / "bin"


def _data(instance: Instance) -> Path:
    return instance.folder / "data"


def _password(instance: Instance) -> Path:
    return instance.folder / "password"


def _socket(instance: Instance) -> str:
    """The folder of the socket, where no password is asked; none if its name were too long for one."""
    folder = instance.folder / "socket"
    return str(folder) if len(str(folder / ".s.PGSQL.65535")) <= MAX_SOCKET_PATH_LENGTH else ""


def _environment(instance: Instance) -> dict[str, str]:
    return {
        "PATH": f"{_bin(instance)}:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(instance.port("sql")),
        "PGUSER": ROLE,
        "PGPASSWORD": _password(instance).read_text(),
        "PGDATABASE": DATABASE,
    }


def _ask(instance: Instance, query: str) -> CompletedProcess[str]:
    """Ask the server itself: its own database is there before ours."""
    return instance.run("psql", "--dbname=postgres", "-Atc", query, check=False)


def _owner() -> str | None:
    """Who runs the server: PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _unprivileged(instance: Instance) -> list[str]:
    owner = _owner()
    if owner is None:
        return []
    entry = pwd.getpwnam(owner)
    drop = [
        "setpriv",
        f"--reuid={entry.pw_uid}",
        f"--regid={entry.pw_gid}",
        "--clear-groups",
        "--no-new-privs",
    ]
    if any(not folder.stat().st_mode & 0o001 for folder in instance.folder.parents):
        # Below root's own home: let the server pass through folders that are closed to others.
        drop += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return drop


def _initialise(instance: Instance) -> None:
    password = _password(instance)
    password.touch(mode=0o600)
    password.write_text(secrets.token_urlsafe(24))
    shutil.rmtree(_data(instance), ignore_errors=True)  # of one that was cut short
    own = (_data(instance), instance.folder / "socket")
    for folder in own:
        folder.mkdir(exist_ok=True, mode=0o700)
    if owner := _owner():
        for path in (*own, password):  # initdb reads the password too
            shutil.chown(path, owner, pwd.getpwnam(owner).pw_gid)
    auth = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}"]
    names = [f"--username={ROLE}", "--encoding=UTF8", "--locale=C.UTF-8"]
    initdb: list[str | Path] = [*_unprivileged(instance), _bin(instance) / "initdb", "-D", _data(instance)]
    output_of(*initdb, *names, *auth)


KIND = Postgres()
