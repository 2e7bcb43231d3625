"""The nearest name to a mistyped one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 64
_MOST_CHOICES: Final = 2_000
"""Looking for a typo among more than this takes longer than the answer is worth."""


def nearest(word: str, choices: Iterable[str], most: int = 2) -> list[str]:
    """Up to `most` of the choices that were probably meant, best first."""
    names = list(choices)
    wanted = _plain(word)
    if not wanted or len(word) > _LONGEST or len(names) > _MOST_CHOICES:
        return []
    same = [name for name in names if _plain(name) == wanted]
    if same:
        return same[:most]
    longer = [name for name in names if len(wanted) > 1 and _plain(name).startswith(wanted)]
    if longer:
        return longer[:most]
    by_plain = {_plain(name): name for name in reversed(names)}
    return [by_plain[found] for found in difflib.get_close_matches(wanted, by_plain, n=most, cutoff=0.65)]


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())
