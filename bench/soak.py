"""A server at its full rate for long: clients that read and submit without a pause, jobs that start and end.

The figure is the server's memory in the last quarter of the time, beside that of the second quarter: the
first fills caches. Rates, probes and leases are beside it. Size: the minutes it lasts.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Final

from bench.figure import Figure
from bench.load import Tally, client, memory_mb, probe, serving
from tests.integration.server_process import Server, temporary_home

CLIENTS: Final = 16
SMALL_MINUTES: Final = 2
TARGET: Final = 1.1
SAMPLE_SECONDS: Final = 5.0
TEAMS: Final = {"research": "alice", "product": "bob"}


def _order() -> dict[str, object]:
    """A job that is over soon."""
    team, user = random.choice(list(TEAMS.items()))
    job = {"name": "soak", "team": team, "gpus": {"count": 1}, "command": ["sleep", "1"]}
    return {"jobs": [job], "as": user}


async def _sample(server: Server, until: float, memory: list[int]) -> None:
    while time.monotonic() < until:
        memory.append(memory_mb(server.process.pid))
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(size: str) -> list[Figure]:
    seconds = 60.0 * (SMALL_MINUTES if size == "small" else int(size))
    with temporary_home() as home, serving(home) as (server, connection):
        tally, memory = Tally(), list[int]()
        until = time.monotonic() + seconds
        await asyncio.gather(
            probe(connection(), until, tally),
            _sample(server, until, memory),
            *(client(number, connection(), until, tally, _order) for number in range(CLIENTS)),
        )
        lost = server.log.count("lease lost")
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
                "accepted_a_second": round(len(tally.seconds) / seconds, 1),
                "p50_s": round(tally.p(0.5), 3),
                "p99_s": round(tally.p(0.99), 3),
                "healthz_most_s": round(max(tally.probes), 3),
                "leases_lost": lost,
                "memory_mb_each_twentieth": memory[:: max(1, len(memory) // 20)],
            },
        )
    ]
