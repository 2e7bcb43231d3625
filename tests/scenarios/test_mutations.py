"""Every deliberate fault in a translation is caught by some scenario."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import ENGINES, OpenHand
from tests.scenarios.faults import FAULTS, Fault
from tests.scenarios.mutations import catch

NIGHTLY = pytest.mark.nightly("each fault plays scenarios for minutes; CI plants them on the virtual engine")

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


def planted() -> list[object]:
    """Each fault on each engine; real ones take minutes."""
    return [
        pytest.param(
            engine,
            fault,
            id=f"{engine}-{fault.what.replace(' ', '-')}",
            marks=() if kind == "virtual" else (getattr(pytest.mark, kind), NIGHTLY),
        )
        for engine, kind in ENGINES.items()
        for fault in FAULTS[kind]
    ]


@pytest.mark.parametrize(("engine", "fault"), planted())
async def test_the_fault_is_caught(engine: str, fault: Fault, open_hand: OpenHand) -> None:
    assert await catch(await open_hand(engine), fault), f"nobody noticed: {fault.what}"
