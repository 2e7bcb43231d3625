"""Reasons for waiting: each has words and a remedy, and engines' own words are known by them."""

from __future__ import annotations

import re

import pytest

from docs.reference.collect import collect
from fairway.explain.engine_words import ENGINE_WORDS, read_words
from fairway.explain.reasons import REASONS

# What Slurm, Kueue and kube-scheduler were heard to say in the lab.
HEARD = [
    ("Priority", "NotItsTurn"),
    ("(Resources)", "NotEnoughFree"),
    ("AssocGrpGRES", "TeamAtCeiling"),
    ("AssocGrpJobsLimit", "TeamHeld"),
    ("QOSMaxGRESPerUser", "UserLimit"),
    ("QOSGrpGRES", "GuaranteeInUse"),
    ("JobHeldUser", "Held"),
    ("JobHeldAdmin", "HeldByAdmin"),
    ("ReqNodeNotAvail, UnavailableNodes:gpu001", "NodesUnavailable"),
    (
        "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a, 8 more",
        "QuotaInUse",
    ),
    ("ClusterQueue research is inactive", "TeamHeld"),
    ("0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", "NotEnoughFree"),
    ('topology "racks" doesn\'t allow to fit any of 2 pod(s)', "NoRackFits"),
]


@pytest.mark.parametrize(("words", "code"), HEARD)
def test_what_engines_say_is_known(words: str, code: str) -> None:
    known = read_words(words)
    assert known is not None and known.code == code and not known.own


@pytest.mark.parametrize("words", ["", "None", "PriorityOfTheMoon", "something nobody has heard of"])
def test_what_nobody_wrote_down_is_not_guessed(words: str) -> None:
    assert read_words(words) is None


def test_every_wait_of_the_virtual_engine_is_known_by_its_sentence() -> None:
    waits = {
        name: code for name, code in collect().items() if "engines" in code.rooms and "wait" in code.kinds
    }
    assert len(waits) >= 10
    for name, code in waits.items():
        heard = [read_words(message.replace("…", "7")) for message, _ in code.sayings]
        assert any(known is not None and known.own and known.code == name for known in heard), code.sayings


def test_every_reason_has_words_and_a_remedy() -> None:
    for code, reason in REASONS.items():
        assert reason.code == code
        assert reason.means.endswith(".") and len(reason.means.split()) > 4, code
        assert len(reason.remedy) > 12 and not reason.remedy.endswith("."), code
    assert list(REASONS) == sorted(REASONS)


def test_every_engine_word_stands_for_a_reason_and_is_a_pattern() -> None:
    for words in ENGINE_WORDS.values():
        for word in words:
            assert word.code in REASONS
            re.compile(word.pattern)


def test_a_remedy_names_the_job() -> None:
    assert REASONS["Held"].remedy_for("8f3k", "17") == "fairway release 8f3k"
    assert REASONS["HeldByAdmin"].remedy_for("8f3k", "17").endswith("scontrol release 17")
