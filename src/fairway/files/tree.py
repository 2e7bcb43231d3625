"""The tree of a YAML text: every key and value with its line and column.

Scalars are resolved by the YAML 1.2 core schema, as editors do: `no` stays a word, numbers keep their digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """What a scalar is, in words for people."""

    NOTHING = "nothing"
    TRUTH = "a truth value"
    WHOLE = "a whole number"
    DECIMAL = "a number"
    TEXT = "text"


class Mark(NamedTuple):
    """A place in the file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word, number or piece of text, as written."""

    mark: Mark
    text: str
    kind: Kind
    plain: bool
    """Written without quotes."""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """A YAML sequence."""

    mark: Mark
    items: tuple[Node, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping and its value."""

    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """A YAML mapping: each key once, merge keys written out."""

    mark: Mark
    entries: tuple[Entry, ...]
    weight: int

    def entry(self, name: str) -> Entry | None:
        """The entry with this key."""
        return next((e for e in self.entries if e.key.text == name), None)


Node = Scalar | Listing | Mapping

_CORE: Final = (
    (Kind.NOTHING, re.compile(r"~|null|Null|NULL|")),
    (Kind.TRUTH, re.compile(r"true|True|TRUE|false|False|FALSE")),
    (Kind.WHOLE, re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    (
        Kind.DECIMAL,
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    ),
)


def word(text: str, mark: Mark) -> Scalar:
    """A scalar as if it stood in a file without quotes."""
    kind = next((kind for kind, pattern in _CORE if pattern.fullmatch(text)), Kind.TEXT)
    return Scalar(mark, text, kind, True)


def quoted(text: str, mark: Mark) -> Scalar:
    """A scalar as if it stood in a file in quotes: always text."""
    return Scalar(mark, text, Kind.TEXT, False)


def mapping(entries: MappingOf[str, Node], mark: Mark) -> Mapping:
    """A mapping that was put together here, e.g. of flags; each value keeps the place it came from."""
    made = tuple(Entry(quoted(key, value.mark), value) for key, value in entries.items())
    return Mapping(mark, made, 1 + sum(value.weight for value in entries.values()))


def listing(items: Sequence[Node], mark: Mark) -> Listing:
    """A list that was put together here."""
    return Listing(mark, tuple(items), 1 + sum(item.weight for item in items))
