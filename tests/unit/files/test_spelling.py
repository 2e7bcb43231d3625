"""The nearest name."""

from __future__ import annotations

import pytest

from fairway.files.spelling import did_you_mean, listed, nearest
from fairway.model.gpu_catalogue import CATALOGUE


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("a100-80gb", ["A100-80GB"]),
        ("A100_80GB", ["A100-80GB"]),
        ("A100", ["A100-40GB", "A100-80GB"]),
        ("RTX4090", ["RTX-4090"]),
        ("H100-80G", ["H100-80GB"]),
        ("L40s", ["L40S"]),
        ("TPU-v5", []),
        ("", []),
        ("x" * 1000, []),
    ],
)
def test_nearest_gpu_type(word: str, found: list[str]) -> None:
    assert nearest(word, CATALOGUE) == found


def test_nothing_near_gives_the_other_hint() -> None:
    assert did_you_mean("zzz", ["price", "gpu"], "take it away") == "take it away"
    assert did_you_mean("prcie", ["price", "gpu"], "take it away") == "did you mean price?"


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(15)], most=3) == "0, 1, 2 and 12 more"
    assert listed(["a\nb"]) == "a\\nb"
