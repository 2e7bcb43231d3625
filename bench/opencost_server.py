"""A real `fairway server` with a ledger of its own, and what its reports say in the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.opencost_money import Allocation
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Fleet
from lab import LabError
from lab.waiting import wait_until

FAIRWAY = (sys.executable, "-m", "fairway.cli")
START_SECONDS = 120
STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class FairwayServer:
    """Where it answers, and the administrator's token."""

    url: str
    token: str

    def costs(self) -> Allocation:
        """What its reports say of all it has ever seen."""
        found = Allocation("Fairway: `report cost`, to the cent")
        for row in self._report("cost", "team")["rows"]:
            if row["kind"] is None:
                found.cost[row["labels"][0]] = float(row["usage"])
        for row in self._report("usage", "team", "slice")["rows"]:
            team, slice_ = row["labels"]
            if not slice_:
                found.gpu_seconds[team] = float(row["device_seconds"])
        for row in self._report("cost", "slice")["rows"]:
            if row["kind"] is None and row["labels"][0]:
                found.slices += float(row["usage"])
        return found

    def _report(self, what: str, *by: str) -> Any:
        words = urllib.parse.urlencode([("window", "2d"), *(("by", label) for label in by)])
        ask = urllib.request.Request(
            f"{self.url}/v1/reports/{what}?{words}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(ask, timeout=60) as answer:
            return json.loads(answer.read(10_000_000))


@contextmanager
def fairway_server(fleet: Fleet, folder: Path) -> Iterator[FairwayServer]:
    """One that has applied the fleet. It ends with the block, and its PostgreSQL with it."""
    folder.mkdir(parents=True)
    folder.chmod(0o711)  # as root, PostgreSQL runs as somebody else and must get in
    file = folder / "fleet.yaml"
    file.write_text(compose_fleet(fleet))
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(folder),
        "FAIRWAY_CONFIG_DIR": str(folder / "config"),
        "FAIRWAY_STATE_DIR": str(folder / "state"),
        "FAIRWAY_OBSERVE_SECONDS": "1",
    }
    log = folder / "log"
    words = [*FAIRWAY, "server", "-f", str(file), "--listen", "127.0.0.1:0"]
    with log.open("w") as out:
        server = subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        url = _url(server, log)
        token = (folder / "state" / "admin.token").read_text().strip()
        asked = env | {"FAIRWAY_URL": url, "FAIRWAY_TOKEN": token}
        apply = [*FAIRWAY, "apply", "-f", str(file), "--force", "--yes"]
        done = subprocess.run(apply, env=asked, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise LabError("the fleet was not applied", (done.stdout + done.stderr)[-800:])
        yield FairwayServer(url, token)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(STOP_SECONDS)


def _url(server: subprocess.Popen[bytes], log: Path) -> str:
    def found() -> re.Match[str] | None:
        return re.search(r"^fairway .* on (http\S+)$", log.read_text(), re.MULTILINE)

    def started() -> bool:
        if server.poll() is not None:
            raise LabError("fairway server ended at once", log.read_text()[-800:])
        return found() is not None

    wait_until(started, START_SECONDS, "fairway server does not start", why=lambda: log.read_text()[-800:])
    match = found()
    return match[1] if match else ""
