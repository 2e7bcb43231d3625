"""A fleet file of very many faults is refused without looking for what each of them may have meant."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from fairway.files import check_text
from fairway.files.diagnostics import MAX_FAULTS

TEXT = "\n".join(f"k{n}: 1" for n in range(20_000))


def test_unknown_keys_beyond_the_shown_ones_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    real = difflib.get_close_matches

    def counted(word: str, *args: Any, **options: Any) -> list[str]:
        looked_up.append(word)
        return real(word, *args, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)  # the slow part
    report = check_text(TEXT, "fleet.yaml")
    assert len(report.faults) == MAX_FAULTS + 1
    assert "more faults are not shown" in report.faults[-1].message
    assert 0 < len(looked_up) <= MAX_FAULTS
