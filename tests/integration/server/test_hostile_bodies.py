"""The largest bodies that a member may send to a real server: refused at once, for little memory."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.server_process import Home, Server, temporary_home

MIB = 1024 * 1024
QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
ITEMS = (b"[[]]", b"{}", b'{"name":"a"}', b'{"name":"a","env":{"A":[]}}', b'"' + b"x" * 1000 + b'"')


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Home, Server]]:
    with temporary_home() as home:
        server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
        yield home, server
        assert server.stop() == 0, server.log


def memory_mib(server: Server) -> int:
    """The most memory that the server ever had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024


class Probes(threading.Thread):
    """Asks /healthz again and again, and keeps the slowest answer."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._over = threading.Event()
        self.slowest = 0.0
        self.failures: list[str] = []

    def run(self) -> None:
        with httpx2.Client(base_url=self._url, timeout=30) as client:
            while not self._over.wait(0.05):
                began = time.monotonic()
                answer = client.get("/healthz")
                self.slowest = max(self.slowest, time.monotonic() - began)
                if answer.status_code != 200:
                    self.failures.append(answer.text)

    def stop(self) -> None:
        self._over.set()
        self.join(60)


@pytest.mark.timeout(300)
def test_memory_and_probes_stay_flat(running: tuple[Home, Server]) -> None:
    home, server = running
    made = home.fairway("token", "create", "mallory", "--role", "member")
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip()}", "Content-Type": "application/json"}
    before = memory_mib(server)
    probes = Probes(server.url)
    probes.start()
    with httpx2.Client(base_url=server.url, timeout=60, headers=headers) as client:
        for item in ITEMS:
            body = b'{"jobs":[' + b",".join([item] * (31 * MIB // (len(item) + 1))) + b"]}"
            for path in ("cancel", "hold", "release", "dry-run"):
                answer = client.post(f"/v1/jobs/{path}", content=body)
                assert (answer.status_code, answer.json()["code"]) == (413, "BodyTooLarge"), path
            answer = client.post("/v1/jobs", content=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest"), item
    probes.stop()
    assert not probes.failures
    assert memory_mib(server) - before < 250
    assert probes.slowest < 3  # 15 s before; a quiet machine takes 0.2 s
