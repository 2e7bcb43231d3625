"""Both parsers read the same tree: libyaml, which is quick, and ruamel's, which has the last word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.files.diagnostics import Faults
from fairway.files.yaml import MappingNode, Node, ScalarNode, SequenceNode, _parse_fast, _parse_strict
from tests.tier import examples
from tests.unit.files.fleets import SHARED, SOUND

TEXTS = [
    SOUND,
    SHARED,
    *(p.read_text() for p in sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))),
]


def plain(node: Node) -> Any:
    """The tree without the place of what is not there, where the parsers differ and nobody looks."""
    match node:
        case MappingNode():
            return node.mark, node.weight, [(plain(e.key), plain(e.value)) for e in node.entries]
        case SequenceNode():
            return node.mark, node.weight, [plain(item) for item in node.items]
        case ScalarNode(text="", plain=True):
            return None
    return node


def both(text: str) -> tuple[list[Node] | None, list[Node] | None]:
    return _parse_fast(text, 1), _parse_strict(text, Faults("careful"), 1)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_people_write_is_read_quickly_and_the_same(text: str) -> None:
    quick, careful = both(text)
    assert quick is not None and careful is not None
    assert [*map(plain, quick)] == [*map(plain, careful)]


PIECES = [
    ": ",
    " #",
    "\n",
    "- ",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "'",
    '"',
    "? ",
    "\\",
    "é😀",
    "a:b",
    "<<: ",
    "\r",
    "~",
]


@settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.integers(0, 1400),
    st.integers(40, 200),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(PIECES)), max_size=3),
)
def test_odd_texts_are_read_the_same_or_left_to_the_careful_one(
    start: int, length: int, put: list[tuple[int, str]]
) -> None:
    text = SHARED[start : start + length]
    for at, piece in put:
        text = text[:at] + piece + text[at:]
    quick, careful = both(text)
    if quick is not None and careful is not None:
        assert [*map(plain, quick)] == [*map(plain, careful)]


@pytest.mark.parametrize(
    "text",
    [
        "a: |\n  b\n",
        "a: !x b\n",
        "a:\tb\n",
        "a: b\u2028c\n",
        "%YAML 1.1\n---\na: b\n",
        "a: [1\n",
        "a: 1\na: 2\n",
    ],
)
def test_what_the_parsers_may_read_differently_is_left_to_the_careful_one(text: str) -> None:
    assert _parse_fast(text, 1) is None
