"""Daemons: how they start, how they are recognised, how they end.

A pid alone says little: the kernel gives it to someone else in time. A process is known by its pid together
with the moment it started and the boot it started in.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
MARK = "FAIRWAY_LAB_INSTANCE"
OPEN_FILES = 262_144

# Children of this very process stay zombies until somebody asks for their end.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Process:
    """One process, never to be confused with a later one of the same pid."""

    pid: int
    started: int  # clock ticks after boot
    boot: str

    @property
    def alive(self) -> bool:
        if child := _children.get(self.pid):
            child.poll()
        return _running(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class Stat:
    state: str
    parent: int
    threads: int
    started: int


def stat(pid: int) -> Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[
        text.rindex(")") + 2 :
    ].split()  # the name in parentheses may hold anything, even a parenthesis
    return Stat(fields[0], parent=int(fields[1]), threads=int(fields[17]), started=int(fields[19]))


@cache
def boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _running(pid: int) -> Process | None:
    seen = stat(pid)
    # A killed process is a zombie while its other threads still end, and has its ports until then.
    gone = seen is None or (seen.state in "ZX" and seen.threads <= 1)
    return None if seen is None or gone else Process(pid, seen.started, boot())


def raise_limits() -> None:
    """Let what we start open many files and start many processes, as far as we may."""
    for what, wanted in (
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, resource.RLIM_INFINITY),
    ):
        _, hard = resource.getrlimit(what)
        for limit in ((wanted, wanted), (hard, hard)):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(what, limit)
                break


# Waits for a word on stdin, then becomes the daemon; ends if whoever starts it dies before saying it.
GATE = ("/bin/sh", "-c", 'read word && exec "$@" </dev/null', "gate")


def start(
    command: Sequence[str | Path],
    *,
    instance: Path,
    record: Path,
    log: Path,
    env: Mapping[str, str],
    cwd: Path | str = "/",
) -> Process:
    """Start a daemon in a session of its own, its output in `log`, marked as part of the instance.

    It runs only once it is on record, so there is never one that nobody remembers.
    """
    raise_limits()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*GATE, *(str(part) for part in command)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=cwd,
            env={**env, MARK: str(instance)},
        )
    _children[child.pid] = child
    seen = stat(child.pid)  # it cannot have vanished: as our child it would be a zombie
    assert seen is not None
    process = Process(child.pid, seen.started, boot())
    remember(process, record)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as gate:
        gate.write(b"go\n")
    return process


def remember(process: Process, record: Path) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    making = record.with_name(f".{record.name}")
    making.write_text(json.dumps(asdict(process)))
    making.rename(record)


def recall(record: Path) -> Process | None:
    """The process of a record, if it is alive."""
    try:
        process = Process(**json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.alive else None


def inside(folder: Path) -> list[Process]:
    """Everything that runs as part of an instance, whoever its parent is by now.

    That is what has its root in the folder, what carries the folder's mark in its environment, and all that
    these started. This process and those above it never count.
    """
    _reap()
    folder = folder.resolve()
    mark = f"{MARK}={folder}".encode()
    children: dict[int, list[int]] = defaultdict(list)
    found: set[int] = set()
    now: dict[int, Process] = {}
    this_boot = boot()
    for pid in _pids():
        seen = stat(pid)
        if seen is None or seen.state in "ZX":
            continue
        now[pid] = Process(pid, seen.started, this_boot)
        children[seen.parent].append(pid)
        if _rooted(pid, folder) or _marked(pid, mark):
            found.add(pid)
    more = list(found)
    while more:
        fresh = [child for child in children[more.pop()] if child not in found]
        found.update(fresh)
        more.extend(fresh)
    return [now[pid] for pid in sorted(found - set(_ourselves()))]


def end(these: Iterable[Process], *, patience: float = 10.0, ask: int = signal.SIGTERM) -> list[Process]:
    """Ask them to end, wait, then make them end. Returns what lives on all the same."""
    left = [process for process in these if process.alive]
    for number, seconds in ((ask, patience), (signal.SIGKILL, 10.0)):
        for process in left:
            process.send(number)
        deadline = time.monotonic() + seconds
        while (left := [process for process in left if process.alive]) and time.monotonic() < deadline:
            time.sleep(0.05)
    return left


def _reap() -> None:
    for pid in [pid for pid, child in _children.items() if child.poll() is not None]:
        del _children[pid]


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208  (names are all we need)


def _rooted(pid: int, folder: Path) -> bool:
    try:
        root = (PROC / str(pid) / "root").readlink()
    except OSError:
        return False
    return root == folder or folder in root.parents


def _marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _ourselves() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        seen = stat(pid)
        pid = seen.parent if seen else 0
