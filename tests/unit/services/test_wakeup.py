"""A notification wakes the loop of its cluster, no other, and never twice."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from fairway.control import LeasedLoop, LoopMetrics, Pace
from fairway.ledger import Lease, Ledger
from fairway.model.errors import TemporaryError
from fairway.model.names import ClusterName
from fairway.services.wakeup import Wakeup
from tests.unit.control.test_loop import until

HPC, CLOUD = ClusterName("hpc"), ClusterName("cloud")
LONG = 600.0


async def test_a_notification_ends_the_pause_of_its_cluster_only() -> None:
    wakeup = Wakeup()
    hpc, cloud = (asyncio.ensure_future(wakeup.pause_for(name)(LONG)) for name in (HPC, CLOUD))
    await asyncio.sleep(0)
    wakeup.notify(HPC)
    async with asyncio.timeout(60):
        await hpc
    assert not cloud.done()
    cloud.cancel()


async def test_a_notification_while_nobody_waits_is_heard_once() -> None:
    wakeup = Wakeup()
    wakeup.notify(HPC)
    async with asyncio.timeout(60):
        await wakeup.pause_for(HPC)(LONG)
    began = time.monotonic()
    await wakeup.pause_for(HPC)(0.2)
    assert time.monotonic() - began >= 0.19


async def test_without_a_ring_it_is_a_sleep() -> None:
    began = time.monotonic()
    await Wakeup().pause_for(HPC)(0.1)
    assert time.monotonic() - began >= 0.09


async def test_a_loop_hears_it_between_rounds_but_not_after_a_failure(ledger: Ledger) -> None:
    wakeup, rounds, fails = Wakeup(), 0, False
    waits: list[float] = []

    async def step(_: Lease) -> None:
        nonlocal rounds
        rounds += 1
        if fails:
            raise TemporaryError("Unreachable", "no answer", "look")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(LONG)

    pace = Pace(lease_seconds=60, interval_seconds=30)
    metrics = LoopMetrics(CollectorRegistry())
    loop = LeasedLoop(
        "dispatch",
        HPC,
        step,
        ledger,
        holder="me",
        pace=pace,
        metrics=metrics,
        sleep=sleep,
        pause=wakeup.pause_for(HPC),
    )
    task = asyncio.create_task(loop.run())
    try:
        await until(lambda: rounds == 1)
        wakeup.notify(HPC)
        await until(lambda: rounds == 2)
        fails = True
        wakeup.notify(HPC)
        await until(lambda: rounds == 3)
        await until(lambda: len(waits) >= 2)
        assert any(seconds != pace.lease_seconds / 3 for seconds in waits)  # its back-off
        wakeup.notify(HPC)
        await asyncio.sleep(0.2)
        assert rounds == 3
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
