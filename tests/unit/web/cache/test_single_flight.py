"""One look serves all who ask for it, and nobody gets one that began before they asked."""

from __future__ import annotations

import asyncio
import time

import pytest
from fastapi import Request, Response

from fairway.web.cache.single_flight import FragmentCache, SingleFlight


class Slow:
    """Counts looks; each lasts until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.gates: list[asyncio.Event] = []

    async def look(self) -> int:
        self.begun += 1
        number, gate = self.begun, asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return number


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_asks_during_a_look_gets_the_next_which_all_of_them_share() -> None:
    slow = Slow()
    shared = SingleFlight(slow.look)
    first = asyncio.create_task(shared.get())
    await settled()
    others = [asyncio.create_task(shared.get()) for _ in range(50)]
    await settled()
    assert slow.begun == 1
    slow.gates[0].set()
    assert await first == 1
    await settled()
    slow.gates[1].set()
    assert set(await asyncio.gather(*others)) == {2}
    assert slow.begun == 2


async def test_who_leaves_does_not_take_the_look_away() -> None:
    slow = Slow()
    shared = SingleFlight(slow.look)
    one, other = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
    await settled()
    one.cancel()
    await settled()
    slow.gates[0].set()
    assert await other == 1


async def test_an_error_is_everybodys_and_the_next_look_is_new() -> None:
    tries = 0

    async def look() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("no")
        return "yes"

    shared = SingleFlight(look)
    found = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [str(one) for one in found] == ["no", "no"]
    assert await shared.get() == "yes"


async def test_what_is_kept_is_not_read_again() -> None:
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        return looks

    kept, fresh = SingleFlight(look, max_age=60), SingleFlight(look)
    assert [await kept.get(), await kept.get()] == [1, 1]
    assert [await fresh.get(), await fresh.get()] == [2, 3]


async def test_what_is_stale_is_shown_once_more_while_it_is_read_anew() -> None:
    slow = Slow()
    shared = SingleFlight(slow.look, max_age=0.02, stale_age=60)
    first = asyncio.create_task(shared.get())
    await settled()
    slow.gates[0].set()
    assert await first == 1
    await asyncio.sleep(0.03)
    assert [await shared.get(), await shared.get()] == [1, 1]
    await settled()
    assert slow.begun == 2
    slow.gates[1].set()
    await settled()
    assert await shared.get() == 2


async def test_who_asks_alone_does_not_wait() -> None:
    async def look() -> str:
        return "seen"

    shared = SingleFlight(look, min_interval=60)
    async with asyncio.timeout(30):
        assert [await shared.get(), await shared.get()] == ["seen", "seen"]


async def test_a_crowd_shares_the_next_look_which_begins_a_moment_later() -> None:
    began: list[float] = []
    begun, done = asyncio.Event(), asyncio.Event()

    async def look() -> int:
        began.append(time.monotonic())
        begun.set()
        await done.wait()
        return len(began)

    shared = SingleFlight(look, min_interval=0.2)
    first = asyncio.create_task(shared.get())
    await begun.wait()
    crowd = [asyncio.create_task(shared.get()) for _ in range(20)]
    await asyncio.sleep(0)  # each of them has asked now
    done.set()
    assert await first == 1
    assert set(await asyncio.gather(*crowd)) == {2}
    assert began[1] - began[0] >= 0.2


@pytest.mark.parametrize(("target", "draws"), [("x-part", 2), ("other", 6)])
def test_open_pages_share_a_part_of_the_same_look_and_the_same_rights(target: str, draws: int) -> None:
    drawn: list[str] = []

    def draw(words: str) -> Response:
        drawn.append(words)
        return Response(words, headers={"X-Kept": "yes"})

    headers = [(b"hx-request", b"true"), (b"hx-target", target.encode())]
    request = Request({"type": "http", "headers": headers})
    parts, look = FragmentCache("x-part"), object()
    for _ in range(3):
        assert parts.show(request, (look,), None, lambda: draw("all")).body == b"all"
        mine = parts.show(request, (look,), frozenset({"nlp"}), lambda: draw("mine"))
        assert (mine.body, mine.headers["x-kept"]) == (b"mine", "yes")
    assert len(drawn) == draws
    assert parts.show(request, (object(),), None, lambda: draw("new")).body == b"new"
