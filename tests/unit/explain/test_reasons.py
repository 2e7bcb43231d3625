"""Reasons for waiting: each has words and a remedy, and what engines say is known by its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.reference.collect import collect
from fairway.explain.engine_reasons import ENGINE_REASONS, EngineReason, kueue_code, pod_code, slurm_code
from fairway.explain.reasons import REASONS, WAITS_FOR_CAPACITY

Reads = Callable[[str], str]
# What Slurm, Kueue and kube-scheduler were heard to say in the lab.
HEARD = [
    (slurm_code, "Priority", "NotItsTurn"),
    (slurm_code, "(Resources)", "NotEnoughFree"),
    (slurm_code, "AssocGrpGRES", "TeamAtCeiling"),
    (slurm_code, "AssocGrpJobsLimit", "TeamHeld"),
    (slurm_code, "QOSMaxGRESPerUser", "UserLimit"),
    (slurm_code, "QOSGrpGRES", "GuaranteeInUse"),
    (slurm_code, "JobHeldUser", "Held"),
    (slurm_code, "JobHeldAdmin", "HeldByAdmin"),
    (slurm_code, "ReqNodeNotAvail, UnavailableNodes:gpu001", "NodesUnavailable"),
    (
        kueue_code,
        "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a, 8 more",
        "QuotaInUse",
    ),
    (kueue_code, "ClusterQueue research is inactive", "TeamHeld"),
    (kueue_code, 'topology "racks" doesn\'t allow to fit any of 2 pod(s)', "NoRackFits"),
    (pod_code, "Unschedulable", "NotEnoughFree"),
]


@pytest.mark.parametrize(("read", "words", "code"), HEARD)
def test_what_engines_say_is_known(read: Reads, words: str, code: str) -> None:
    assert read(words) == code


@pytest.mark.parametrize("read", [slurm_code, kueue_code, pod_code])
@pytest.mark.parametrize("words", ["", "None", "PriorityOfTheMoon", "something nobody has heard of"])
def test_what_nobody_wrote_down_is_not_guessed(read: Reads, words: str) -> None:
    assert read(words) == ""


@given(word=st.sampled_from(ENGINE_REASONS["Slurm"]), more=st.from_regex(r"(\W.*)?", fullmatch=True))
def test_whatever_slurm_adds_to_a_reason_its_code_stays(word: EngineReason, more: str) -> None:
    assert slurm_code(f"{word.shown}{more}") == word.code


def test_every_wait_of_the_virtual_engine_has_its_code_from_the_start() -> None:
    waits = {name for name, code in collect().items() if "engines" in code.rooms and "wait" in code.kinds}
    assert len(waits) >= 10
    assert waits <= REASONS.keys()


def test_every_reason_has_words_and_a_remedy() -> None:
    for code, reason in REASONS.items():
        assert reason.code == code
        assert reason.means.endswith(".") and len(reason.means.split()) > 4, code
        assert len(reason.remedy) > 12 and not reason.remedy.endswith("."), code
    assert list(REASONS) == sorted(REASONS)


def test_every_engine_word_stands_for_a_reason() -> None:
    for words in ENGINE_REASONS.values():
        for word in words:
            assert word.code in REASONS


@pytest.mark.parametrize(
    ("code", "wants_room"),
    [
        (slurm_code("Resources"), True),
        (slurm_code("Priority"), True),
        (pod_code("Unschedulable"), True),
        (
            kueue_code('couldn\'t assign flavors to pod set main: topology "racks" allows to fit only 1'),
            True,
        ),
        # The virtual engine's own.
        ("NotEnoughFree", True),
        ("NoRackFits", True),
        ("PlacesKept", True),
        ("KeptForAnother", True),
        ("TeamAtCeiling", False),
        ("BehindAnother", False),
        (slurm_code("QOSMaxJobsPerUserLimit"), False),
        (slurm_code("AssocGrpGRES"), False),
        (slurm_code("Dependency"), False),
        (slurm_code("BeginTime"), False),
        (
            kueue_code(
                "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a, 8 more"
            ),
            False,
        ),
        ("", False),
    ],
)
def test_who_waits_for_room(code: str, wants_room: bool) -> None:
    assert (code in WAITS_FOR_CAPACITY) is wants_room


def test_only_reasons_are_for_want_of_room() -> None:
    assert REASONS.keys() > WAITS_FOR_CAPACITY


def test_a_remedy_names_the_job() -> None:
    assert REASONS["Held"].remedy_for("8f3k", "17") == "fairway release 8f3k"
    assert REASONS["HeldByAdmin"].remedy_for("8f3k", "17").endswith("scontrol release 17")
