"""The nearest name."""

from __future__ import annotations

import pytest

from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.text import first_few, nearest


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


def test_among_very_many_nobody_guesses() -> None:
    """It would keep a server busy for a good part of a second, for whoever asks again and again."""
    teams = [f"team-{number:05d}" for number in range(10_000)]
    assert nearest("teem-00007", teams[:2000], most=1) == ["team-00007"]
    assert nearest("teem-00007", teams) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_the_first_few(names: list[str], said: str) -> None:
    assert first_few(names, 3) == said
