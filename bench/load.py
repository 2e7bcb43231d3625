"""Two hundred clients at once, three quarters of them reading and the others submitting, beside a busy core.

Bare: the same server with no bound on requests. A client does what Fairway's own does: after a 503 it waits
as long as Retry-After says. The figure is the 99th percentile of the answers that were no refusal; goodput,
probes, leases, memory and lost jobs are beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.figure import Figure
from tests.integration import server_process
from tests.integration.server_process import Home, Server, temporary_home

SIZES: Final = {"small": (20, 10.0), "200": (200, 60.0), "1000": (1000, 60.0)}
TARGET: Final = 1.0
FLEET: Final = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
READS: Final = ("/v1/jobs?limit=50", "/v1/clusters", "/v1/pools", "/v1/jobs/counts", "/v1/nodes", "/v1/teams")
SAMPLE: Final = 300
UNBOUNDED: Final = (
    "from fairway.api import load; from fairway.cli import main;"
    "load.LIMITS.update({k: load.QueueLimits(10**6, 10**6, 10**6, 10**6) for k in load.LIMITS}); main()"
)
BUSY_CORE: Final = "import time; end = time.time() + {seconds}\nwhile time.time() < end: pass"


@dataclass
class Tally:
    """What clients were answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """The codes of answers with status 503."""
    seconds: list[float] = field(default_factory=list)
    """Of reads and submits that were not refused."""
    submitted: list[str] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)

    def p(self, share: float) -> float:
        took = sorted(self.seconds) or [float("inf")]
        return took[min(len(took) - 1, int(len(took) * share))]


@dataclass
class Connection:
    """HTTP by hand: what asks must cost less than what answers."""

    host: str
    port: int
    token: str
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, float, bytes]:
        """The status, how long to wait before asking again, and the body."""
        kept = self.streams is not None
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.streams
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = re.search(r"\r\ncontent-length: (\d+)", answer)
            content = await reader.readexactly(int(length[1])) if length else b""
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if kept:  # the server closes connections that were silent for a while: ask once more on a new one
                return await self.ask(method, path, body)
            return 0, 1.0, b""
        after = re.search(r"\r\nretry-after: (\d+)", answer)
        if "\r\nconnection: close" in answer:
            self.close()
        return int(answer.split(maxsplit=2)[1]), float(after[1]) if after else 0.0, content

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def _order() -> dict[str, object]:
    """A job that waits or runs for longer than the measurement lasts."""
    job = {"name": "load", "team": "research", "gpus": {"count": 1}, "command": ["sleep", "600"]}
    return {"jobs": [job], "as": "alice"}


async def client(
    number: int,
    connection: Connection,
    until: float,
    tally: Tally,
    order: Callable[[], dict[str, object]] = _order,
) -> None:
    """Ask without a pause until the time is up; every fourth client submits, the others read."""
    made = 0
    while time.monotonic() < until:
        began = time.monotonic()
        if number % 4:
            status, after, content = await connection.ask("GET", random.choice(READS))
        else:
            made += 1
            body = json.dumps(order() | {"key": f"{number}-{made}"}).encode()
            status, after, content = await connection.ask("POST", "/v1/jobs", body)
            if status == 201:
                tally.submitted.append(json.loads(content)["jobs"][0]["id"])
        tally.statuses[status] += 1
        if status in (200, 201):
            tally.seconds.append(time.monotonic() - began)
        elif status == 503:
            tally.refusals[json.loads(content)["code"]] += 1
        else:
            after = after or 1.0
        if after:
            await asyncio.sleep(after * (1 + random.random() / 2))
    connection.close()


async def probe(connection: Connection, until: float, tally: Tally) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        await connection.ask("GET", "/healthz")
        tally.probes.append(time.monotonic() - began)
        await asyncio.sleep(0.25)
    connection.close()


@asynccontextmanager
async def _busy_core(seconds: float) -> AsyncIterator[None]:
    busy = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY_CORE.format(seconds=seconds + 30))
    try:
        yield
    finally:
        busy.kill()
        await busy.wait()


def memory_mb(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) // 1024


async def _played(clients: int, seconds: float, *, bounded: bool) -> tuple[Tally, dict[str, object]]:
    command = server_process.FAIRWAY
    server_process.FAIRWAY = command if bounded else [sys.executable, "-c", UNBOUNDED]
    try:
        with temporary_home() as home:
            return await _on(home, clients, seconds)
    finally:
        server_process.FAIRWAY = command


@contextmanager
def serving(home: Home) -> Iterator[tuple[Server, Callable[[], Connection]]]:
    """A server that the fleet was applied to, and what makes connections to it."""
    environment = {"FAIRWAY_LEASE_SECONDS": "15", "FAIRWAY_OBSERVE_SECONDS": "10"}
    server = home.start("-f", str(FLEET), "--listen", "127.0.0.1:0", **environment)
    try:
        applied = home.fairway("apply", "-f", str(FLEET), "--yes")
        assert applied.returncode == 0, applied.stderr
        host, port = server.url.removeprefix("http://").split(":")
        yield server, partial(Connection, host, int(port), home.token_file.read_text().strip())
    finally:
        server.stop()


async def _on(home: Home, clients: int, seconds: float) -> tuple[Tally, dict[str, object]]:
    with serving(home) as (server, connection):
        tally = Tally()
        before = memory_mb(server.process.pid)
        until = time.monotonic() + seconds
        async with _busy_core(seconds):
            asking = [client(number, connection(), until, tally) for number in range(clients)]
            await asyncio.gather(probe(connection(), until, tally), *asking)
        looking = connection()
        sample = random.sample(tally.submitted, min(SAMPLE, len(tally.submitted)))
        lost = [job for job in sample if (await looking.ask("GET", f"/v1/jobs/{job}"))[0] == 404]
        looking.close()
        return tally, {
            "answers": dict(sorted(tally.statuses.items())),
            "refusals": dict(tally.refusals),
            "goodput": f"{len(tally.seconds) / seconds:.1f} a second",
            "accepted": f"p50 {tally.p(0.5):.2f} s, p99 {tally.p(0.99):.2f} s",
            "submitted": len(tally.submitted),
            "lost": f"{len(lost)} of {len(sample)} looked up",
            "healthz": f"at most {max(tally.probes):.2f} s",
            "leases lost": server.log.count("lease lost"),
            "memory": f"{before} to {memory_mb(server.process.pid)} MiB",
        }


async def run(size: str) -> list[Figure]:
    clients, seconds = SIZES[size]
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    bare, told_bare = await _played(clients, seconds, bounded=False)
    ours, told = await _played(clients, seconds, bounded=True)
    return [
        Figure(
            f"{clients} clients for {seconds:g} s",
            size,
            ours.p(0.99),
            bare.p(0.99),
            "s",
            TARGET,
            "one event loop, and half of a core beside a busy one",
            {**told, "without bounds": told_bare},
        )
    ]
