"""An engine that is away or says no: told apart, told in time, and with something to do about it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from fairway.control import Pace
from fairway.engines.port import Observes, Unreachable
from fairway.model.errors import FairwayError, Refused
from tests.contract.conftest import on
from tests.contract.driver import Driver, Reached

LOOP_SECONDS = Pace().step_seconds or 0

pytestmark = on("slurm-24", "slurm-26", "kubernetes")


async def test_nobody_there(driver: Driver) -> None:
    async with closing(cast("Reached", driver).nobody_there()) as engine:
        with pytest.raises(Unreachable) as said:
            await bounded(engine)
    helpful(said.value)


async def test_silence(driver: Driver) -> None:
    async with cast("Reached", driver).silent() as silent, closing(silent) as engine:
        with pytest.raises(Unreachable) as said:
            await bounded(engine)
    helpful(said.value)


async def test_credentials_that_do_not_fit(driver: Driver) -> None:
    async with closing(cast("Reached", driver).not_let_in()) as engine:
        with pytest.raises(Refused) as said:
            await bounded(engine)
    helpful(said.value)


@asynccontextmanager
async def closing(engine: Observes) -> AsyncIterator[Observes]:
    try:
        yield engine
    finally:
        await engine.close()


async def bounded(engine: Observes) -> None:
    """An engine ends its own waiting, well before the loop that asked would."""
    started = time.monotonic()
    try:
        await engine.observe()
    finally:
        assert time.monotonic() - started < LOOP_SECONDS


def helpful(error: FairwayError) -> None:
    """A code for programs, words for people, and something to do."""
    assert error.code[:1].isupper()
    assert error.code.isalnum()
    assert error.message
    assert error.hint
    assert "Traceback" not in error.message
