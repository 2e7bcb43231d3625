"""How long `fairway --help` takes beside importing the two libraries any such CLI needs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bench.figure import Figure, in_turn, median

BARE = "import click, rich.console"


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    if await asyncio.wait_for(process.wait(), 30):
        raise SystemExit(f"error: {' '.join(command)} failed\n\nhint: run it by hand to see why")


async def run(size: str) -> list[Figure]:
    rounds = 15 if size == "small" else int(size)
    fairway = str(Path(sys.executable).with_name("fairway"))
    ours, bare = await in_turn(
        lambda: _run(fairway, "--help"), lambda: _run(sys.executable, "-c", BARE), rounds
    )
    return [
        Figure(
            "startup",
            size,
            median(ours),
            median(bare),
            "s",
            1.5,
            "the interpreter's own start and click's imports; verbs are imported only when they run",
            {"fastest": f"{min(ours):.3f} s against {min(bare):.3f} s", "rounds": rounds},
        )
    ]
