"""Plays one promise on one cluster and says how it was kept."""

from __future__ import annotations

import time

from tests.scenarios.hand import Hand
from tests.scenarios.promises import scenarios
from tests.scenarios.results import Result, worst
from tests.scenarios.stage import Stage, Verdict


async def play(promise: str, hand: Hand) -> Result:
    """Every scenario of the promise, one after the other. What fails is a result too, with its reason."""
    begun = time.monotonic()
    verdicts, evidence = [], []
    for scenario in scenarios()[promise]:
        stage = Stage(hand)
        try:
            await scenario(stage)
            if stage.verdict is not Verdict.KEPT and promise not in stage.warnings:
                raise AssertionError(f"plan does not warn of it: {stage.evidence[-1]}")  # noqa: TRY301
        except Exception as error:
            stage.verdict = Verdict.FAILED
            stage.note(f"{scenario.__name__}: {type(error).__name__}: {error}")
        finally:
            await stage.close()
        if stage.nudges:
            told = {f"{n.verb.split()[0]}: {n.why}": n for n in stage.nudges}
            stage.note(f"by {len(stage.nudges)} nudges: " + "; ".join(list(told)[:3]))
        verdicts.append(stage.verdict)
        evidence += stage.evidence
    return Result(worst(verdicts), time.monotonic() - begun, tuple(evidence))
