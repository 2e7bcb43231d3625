"""A server at its full rate for long: clients that read and submit without a pause, jobs that start and end.

The figure is the server's memory in the last quarter of the time, beside that of the second quarter: the
first fills caches. Rates, probes and leases are beside it. Size: the minutes it lasts.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from typing import Final

from bench.figure import Figure
from bench.load import FLEET, READS, Connection, Tally, memory_mb, probe
from tests.integration.server_process import Server, temporary_home

CLIENTS: Final = 16
SMALL_MINUTES: Final = 2
TARGET: Final = 1.1
SAMPLE_SECONDS: Final = 5.0
TEAMS: Final = {"research": "alice", "product": "bob"}


async def _client(number: int, connection: Connection, until: float, tally: Tally) -> None:
    """One of four submits short jobs; when too many are open it waits a second."""
    made = 0
    while time.monotonic() < until:
        began = time.monotonic()
        if number % 4:
            status, after, _ = await connection.ask("GET", random.choice(READS))
        else:
            made += 1
            team, user = random.choice(list(TEAMS.items()))
            job = {"name": "soak", "team": team, "gpus": {"count": 1}, "command": ["sleep", "1"]}
            order = {"jobs": [job], "as": user, "key": f"soak-{number}-{made}"}
            status, after, _ = await connection.ask("POST", "/v1/jobs", json.dumps(order).encode())
            if status not in (201, 503):
                after = 1.0
        tally.statuses[status] += 1
        tally.seconds.append(time.monotonic() - began)
        await asyncio.sleep(after)
    connection.close()


async def _sample(server: Server, until: float, memory: list[int]) -> None:
    while time.monotonic() < until:
        memory.append(memory_mb(server.process.pid))
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(size: str) -> list[Figure]:
    seconds = 60.0 * (SMALL_MINUTES if size == "small" else int(size))
    with temporary_home() as home:
        environment = {"FAIRWAY_LEASE_SECONDS": "15", "FAIRWAY_OBSERVE_SECONDS": "10"}
        server = home.start("-f", str(FLEET), "--listen", "127.0.0.1:0", **environment)
        try:
            applied = home.fairway("apply", "-f", str(FLEET), "--yes")
            assert applied.returncode == 0, applied.stderr
            host, port = server.url.removeprefix("http://").split(":")
            token = home.token_file.read_text().strip()
            tally, memory = Tally(), list[int]()
            until = time.monotonic() + seconds
            await asyncio.gather(
                probe(Connection(host, int(port), token), until, tally),
                _sample(server, until, memory),
                *(_client(n, Connection(host, int(port), token), until, tally) for n in range(CLIENTS)),
            )
            lost = server.log.count("lease lost")
        finally:
            server.stop()
    quarter = len(memory) // 4
    second, last = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[3 * quarter :])
    return [
        Figure(
            f"soak of {seconds / 60:g} min",
            size,
            last,
            second,
            "MiB",
            TARGET,
            "one event loop; what is kept in memory must not grow with what was ever done",
            {
                "answers": dict(sorted(tally.statuses.items())),
                "answers_a_second": round(len(tally.seconds) / seconds, 1),
                "p50_s": round(tally.p(0.5), 3),
                "p99_s": round(tally.p(0.99), 3),
                "healthz_most_s": round(max(tally.probes), 3),
                "leases_lost": lost,
                "memory_mb_each_twentieth": memory[:: max(1, len(memory) // 20)],
            },
        )
    ]
