"""Every situation on every engine: the right reason first, the others in binding order, and the evidence."""

from __future__ import annotations

import re

import pytest

from tests.situations import results
from tests.situations.desk import Desk, flat
from tests.situations.scenes import SCENES
from tests.situations.situation import Situation, family
from tests.situations.situations import SITUATIONS

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.nightly("minutes on each engine; unit tests have the recorded answers in CI"),
]


@pytest.mark.parametrize("situation", [pytest.param(one, id=one.name) for one in SITUATIONS])
def test_situation(desk: Desk, situation: Situation) -> None:
    engine = desk.line.engine
    if not situation.on(engine):
        pytest.skip(situation.why_not(engine))
    results.forget(engine, situation.name)
    desk.enter(situation.scene, SCENES[situation.scene])
    try:
        job = situation.set_up(desk)
        found = desk.why(job, situation.codes[family(engine)])
        transcript = desk.transcript(job)
        for pattern in situation.shows[family(engine)]:
            assert re.search(pattern, flat(transcript)), f"{pattern} is not in\n{transcript}"
        first = found.reasons[0]
        assert first.hint and first.text, first
        if situation.resolve is not None:
            desk.until_running(situation.resolve(desk, job, transcript))
    finally:
        desk.leave()
    results.keep(
        engine,
        situation.name,
        results.Found(
            codes=tuple(reason.code for reason in found.reasons),
            text=first.text,
            evidence=tuple(first.evidence),
            engine=first.engine,
            resolved=situation.resolve is not None,
        ),
        transcript,
    )
