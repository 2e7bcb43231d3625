"""Gives each scenario the hand of its engine: one a session, so a cluster and its policy stay."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import pytest
import pytest_asyncio

from tests.scenarios.hand import Hand

ENGINES: Final = {"virtual": "virtual", "slurm-24": "slurm", "slurm-26": "slurm", "kubernetes": "kubernetes"}
"""Instance of the lab (or `virtual`) -> the file in stages/ with its hand, which is also its marker."""
SITES: Final = {
    "institute": "slurm",
    "company": "slurm",
    "startup": "kubernetes",
    "enterprise": "kubernetes",
}
"""The same for instances that are set up as a site has them, before Fairway."""

ON_A_SITE = pytest.mark.nightly("a cluster for each site; CI plays every promise on the lab's own")

OpenHand = Callable[[str], Awaitable[Hand]]


def instance_of(engine: str) -> str:
    """The lab's instance for the engine: FAIRWAY_SCENARIOS_ON="slurm-24=mine,…", or the one of its name."""
    chosen = dict(pair.split("=") for pair in os.environ.get("FAIRWAY_SCENARIOS_ON", "").split(",") if pair)
    return chosen.get(engine, engine)


def engine_params() -> list[object]:
    """Each engine, with its marker."""
    own = [
        pytest.param(name, id=name, marks=() if kind == "virtual" else (getattr(pytest.mark, kind),))
        for name, kind in ENGINES.items()
    ]
    sites = [
        pytest.param(name, id=name, marks=(getattr(pytest.mark, kind), ON_A_SITE))
        for name, kind in SITES.items()
    ]
    return [*own, *sites]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def open_hand() -> AsyncIterator[OpenHand]:
    """Opens the hand of an engine, or gives the open one; all are closed at the session's end."""
    open_hands: dict[str, Hand] = {}
    async with AsyncExitStack() as stack:

        async def give(engine: str) -> Hand:
            if engine not in open_hands:
                module = importlib.import_module(f"tests.scenarios.stages.{(ENGINES | SITES)[engine]}")
                hand: Hand = await stack.enter_async_context(module.open_hand(instance_of(engine)))
                open_hands[engine] = hand
            return open_hands[engine]

        yield give
