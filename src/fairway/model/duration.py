"""Lengths of time as people write them: `7d`, `72h`, `1d12h`, `90s`."""

from __future__ import annotations

import re
from typing import Final

# Days to seconds, the largest unit first, each at most once; the look-ahead keeps out the empty text.
DURATION_PATTERN: Final = r"(?=[0-9])([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?"
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse_duration(text: str) -> int | None:
    """Its seconds; None if it is not written so."""
    if re.fullmatch(DURATION_PATTERN, text) is None:
        return None
    return sum(int(n) * _SECONDS[unit] for n, unit in re.findall(r"([0-9]+)([dhms])", text))


def duration_text(seconds: int) -> str:
    """The shortest way to write it: 129600 is `1d12h`."""
    text, rest = "", seconds
    for unit, size in _SECONDS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
