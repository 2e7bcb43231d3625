"""The order in which the reasons of a waiting job bind, and what of them remains without the first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.explain.binding import ALONE, Stage, in_binding_order, room_left, stage, turn_left
from fairway.explain.findings import Finding
from fairway.explain.reasons import REASONS
from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply

A100 = Supply(PoolName("a100"))
NEVER_WAITS = frozenset({"DependencyFailed", "GpuEvent", "GpuFailed"})
"""Codes of jobs that run or have ended."""
CODES = st.sampled_from(sorted(set(REASONS) - NEVER_WAITS))


def codes(first: str, *others: str) -> list[str]:
    findings = [Finding(code, f"{code} {n}") for n, code in enumerate(others)]
    return [f.code for f in in_binding_order(Finding(first, "first"), findings)]


def test_every_reason_to_wait_has_a_step() -> None:
    from fairway.explain.binding import _STAGES

    assert set(_STAGES) == set(REASONS) - NEVER_WAITS - {""}
    assert stage("Unheard") is Stage.HELD


@pytest.mark.parametrize(
    ("first", "others", "order"),
    [
        # A limit lifted: then those of the team above, then the jobs ahead, then room.
        (
            "UserLimit",
            ("NotEnoughFree", "NotItsTurn", "TeamAtCeiling", "TeamAtCeiling"),
            ["UserLimit", "TeamAtCeiling", "TeamAtCeiling", "NotItsTurn", "NotEnoughFree"],
        ),
        ("Held", ("NotEnoughFree", "TeamAtCeiling"), ["Held", "TeamAtCeiling", "NotEnoughFree"]),
        # The scheduler came to its turn, and found no room.
        ("NotEnoughFree", ("NotItsTurn", "NotEnoughFree"), ["NotEnoughFree"]),
        ("NotItsTurn", ("NotEnoughFree", "NotItsTurn"), ["NotItsTurn", "NotEnoughFree"]),
        ("ReservedForAnother", ("NotItsTurn",), ["ReservedForAnother"]),
        # Another request would find other nodes; another time limit finds the same.
        ("NoNodeFits", ("NotEnoughFree", "NotItsTurn", "TeamAtCeiling"), ["NoNodeFits", "TeamAtCeiling"]),
        ("JobTimeLimit", ("NotEnoughFree", "UserLimit"), ["JobTimeLimit", "UserLimit", "NotEnoughFree"]),
        # It has its nodes, or nobody can tell yet.
        ("ImagePullFailed", ("NotEnoughFree", "TeamAtCeiling"), ["ImagePullFailed"]),
        ("ClusterAway", ("TeamAtCeiling",), ["ClusterAway"]),
    ],
)
def test_the_order(first: str, others: tuple[str, ...], order: list[str]) -> None:
    assert codes(first, *others) == order


def test_the_same_limit_is_listed_once() -> None:
    limit = Finding("TeamAtCeiling", "Team nlp uses 8 of 8")
    said = Finding("TeamAtCeiling", "Team nlp uses 8 of 8. Cluster hpc reports no reason.")
    assert in_binding_order(said, [limit]) == (said,)
    # The engine names no team: its reason may be any of the limits.
    assert in_binding_order(Finding("TeamAtCeiling", ""), [limit]) == (Finding("TeamAtCeiling", ""),)


@given(first=CODES, others=st.lists(CODES, max_size=6))
def test_the_first_stays_first_and_the_rest_is_sorted(first: str, others: list[str]) -> None:
    found = codes(first, *others)
    assert found[0] == first and set(found) <= {first, *others}
    steps = [stage(code) for code in found[1:]]
    assert steps == sorted(steps)
    repeated = [code for code in found if found.count(code) > 1]
    assert set(repeated) <= {"TeamAtCeiling"}
    if first in ALONE:
        assert found == [first]


@pytest.mark.parametrize(
    ("gpus", "nodes", "free", "text"),
    [
        (8, 1, [2, 1, 0], "3 GPUs of a100 are free, on 2 nodes, at most 2 on one; the job needs 8 on one"),
        (8, 1, [0, 0], "No GPU of a100 is free, and the job needs 8 on one"),
        (1, 2, [1, 0], "1 GPU of a100 is free; the job needs 1 on each of 2 nodes"),
        (4, 3, [4, 4], "8 GPUs of a100 are free, on 2 nodes; the job needs 4 on each of 3 nodes"),
    ],
)
def test_room_has_the_numbers(gpus: int, nodes: int, free: list[int], text: str) -> None:
    assert list(room_left(gpus, nodes, free, A100)) == [Finding("NotEnoughFree", text)]


def test_no_room_finding_if_it_fits_and_no_turn_if_nobody_is_ahead() -> None:
    assert list(room_left(8, 2, [8, 0, 8], A100)) == []
    assert list(room_left(8, 2, [], A100)) == [], "no node was observed"
    assert list(turn_left(0, 0, A100)) == []
    slices = Supply(PoolName("mig"), SliceName("1g.10gb"))
    (ahead,) = turn_left(2, 9, slices)
    assert ahead.text.startswith("2 jobs ahead in the queue request 9 ")
