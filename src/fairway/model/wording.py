"""How lengths of time, counts and other people's text are written, wherever Fairway speaks."""

from __future__ import annotations


def span(seconds: float) -> str:
    """A length of time in its largest fitting unit: `12 s`, `5 min`, `3 h`, `9 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0, seconds))} s"


def count(n: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def clean(text: str) -> str:
    """Text that cannot move the cursor or break a row: an engine's words may hold anything."""
    return "".join(" " if ch in "\t\r\n" else ch for ch in text if ch in "\t\r\n" or ch.isprintable())
