"""Slurm's short way to write node names: `gpu[001-003,007],login`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from fairway.model.names import NodeName

MOST_NODES: Final = 100_000
"""An end to what a broken line can make us hold."""

_RANGE: Final = re.compile(r"\[([^\]]*)\]")
_NONE: Final = frozenset({"", "None assigned", "(null)", "N/A"})


@lru_cache(maxsize=8192)  # many jobs, few places
def expand(text: str) -> tuple[NodeName, ...]:
    """The names a list stands for, in its order; those of a job without nodes: none."""
    if text in _NONE:
        return ()
    names: list[NodeName] = []
    for part in _parts(text):
        for name in _each(part):
            names.append(NodeName(name))
            if len(names) >= MOST_NODES:
                return tuple(names)
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """Between commas that are in no bracket."""
    depth = start = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _each(part: str) -> Iterator[str]:
    found = _RANGE.search(part)
    if found is None:
        yield part
        return
    head, tail = part[: found.start()], part[found.end() :]
    for piece in found[1].split(","):
        low, dash, high = piece.partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            numbers = range(int(low), min(int(high), int(low) + MOST_NODES) + 1)
            written: Iterator[str] = (f"{number:0{len(low)}}" for number in numbers)
        else:
            written = iter([piece])
        for number in written:
            for rest in _each(tail):
                yield f"{head}{number}{rest}"
