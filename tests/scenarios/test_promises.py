"""Every promise on every engine."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import OpenHand, engine_params
from tests.scenarios.play import play
from tests.scenarios.promises import PROMISES, scenarios
from tests.scenarios.results import keep
from tests.scenarios.stage import Verdict

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("engine", engine_params())
@pytest.mark.parametrize("promise", list(PROMISES))
async def test_promise(promise: str, engine: str, open_hand: OpenHand) -> None:
    hand = await open_hand(engine)
    result = await play(promise, hand, tries=2)
    keep(promise, hand.name, result)
    assert result.verdict is not Verdict.FAILED, "\n".join((result.exception, *result.evidence))


async def test_every_promise_has_a_scenario() -> None:
    assert all(scenarios().values()), [name for name, found in scenarios().items() if not found]
