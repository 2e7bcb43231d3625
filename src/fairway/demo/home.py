"""The temporary home of a demo and its clean-up: a folder, two contexts, a process, a PostgreSQL.

The command that the user started only supervises; the demo itself is its child process. If one of them
dies, the other cleans up; if both are killed, the next demo does. Both hold a lock on the folder, which the
kernel releases with the last of them, so that abandoned folders can be detected.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairway.client.contexts import Context, config_file, read_contexts, write_contexts
from fairway.model.errors import FairwayError, PermanentError

PREFIX: Final = "fairway-demo-"
CONTEXT: Final = "demo"
LOG_FILE: Final = "demo.log"
"""The name of the log in the folder: nothing but progress is printed on the terminal."""
_STOP_SECONDS: Final = 10.0
_UNFINISHED_SECONDS: Final = 60.0
"""A folder without a lock is younger than this if it is being created, older if it was abandoned."""


@dataclass(frozen=True, slots=True)
class DemoHome:
    """A demo's folder, and the file descriptor of the lock that marks it as in use."""

    folder: Path
    lock: int

    @property
    def log_file(self) -> Path:
        """Return the path of the demo's log."""
        return self.folder / LOG_FILE


@contextmanager
def demo_home() -> Iterator[DemoHome]:
    """Create a new folder, and clean up everything in it afterwards."""
    _clean_up_abandoned()
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > 40:  # the path of PostgreSQL's socket has a length limit
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder of our own in it
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    except OSError as error:
        raise PermanentError(
            "NoRoomForDemo", f"cannot make a folder in {base}: {error.strerror}", "set TMPDIR to another one"
        ) from error
    if os.geteuid() == 0:
        folder.chmod(0o711)  # PostgreSQL does not run as root and must be able to traverse it
    lock = os.open(folder / "lock.new", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "lock.new").rename(folder / "lock")
        yield DemoHome(folder, lock)
    finally:
        clean_up(folder)
        os.close(lock)


def clean_up(folder: Path) -> None:
    """Clean up a demo whose process is gone or is this one. Idempotent."""
    with suppress(FairwayError):  # an invalid contexts file is the user's to fix
        _remove_contexts(folder)
    _stop_postgres(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _clean_up_abandoned() -> None:
    """Clean up after demos that were killed."""
    for base in {Path(tempfile.gettempdir()), Path("/tmp")}:  # noqa: S108
        for folder in base.glob(f"{PREFIX}*"):
            with suppress(OSError):
                if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                    continue
                _clean_up_if_abandoned(folder)


def _clean_up_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS:
            clean_up(folder)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        clean_up(folder)
    except BlockingIOError:
        pass  # in use
    finally:
        os.close(lock)


def _stop_postgres(folder: Path) -> None:
    """Stop a PostgreSQL that its server left running, within a time limit."""
    data = folder / "state" / "postgres" / "data"
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    deadline = time.monotonic() + _STOP_SECONDS
    with suppress(ProcessLookupError):
        for number in (signal.SIGINT, signal.SIGQUIT):  # fast shutdown, then immediate
            if not _is_postgres(pid, data):
                return
            os.kill(pid, number)
            while _is_postgres(pid, data) and time.monotonic() < deadline:
                time.sleep(0.05)
            deadline += 2


def _is_postgres(pid: int, data: Path) -> bool:
    """Return whether the process is this folder's PostgreSQL, not another one that reused the pid."""
    try:
        return os.fsencode(data) in Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


# contexts


def add_contexts(home: Path, url: str, token_files: Mapping[str, Path]) -> Mapping[str, str]:
    """Add a context for each user and return their names. `admin` gets `demo` unless the name is taken."""
    path = config_file()
    before = read_contexts(path)
    if not path.exists():
        created = path if path.parent.exists() else [p for p in path.parents if not p.exists()][-1]
        (home / "made-config").write_text(str(created), encoding="utf-8")
    if before.current is not None:
        (home / "current-context").write_text(before.current, encoding="utf-8")
    after, names = before, dict[str, str]()
    for user, file in token_files.items():
        name = CONTEXT if user == "admin" else f"{CONTEXT}-{user}"
        if after.find(name) is not None:
            name = f"{name}-{url.rpartition(':')[2]}"
        names[user] = name
        after = after.adding(Context(name, url, str(file)))
    write_contexts(path, after)
    return names


def is_current_context(name: str) -> bool:
    """Return whether the context `name` is the default of commands that select no server."""
    with suppress(FairwayError):
        return read_contexts(config_file()).current == name and not os.environ.get("FAIRWAY_URL")
    return False


def _remove_contexts(folder: Path) -> None:
    path = config_file()
    contexts = before = read_contexts(path)
    for context in before.entries:
        if context.token_file is not None and Path(context.token_file).is_relative_to(folder):
            contexts = contexts.removing(context.name)
    if contexts == before:
        return
    current = read_if_exists(folder / "current-context")
    if contexts.current is None and current is not None and contexts.find(current) is not None:
        contexts = contexts.using(current)
    created = read_if_exists(folder / "made-config")
    if contexts.entries or created is None:
        write_contexts(path, contexts)
        return
    path.unlink(missing_ok=True)
    with suppress(OSError):  # the folder has other files
        for parent in path.parents:
            if not parent.is_relative_to(created):
                break
            parent.rmdir()


def read_if_exists(path: Path) -> str | None:
    """Read a text file. Returns None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
