"""Format durations and counts; parse durations; find the nearest name to a mistyped one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final


def span(seconds: float) -> str:
    """Format a duration in its largest suitable unit: `12 s`, `5 min`, `3 h`, `9 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0, seconds))} s"


def count(n: int, noun: str) -> str:
    """Format a count with its noun: `1 node`, `3 nodes`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def first_few(names: Sequence[object], most: int) -> str:
    """Format the first `most` names and count the rest: `gpu001, gpu002 and 6 more`."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def sentence(text: str) -> str:
    """Return a text as a sentence: with a full stop, unless it has an end already."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def clean(text: str) -> str:
    """Remove control characters and line breaks from text, e.g. an engine's, which may contain anything."""
    return "".join(" " if ch in "\t\r\n" else ch for ch in text if ch in "\t\r\n" or ch.isprintable())


# Days to seconds, largest unit first, each at most once; the look-ahead excludes the empty string.
DURATION_PATTERN: Final = r"(?=[0-9])([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?"

_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse_duration(text: str) -> int | None:
    """Parse a duration such as `1d12h` into seconds. Returns None if it is invalid."""
    if re.fullmatch(DURATION_PATTERN, text) is None:
        return None
    return sum(int(n) * _SECONDS[unit] for n, unit in re.findall(r"([0-9]+)([dhms])", text))


def duration_text(seconds: int) -> str:
    """Format seconds as the shortest duration: 129600 is `1d12h`."""
    text, rest = "", seconds
    for unit, size in _SECONDS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


_MAX_LENGTH: Final = 64

_MAX_CHOICES: Final = 2_000
"""Maximum number of choices to search: beyond that it takes too long for a hint."""


def nearest(word: str, choices: Iterable[str], most: int = 2) -> list[str]:
    """Return up to `most` choices nearest to `word`, best first."""
    names = list(choices)
    wanted = _plain(word)
    if not wanted or len(word) > _MAX_LENGTH or len(names) > _MAX_CHOICES:
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
