"""Slurm's GRES strings, as slurmctld prints them: `gpu:a100:8(S:0-1),shard:a100:32`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COUNT: Final = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_MULTIPLES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
# `gpu:a100:no_consume:8` is a flag between type and count, not a part of the type
_FLAGS: Final = frozenset({"no_consume"})


@dataclass(frozen=True, slots=True)
class Gres:
    """Some devices of one name and type on a node."""

    name: str
    type: str | None
    count: int
    detail: str = ""
    """What stood in parentheses: `S:0-1`, `IDX:0-3`, or `2/4,0/4` for what is shared of each GPU."""


def parse_gres(text: str) -> tuple[Gres, ...]:
    """What a GRES string lists, in its order. `""`, `(null)` and `N/A` list nothing."""
    # `(null)` also stands for a type that was never given: `gpu:(null):2(IDX:0-1)`
    return tuple(_entry(part) for part in _split(text.replace("(null)", "")) if part not in ("", "N/A"))


def shared_gpus(detail: str) -> int:
    """GPUs of which something is shared out, from a shard's or MPS's `used/all` for each GPU.

    Slurm does not count them as used GPUs, yet gives none of them to a job that wants a whole one.
    """
    pairs = (pair.partition("/") for pair in detail.split(","))
    return sum(1 for used, slash, _ in pairs if slash and used.strip().isdigit() and int(used))


def _split(text: str) -> Iterator[str]:
    """Parts between commas; commas inside parentheses separate nothing."""
    depth = start = 0
    for i, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if last := text[start:].strip():
        yield last


def _entry(part: str) -> Gres:
    words, _, detail = part.partition("(")
    name, *rest = words.split(":")
    count = 1
    if rest and (number := _COUNT.fullmatch(rest[-1])):
        count = int(number[1]) * _MULTIPLES[number[2].upper()]
        rest.pop()
    kind = ":".join(word for word in rest if word not in _FLAGS)
    return Gres(name, kind or None, count, detail.removesuffix(")"))
