"""Plays one promise on one cluster and says how it was kept."""

from __future__ import annotations

import time

from fairway.model.text import count
from tests.scenarios.hand import Hand
from tests.scenarios.promises import Scenario, scenarios
from tests.scenarios.results import Result, worst
from tests.scenarios.stage import Stage, TooLate, Verdict


async def play(promise: str, hand: Hand, *, tries: int = 1) -> Result:
    """Every scenario of the promise, one after the other. What fails is a result too, with its reason.

    With more than one try, a scenario in which something came too late is played again, and says so. One in
    which something was seen that must never be is not.
    """
    begun = time.monotonic()
    stages = [await _tried(scenario, promise, hand, tries) for scenario in scenarios()[promise]]
    return Result(
        worst([stage.verdict for stage in stages]),
        time.monotonic() - begun,
        tuple(text for stage in stages for text in stage.evidence),
        "; ".join(text for stage in stages for text in stage.exceptions),
    )


async def _tried(scenario: Scenario, promise: str, hand: Hand, tries: int) -> Stage:
    late: list[str] = []
    while True:
        stage = await _play(scenario, promise, hand)
        if not stage.too_late or len(late) + 1 >= tries:
            stage.evidence.extend(late)
            return stage
        late.append(f"too late at try {len(late) + 1}: {stage.exceptions[-1]}")


async def _play(scenario: Scenario, promise: str, hand: Hand) -> Stage:
    stage = Stage(hand)
    try:
        await scenario(stage)
        assert not stage.exceptions or promise in stage.warnings, f"plan does not warn: {stage.exceptions}"
    except Exception as error:
        stage.verdict = Verdict.FAILED
        stage.too_late = isinstance(error, TooLate)
        stage.exceptions.append(f"{scenario.__name__}: {type(error).__name__}: {error}")
    finally:
        await stage.close()
    if stage.interventions:
        kinds = {intervention.verb.split()[0]: intervention for intervention in stage.interventions}
        told = "; ".join(f"{intervention.verb}, {intervention.why}" for intervention in kinds.values())
        stage.note(f"with {count(len(stage.interventions), 'intervention')}: {told}")
    return stage
