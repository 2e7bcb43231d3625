"""What a fault says of names."""

from __future__ import annotations

from fairway.files.diagnostics import did_you_mean, listed


def test_nothing_near_gives_the_other_hint() -> None:
    assert did_you_mean("zzz", ["price", "gpu"], "take it away") == "take it away"
    assert did_you_mean("prcie", ["price", "gpu"], "take it away") == "did you mean price?"


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(15)], limit=3) == "0, 1, 2 and 12 more"
    assert listed(["a\nb"]) == "a\\nb"
