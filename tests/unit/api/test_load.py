"""Requests of one kind: so many run, so many wait, the others are refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fairway.api.load import LIMITS, QueueLimits, RequestKind, RequestQueue, RequestQueues
from fairway.api.problems import ApiError
from fairway.ledger.connection import ConnectionLimits, Connections, deadline
from fairway.ledger.errors import LedgerBusy


class Held:
    """Requests that hold their places until they are told to go."""

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.order: list[int] = []
        self.go = asyncio.Event()

    async def request(self, number: int) -> None:
        async with self.queue.place():
            self.order.append(number)
            await self.go.wait()

    async def start(self, numbers: Sequence[int]) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.request(number)) for number in numbers]
        await asyncio.sleep(0)
        return tasks


async def test_first_come_first_served_and_the_rest_is_refused() -> None:
    held = Held(RequestQueue(QueueLimits(2, 3, 60, 60)))
    tasks = await held.start(range(5))
    assert (held.queue.running, held.queue.waiting) == (2, 3)
    with pytest.raises(ApiError) as refused:
        await held.request(5)
    assert (refused.value.code, refused.value.status) == ("ServerBusy", 503)
    assert int(refused.value.headers["Retry-After"]) >= 1
    held.go.set()
    await asyncio.gather(*tasks)
    assert held.order == [0, 1, 2, 3, 4]
    assert (held.queue.running, held.queue.waiting, held.queue.shed) == (0, 0, 1)


async def test_who_would_wait_too_long_is_refused_at_once() -> None:
    now = 0.0
    queue = RequestQueue(QueueLimits(1, 100, 5, 60), clock=lambda: now)
    for _ in range(100):  # requests of 3 s
        async with queue.place():
            now += 3
    held = Held(queue)
    tasks = await held.start(range(2))
    assert queue.waiting == 1
    assert queue.expected_wait == pytest.approx(6, abs=0.1)
    with pytest.raises(ApiError) as refused:
        await held.request(3)
    assert refused.value.headers["Retry-After"] == "6"
    held.go.set()
    await asyncio.gather(*tasks)


async def test_nobody_waits_longer_than_allowed() -> None:
    held = Held(RequestQueue(QueueLimits(1, 10, 0.02, 60)))
    first, second = await held.start(range(2))
    with pytest.raises(ApiError, match="is busy with requests"):
        await second
    assert (held.queue.running, held.queue.waiting, held.queue.shed) == (1, 0, 1)
    held.go.set()
    await first
    assert held.queue.running == 0


@pytest.mark.parametrize("number", range(3))
async def test_a_caller_that_goes_away_leaves_no_place_taken(number: int) -> None:
    held = Held(RequestQueue(QueueLimits(1, 10, 60, 60)))
    tasks = await held.start(range(3))
    tasks[number].cancel()
    await asyncio.sleep(0)
    held.go.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, BaseException) for result in done) == 1
    assert (held.queue.running, held.queue.waiting) == (0, 0)


async def test_a_turn_that_comes_while_the_caller_goes_is_handed_on() -> None:
    queue = RequestQueue(QueueLimits(1, 10, 60, 60))
    held = Held(queue)
    first, second, third = await held.start(range(3))
    held.go.set()
    await asyncio.sleep(0)  # the first has ended and given its place to the second,
    second.cancel()  # which goes away before it runs
    await asyncio.gather(first, third)
    assert third.exception() is None
    assert (queue.running, queue.waiting) == (0, 0)


async def test_kinds_do_not_wait_for_each_other_and_probes_for_nobody() -> None:
    registry = CollectorRegistry()
    queues = RequestQueues(registry, {RequestKind.READ: QueueLimits(1, 0, 5, 60), **_others()})
    async with queues.place(RequestKind.READ), queues.place(RequestKind.WRITE):
        with pytest.raises(ApiError):
            async with queues.place(RequestKind.READ):
                pass
        for _ in range(1000):
            async with queues.place(RequestKind.UNLIMITED):
                pass
        told = generate_latest(registry).decode()
    assert 'fairway_api_running{kind="read"} 1.0' in told
    assert 'fairway_api_shed_total{kind="read"} 1.0' in told
    assert 'fairway_api_shed_total{kind="write"} 0.0' in told


def _others() -> dict[RequestKind, QueueLimits]:
    return {kind: limits for kind, limits in LIMITS.items() if kind is not RequestKind.READ}


async def test_the_pool_has_a_connection_for_every_request_that_runs() -> None:
    in_ledger = (RequestKind.READ, RequestKind.WRITE, RequestKind.REPORT)
    assert sum(LIMITS[kind].running for kind in in_ledger) < ConnectionLimits().connections


async def test_a_call_of_the_ledger_gets_what_is_left_of_the_requests_time() -> None:
    connections = Connections("postgresql://127.0.0.1:1/none", ConnectionLimits())
    with deadline(-1), pytest.raises(LedgerBusy, match="time limit of this request"):
        async with connections.single():
            pass
    await connections.close()
