"""Expand Slurm's hostlists: `gpu[001-003,007],login`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from fairway.model.names import NodeName

MAX_NODES: Final = 100_000
"""A limit on what a broken line can make us hold."""

_RANGE: Final = re.compile(r"\[([^\]]*)\]")
_EMPTY: Final = frozenset({"", "None assigned", "(null)", "N/A"})


@lru_cache(maxsize=8192)  # many jobs, few lists of nodes
def expand(text: str) -> tuple[NodeName, ...]:
    """Expand a hostlist, in its order; empty for a job without nodes."""
    if text in _EMPTY:
        return ()
    names: list[NodeName] = []
    for part in split_list(text, "[]"):
        for name in _expand_part(part):
            names.append(NodeName(name))
            if len(names) >= MAX_NODES:
                return tuple(names)
    return tuple(names)


def split_list(text: str, brackets: str) -> Iterator[str]:
    """Split at commas, except inside a pair of brackets: `()` or `[]`."""
    depth = start = 0
    for i, char in enumerate(text):
        if char == brackets[0]:
            depth += 1
        elif char == brackets[1]:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _expand_part(part: str) -> Iterator[str]:
    found = _RANGE.search(part)
    if found is None:
        yield part
        return
    head, tail = part[: found.start()], part[found.end() :]
    for piece in found[1].split(","):
        low, dash, high = piece.partition("-")
        numbers = [piece]
        if dash and low.isdecimal() and high.isdecimal():
            last = min(int(high), int(low) + MAX_NODES)
            numbers = [f"{number:0{len(low)}}" for number in range(int(low), last + 1)]
        for number in numbers:
            for rest in _expand_part(tail):
                yield f"{head}{number}{rest}"
