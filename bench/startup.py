"""The CPU time of short commands beside that of importing three libraries that any such CLI could need.

The commands read from a demo. CPU time depends less on the load of the machine than elapsed time does.
The bare command is measured before and after each of ours.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figure import Figure, median

BARE: Final = "import click, rich.console, httpx2"
TARGET: Final = 1.5
READY_SECONDS: Final = 180
COMMANDS: Final = ("get pools", "get jobs", "why", "--help")


async def run(size: str) -> list[Figure]:
    rounds = 15 if size == "small" else int(size)
    with tempfile.TemporaryDirectory(prefix="fw-bench-") as home, _demo(Path(home)) as environment:
        waiting = _job_that_waits(environment)
        return [
            _measured(name, [*name.split(), *([waiting] if name == "why" else [])], rounds, environment)
            for name in COMMANDS
        ]


@contextmanager
def _demo(home: Path) -> Iterator[dict[str, str]]:
    """Start a demo without history, and yield the environment in which commands use it."""
    home.chmod(0o711)
    environment = {**os.environ, "FAIRWAY_CONFIG_DIR": str(home), "TMPDIR": str(home)}
    with (home / "demo.log").open("w") as log:
        demo = subprocess.Popen(
            [*_FAIRWAY, "demo", "--days", "0"],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(demo, environment)
        yield environment
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(60)


_FAIRWAY: Final = (sys.executable, "-m", "fairway.cli")


def _wait_until_ready(demo: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
    for _ in range(READY_SECONDS):
        found = subprocess.run(
            [*_FAIRWAY, "get", "jobs", "--state", "waiting", "-o", "json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode == 0 and json.loads(found.stdout):
            return
        try:
            demo.wait(1)
            break
        except subprocess.TimeoutExpired:
            continue
    raise SystemExit("error: the demo did not start\n\nhint: run it by hand:  fairway demo --days 0")


def _job_that_waits(environment: dict[str, str]) -> str:
    found = subprocess.run(
        [*_FAIRWAY, "get", "jobs", "--state", "waiting", "-o", "json"],
        env=environment,
        capture_output=True,
        check=True,
    )
    return str(json.loads(found.stdout)[0]["id"])


def _measured(name: str, words: list[str], rounds: int, environment: dict[str, str]) -> Figure:
    ours, bare = [], []
    for turn in range(rounds + 1):
        before = _cpu_seconds([sys.executable, "-c", BARE], environment)
        own = _cpu_seconds([*_FAIRWAY, *words], environment)
        after = _cpu_seconds([sys.executable, "-c", BARE], environment)
        if turn:  # the first round fills caches
            ours.append(own)
            bare += [before, after]
    return Figure(
        f"startup {name}",
        str(rounds),
        median(ours),
        median(bare),
        "s of CPU",
        TARGET,
        "the interpreter's own start, click, http.client and the request; no pydantic, httpx2, rich or YAML",
        {"least": f"{min(ours):.3f} s against {min(bare):.3f} s", "rounds": rounds},
    )


def _cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)} failed\n\nhint: run it by hand to see why")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
