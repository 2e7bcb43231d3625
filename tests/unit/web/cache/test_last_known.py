"""The last known result where a new one takes too long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fairway.web.cache import last_known
from fairway.web.cache.last_known import LastKnown


async def never() -> int:
    await asyncio.Event().wait()
    return 0


async def one() -> int:
    return 1


async def test_the_last_result_is_returned_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_known, "FRESH", timedelta(0))
    known = LastKnown[int](max_keys=2)
    assert await known.get("a", never, 0.01) is None
    first = await known.get("a", one, 5)
    assert first is not None and (first.result, first.late) == (1, False)
    late = await known.get("a", never, 0.01)
    assert late is not None and (late.result, late.at, late.late) == (1, first.at, True)
    assert await known.get("b", never, 0.01) is None  # another reader's


async def test_a_page_that_was_just_opened_waits_for_nothing_new() -> None:
    known = LastKnown[int]()
    await known.get("a", one, 5, hurry=True)
    found = await known.get("a", never, 3600, hurry=True)
    assert found is not None and (found.result, found.late) == (1, False)  # some seconds old


async def test_it_keeps_only_so_many() -> None:
    known = LastKnown[int](max_keys=2)
    for key in "abc":
        await known.get(key, one, 5)
    assert await known.get("a", never, 0.01) is None
    assert await known.get("c", never, 0.01) is not None


async def test_errors_are_not_results() -> None:
    async def fails() -> int:
        raise ValueError("no figures")

    known = LastKnown[int]()
    with pytest.raises(ValueError, match="no figures"):
        await known.get("a", fails, 5)
