"""What the browser looks at: a running `fairway demo`, and who may sign in to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from tests.integration.server_process import FAIRWAY, temporary_home
from tests.waiting import until

READY_SECONDS: Final = 240.0
"""Patience, not a promise: tests/integration/server/test_demo.py measures how soon a demo is ready."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where it answers, and the tokens of its people."""

    url: str
    tokens: dict[str, str] = field(repr=False)
    """By context: `demo` is the admin's, `demo-alice` a member's."""

    @property
    def admin(self) -> str:
        return self.tokens["demo"]

    @property
    def member(self) -> str:
        return self.tokens["demo-alice"]

    def ask(self, path: str, **query: Any) -> Any:
        """What the API answers the admin."""
        answer = httpx2.get(
            self.url + path, params=query, headers={"Authorization": f"Bearer {self.admin}"}, timeout=30
        )
        answer.raise_for_status()
        return answer.json()


@contextmanager
def served_demo() -> Iterator[Served]:
    """A demo of its own; or, to save the wait, a running one whose contexts FAIRWAY_DEMO_CONFIG holds."""
    running = os.environ.get("FAIRWAY_DEMO_CONFIG")
    if running:
        yield read_served(Path(running))
        return
    with temporary_home() as home:
        folder = home.folder / "tmp"
        folder.mkdir(mode=0o711)
        log_file = home.folder / "demo.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [*FAIRWAY, "demo", "--quiet"],
                env=home.environment | {"TMPDIR": str(folder)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

        def ready() -> bool:
            assert process.poll() is None, log_file.read_text()
            return re.search("fairway demo is ready", log_file.read_text()) is not None

        try:
            until(ready, READY_SECONDS, "the demo")
            yield read_served(home.folder / "config" / "config.yaml")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(40)


def read_served(config: Path) -> Served:
    """From the contexts that a demo keeps while it runs."""
    contexts = yaml.safe_load(config.read_text())["contexts"]
    tokens = {name: Path(c["token_file"]).read_text().strip() for name, c in contexts.items()}
    return Served(contexts["demo"]["url"], tokens)


def busy(served: Served, seconds: float = 60) -> None:
    """Wait until jobs run, wait and have ended: a page without any shows little."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        counted = [
            len(served.ask("/v1/jobs", state=state, limit=1)["items"])
            for state in ("running", "waiting", "done")
        ]
        if all(counted):
            return
        time.sleep(0.5)
    raise AssertionError(f"no busy demo within {seconds:g} s")
