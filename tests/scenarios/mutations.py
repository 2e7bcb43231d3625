"""Plants each deliberate fault and says who catches it: `python -m tests.scenarios.mutations ENGINE…`."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING, Any

from fairway.engines.port import Intervenes
from tests.scenarios.conftest import ENGINES, instance_of
from tests.scenarios.faults import FAULTS, Fault
from tests.scenarios.play import play
from tests.scenarios.stage import Verdict

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.model.fleet import Fleet
    from fairway.policy.objects import FoundPolicy, Intervention, Translation
    from tests.scenarios.hand import Hand


class SpoiltEngine:
    """An engine whose translation has a fault; everything else is its own."""

    def __init__(self, engine: Governs, fault: Fault) -> None:
        self._engine = engine
        self._fault = fault

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        return self._fault.spoilt(self._engine.translate(fleet, found))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class SpoiltInterveningEngine(SpoiltEngine):
    """The same of an engine that intervenes."""

    async def intervene(self, fleet: Fleet) -> tuple[Intervention, ...]:
        assert isinstance(self._engine, Intervenes)
        return await self._engine.intervene(fleet)


class SpoiltHand:
    """A hand whose engine has a fault."""

    def __init__(self, hand: Hand, fault: Fault) -> None:
        self._hand = hand
        self._fault = fault

    def engine(self, fleet: Fleet) -> SpoiltEngine:
        engine = self._hand.engine(fleet)
        spoilt = SpoiltInterveningEngine if isinstance(engine, Intervenes) else SpoiltEngine
        return spoilt(engine, self._fault)

    async def weigh(self) -> None:
        if hasattr(self._hand, "weigh"):
            await self._hand.weigh()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hand, name)


async def catch(hand: Any, fault: Fault) -> str | None:
    """The first promise that is broken by the fault, and how; None: nothing noticed it."""
    if fault.script is not None:
        hand.script = fault.script
    try:
        for promise in fault.promises:
            result = await play(promise, SpoiltHand(hand, fault))
            if result.verdict is Verdict.FAILED:
                return f"{promise}: {result.exception}"
    finally:
        if fault.script is not None:
            hand.script = lambda lua: lua
    return None


async def main(engines: list[str]) -> int:
    """How many faults nobody caught."""
    missed = 0
    for engine in engines:
        module = importlib.import_module(f"tests.scenarios.stages.{ENGINES[engine]}")
        async with module.open_hand(instance_of(engine)) as hand:
            for fault in FAULTS[ENGINES[engine]]:
                caught = await catch(hand, fault)
                missed += caught is None
                told = "NOT CAUGHT" if caught is None else f"caught by {caught[:160]}"
                sys.stdout.write(f"{hand.name:12} {fault.what:55} {told}\n")
                sys.stdout.flush()
    return missed


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(sys.argv[1:] or ["virtual"])) else 0)
