"""What open pages cost a server: many of them, over a busy demo, against the same demo that nobody looks at.

A page here does what live.js does: it keeps one stream, and asks for its living part whenever one of its
topics changed, at most every three seconds, a random moment later. The figure is processor time of the server
and its PostgreSQL for a second, in cores; the target is one core beyond what the demo itself takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2

from bench.figure import Figure

SIZES: Final = {"small": 20, "200": 200}
SECONDS: Final = {"small": 10.0, "200": 45.0}
MIN_SECONDS: Final = 3.0
OF_A_SESSION: Final = 20
TICKS: Final = os.sysconf("SC_CLK_TCK")
# Path, the part that lives, its topics; more people look at the fleet and the jobs than at the rest.
PAGES: Final = (
    ("/", "fleet-part", {"nodes", "jobs"}),
    ("/", "fleet-part", {"nodes", "jobs"}),
    ("/jobs", "jobs-part", {"jobs"}),
    ("/jobs?state=waiting", "jobs-part", {"jobs"}),
    ("/pools/hpc-a100", "pool-part", {"nodes", "jobs"}),
    ("/teams", "teams-part", {"jobs"}),
    ("/cost", "cost-part", {"cost"}),
    ("/policy", "policy-part", {"policy"}),
)


@dataclass
class Crowd:
    """Pages that are open, and what they asked for."""

    url: str
    asked: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    streams: int = 0

    async def page(self, client: httpx2.AsyncClient, number: int) -> None:
        path, part, topics = PAGES[number % len(PAGES)]
        headers = {"HX-Request": "true", "HX-Target": part}
        told = 0.0
        async with client.stream("GET", "/live", timeout=60) as events:
            self.streams += events.status_code == 200
            due: asyncio.Task[None] | None = None
            async for line in events.aiter_lines():
                if not line.startswith("data: [") or not topics & set(json.loads(line[6:])):
                    continue
                if due is None or due.done():
                    wait = max(0.0, told + MIN_SECONDS - time.monotonic()) + random.random()
                    told = time.monotonic() + wait
                    due = asyncio.create_task(self.part(client, path, headers, wait))

    async def part(self, client: httpx2.AsyncClient, path: str, headers: dict[str, str], wait: float) -> None:
        await asyncio.sleep(wait)
        began = time.perf_counter()
        answer = await client.get(path, headers=headers, timeout=60)
        self.asked[answer.status_code] += 1
        self.seconds.append(time.perf_counter() - began)


async def run(size: str) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="fw-bench-") as home:
        Path(home).chmod(0o711)
        demo = await start_demo(home)
        try:
            return [await _measured(size, demo, home)]
        finally:
            with suppress(ProcessLookupError):
                demo.send_signal(signal.SIGINT)
            await asyncio.wait_for(demo.wait(), 60)


async def start_demo(home: str, days: int = 7) -> asyncio.subprocess.Process:
    """Start a demo whose files are all in `home`, and wait until it is ready."""
    fairway = str(Path(sys.executable).with_name("fairway"))
    environment = os.environ | {"XDG_CONFIG_HOME": f"{home}/config", "TMPDIR": home}
    with Path(home, "log").open("wb") as log:
        demo = await asyncio.create_subprocess_exec(
            fairway, "demo", "--days", str(days), env=environment, stdout=log, stderr=log
        )
    async with asyncio.timeout(300):
        while "is ready" not in Path(home, "log").read_text():
            await asyncio.sleep(0.5)
    return demo


async def _measured(size: str, demo: asyncio.subprocess.Process, home: str) -> Figure:
    pages, seconds = SIZES[size], SECONDS[size]
    log = Path(home, "log").read_text()
    url = log.split(" on ", 1)[1].split()[0]
    token = next(Path(home).glob("fairway-demo*/state/admin.token")).read_text().strip()
    await asyncio.sleep(5)
    bare = await _cores(demo.pid, home, seconds)
    crowd = Crowd(url)
    clients = [await _visitor(url, token) for _ in range(-(-pages // OF_A_SESSION))]
    open_pages = [
        asyncio.create_task(crowd.page(clients[number % len(clients)], number)) for number in range(pages)
    ]
    await asyncio.sleep(5)
    crowd.asked.clear()
    crowd.seconds.clear()
    with_pages = await _cores(demo.pid, home, seconds)
    for task in open_pages:
        task.cancel()
    await asyncio.gather(*open_pages, return_exceptions=True)
    for client in clients:
        await client.aclose()
    took = sorted(crowd.seconds)
    return Figure(
        "live pages",
        size,
        with_pages,
        bare + 1.0,
        "cores",
        1.0,
        "reading and drawing a part; pages that ask for the same share a look",
        {
            "open": crowd.streams,
            "without pages": f"{bare:.2f} cores",
            "of the pages": f"{with_pages - bare:.2f} cores",
            "parts asked for": f"{sum(crowd.asked.values()) / seconds:.1f} a second {dict(crowd.asked)}",
            "a part took": f"p50 {took[len(took) // 2]:.3f} s, p95 {took[int(len(took) * 0.95) - 1]:.3f} s",
        },
    )


async def _visitor(url: str, token: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=OF_A_SESSION * 2)
    client = httpx2.AsyncClient(base_url=url, limits=limits)
    answer = await client.post("/sign-in", data={"token": token, "next": "/"}, headers={"Origin": url})
    if answer.status_code != 303:
        raise SystemExit(f"error: nobody could sign in: {answer.status_code}\n\nhint: look at {url}/sign-in")
    return client


async def _cores(root: int, home: str, seconds: float) -> float:
    """Processor time of a process and all below it, for a second."""
    before = _ticks(root, home)
    began = time.monotonic()
    await asyncio.sleep(seconds)
    after = _ticks(root, home)
    return sum(after[pid] - before.get(pid, 0) for pid in after) / TICKS / (time.monotonic() - began)


def _ticks(root: int, home: str) -> dict[int, int]:
    """Of each process below one, and of PostgreSQL, which is known by the folder the demo keeps it in."""
    stats: dict[int, tuple[int, int]] = {}
    found = {root}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                stats[int(entry.name)] = (int(words[1]), int(words[11]) + int(words[12]))
                if home.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    added = True
    while added:
        below = {pid for pid, (parent, _) in stats.items() if parent in found} - found
        found |= below
        added = bool(below)
    return {pid: stats[pid][1] for pid in found if pid in stats}
