"""A real `fairway server` in a process and folders of its own, and the command line that asks it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

# CI points FAIRWAY_BIN at the built wheel's command, in a venv without the checkout
FAIRWAY = (
    [os.environ["FAIRWAY_BIN"]] if "FAIRWAY_BIN" in os.environ else [sys.executable, "-m", "fairway.cli"]
)
START_SECONDS = 60.0
COMMAND_SECONDS = 180.0
"""A command that takes longer hangs. The demo's tour takes 20 s on a quiet machine."""


class Home:
    """The folders one user has: state, contexts, whatever is written. Nothing outside is touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.token_file = self.state / "admin.token"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(folder),
            "FAIRWAY_CONFIG_DIR": str(folder / "config"),
            "FAIRWAY_STATE_DIR": str(self.state),
            "FAIRWAY_OBSERVE_SECONDS": "1",
            "FAIRWAY_LEASE_SECONDS": "2",
            **{name: os.environ[name] for name in ("LD_PRELOAD", "FAKETIME") if name in os.environ},
        }  # the last two: what `make test-at` sets, one clock for all processes of a test

    def fairway(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return subprocess.run(
            [*FAIRWAY, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )

    def start(self, *arguments: str, **environment: str) -> Server:
        """Start a server and wait until it answers."""
        server = self.launch(*arguments, **environment)
        server.wait_started()
        return server

    def launch(self, *arguments: str, **environment: str) -> Server:
        """Start a server; it may not come up."""
        return Server(self, arguments, self.environment | environment)

    def processes(self) -> list[str]:
        """Everything alive that was started for these folders, PostgreSQL too."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (process / "environ").read_bytes().decode(errors="replace")
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(self.folder) in command + environment and state != "Z":
                found.append(f"{process.name} {command}")
        return found


class Server:
    """One run of `fairway server`."""

    def __init__(self, home: Home, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.log_file = home.folder / f"server-{time.monotonic_ns()}.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*FAIRWAY, "server", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def url(self) -> str:
        found = re.search(r" on (https?://\S+)$", self.log, re.MULTILINE)
        assert found, self.log
        return found[1]

    def wait_started(self) -> None:
        def started() -> bool:
            assert self.process.poll() is None, self.log
            return re.search(r"^fairway .* on http", self.log, re.MULTILINE) is not None

        until(started, START_SECONDS, "the server's start")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 20.0) -> int:
        return self.process.wait(within)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.wait()


@contextmanager
def temporary_home() -> Iterator[Home]:
    """A home that is gone afterwards, with every process that belongs to it."""
    # Short, and open to pass: as root the embedded PostgreSQL runs as somebody else.
    folder = Path(tempfile.mkdtemp(prefix="fw-"))
    folder.chmod(0o711)
    home = Home(folder)
    try:
        yield home
    finally:
        for entry in home.processes():
            try:
                os.kill(int(entry.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(folder, ignore_errors=True)
