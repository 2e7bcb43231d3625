"""A holder that freezes itself: `python -m tests.integration.server.lease_writer URL SECONDS before|inside`.

It takes the lease, stops itself (SIGSTOP) before or inside its write, and when woken goes on as if nothing
had happened. It says what came of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from fairway.ledger import Lease, Ledger
from fairway.model.errors import FairwayError
from fairway.model.names import ClusterName, NodeName
from fairway.model.observation import Devices, Health, Node, Observation

LATE = Observation(
    ClusterName("hpc"),
    "late",
    (Node(NodeName("late"), Health.READY, "", (Devices(None, "gpu:late", None, 1, 0),)),),
)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def freeze() -> None:
    say("frozen")
    os.kill(os.getpid(), signal.SIGSTOP)


async def write(ledger: Ledger, lease: Lease, moment: str) -> None:
    if moment == "before":
        freeze()
    async with ledger.writing(lease) as tx:
        await tx.observations.write(LATE)
        if moment == "inside":
            freeze()


async def main(url: str, lease_seconds: float, moment: str) -> None:
    ledger = await Ledger.connect(url)
    lease = await ledger.leases.take("observe", "hpc", "freezer", lease_seconds)
    assert lease is not None
    try:
        await write(ledger, lease, moment)
        say("written")
    except FairwayError as error:
        say(error.code)
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
