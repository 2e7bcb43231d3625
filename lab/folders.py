"""Where the lab keeps things, its locks, and builds that are made once and kept."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from lab import mounts
from lab.errors import LabError

MAX_WAIT_SECONDS = 3600.0  # a build of Kubernetes on a slow machine


def home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    # Resolved, as the kernel shows it in mounts and roots of processes.
    return (Path(cache) if cache else Path.home() / ".cache").resolve() / "fairway-lab"


def instances() -> Path:
    """FAIRWAY_LAB_INSTANCES names another folder, so that CI's never stand among a developer's."""
    other = os.environ.get("FAIRWAY_LAB_INSTANCES")
    return Path(other).resolve() if other else home() / "instances"


def note_instances() -> None:
    """Make this folder of instances known to those who choose ports for another."""
    places = home() / "places"
    for folder in (places, instances()):
        folder.mkdir(parents=True, exist_ok=True)
    (places / sha256(str(instances()).encode()).hexdigest()[:16]).write_text(str(instances()))


def all_instances() -> list[Path]:
    """Every folder of instances that was ever used with these builds and locks, this one among them."""
    noted = {place: Path(place.read_text()) for place in (home() / "places").glob("*")}
    for place, folder in noted.items():
        if not folder.is_dir():
            place.unlink(missing_ok=True)
    return sorted({folder for folder in noted.values() if folder.is_dir()} | {instances()})


def builds() -> Path:
    return home() / "builds"


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Hold the lock of that name; it ends with the process, however that ends."""
    folder = home() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / what).open("a") as handle:
        _lock(handle, what)
        yield


def _lock(handle: IO[str], what: str) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    waiting = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LabError(f"another lab command holds {what}", "it has done so for too long") from None
            if not waiting and time.monotonic() > deadline - MAX_WAIT_SECONDS + 1:
                waiting = True
                print(f"  … another lab command works on {what}; waiting for it", file=sys.stderr, flush=True)
            time.sleep(0.05)
        else:
            return


def built(what: str, version: str, make: Callable[[Path], None]) -> Path:
    """The folder builds/WHAT-VERSION, made by `make(folder)` if it is not there yet.

    It is made under another name and renamed when whole: a killed build is never taken for a good one.
    `make` must not write the folder's path into what it builds.
    """
    name = f"{what}-{version}"
    done = builds() / name
    if done.is_dir():
        return done
    with locked(f"build-{name}"):
        if done.is_dir():  # someone else made it while we waited
            return done
        for stale in builds().glob(f".making-{name}.*"):  # of one that was killed
            shutil.rmtree(stale, ignore_errors=True)
        # The name is new each time: what a killed build left running cannot write into this one.
        making = builds() / f".making-{name}.{secrets.token_hex(4)}"
        making.mkdir(parents=True)
        make(making)
        making.rename(done)
    return done


def remove(folder: Path) -> None:
    """Remove a folder and what is in it, unless something is mounted there."""
    if held := mounts.below(folder):
        raise LabError(f"{folder} is not removed", f"still mounted: {', '.join(map(str, held))}")
    if folder.is_dir():
        shutil.rmtree(folder)
