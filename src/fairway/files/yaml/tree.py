"""Define the nodes of a YAML tree: every key and value with its line and column.

Scalars are resolved by the YAML 1.2 core schema, as in editors: `no` stays a word, numbers keep their digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class ScalarKind(StrEnum):
    """The type of a scalar, named as in fault messages."""

    NOTHING = "nothing"
    TRUTH = "a truth value"
    WHOLE = "a whole number"
    DECIMAL = "a number"
    TEXT = "text"


class Mark(NamedTuple):
    """A line and column in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A YAML scalar, as written."""

    mark: Mark
    text: str
    kind: ScalarKind
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
class MappingEntry:
    """One key of a mapping and its value."""

    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """A YAML mapping: each key once, merge keys written out."""

    mark: Mark
    entries: tuple[MappingEntry, ...]
    weight: int

    def entry(self, name: str) -> MappingEntry | None:
        """Return the entry with this key. Returns None if there is none."""
        return next((e for e in self.entries if e.key.text == name), None)


Node = Scalar | Listing | Mapping

_CORE: Final = (
    (ScalarKind.NOTHING, re.compile(r"~|null|Null|NULL|")),
    (ScalarKind.TRUTH, re.compile(r"true|True|TRUE|false|False|FALSE")),
    (ScalarKind.WHOLE, re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    (
        ScalarKind.DECIMAL,
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    ),
)


def word(text: str, mark: Mark) -> Scalar:
    """Create a scalar as if written in a file without quotes: its kind depends on the text."""
    kind = next((kind for kind, pattern in _CORE if pattern.fullmatch(text)), ScalarKind.TEXT)
    return Scalar(mark, text, kind, True)


def quoted(text: str, mark: Mark) -> Scalar:
    """Create a scalar as if written in a file in quotes: always text."""
    return Scalar(mark, text, ScalarKind.TEXT, False)


def mapping(entries: MappingOf[str, Node], mark: Mark) -> Mapping:
    """Create a mapping in code, e.g. from flags; each value keeps its position."""
    made = tuple(MappingEntry(quoted(key, value.mark), value) for key, value in entries.items())
    return Mapping(mark, made, 1 + sum(value.weight for value in entries.values()))


def listing(items: Sequence[Node], mark: Mark) -> Listing:
    """Create a list in code."""
    return Listing(mark, tuple(items), 1 + sum(item.weight for item in items))
