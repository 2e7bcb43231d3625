"""Change single values of a fleet file by dotted path, such as `teams.research.share`, before it is checked.

The value is what a file would have there, so that a changed file is checked like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.files.diagnostics import Faults, did_you_mean, shown
from fairway.files.yaml import MappingEntry, MappingNode, Mark, Node, parse, quoted
from fairway.model.errors import PermanentError

ANY: Final = "*"
"""In a path: every key of that mapping."""
_PART: Final = re.compile(r'"([^"]*)"|([^."]+)')
SHORT_KEYS: Final = {"half_life": ("fairness", "half_life")}
"""Keys that need no path."""
_MAX_LENGTH: Final = 300
_PLACES: Final = ("nodes", "gpus_per_node", "slices_per_gpu", "nodes_per_rack")


@dataclass(frozen=True, slots=True)
class Override:
    """A value of a fleet file and what replaces it."""

    path: tuple[str, ...]
    value: Node
    text: str
    """As written: `half_life=1d`."""


class InvalidOverride(PermanentError):
    """Raised for a key or value that no fleet file could have."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("InvalidOverride", message, hint)


def parse_path(text: str) -> tuple[str, ...]:
    """Parse a dotted path; keys with dots are quoted: `pools.mig.slice_prices."1g.10gb"`."""
    at, parts = 0, []
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != "."):
            break
        parts.append(found[1] if found[1] is not None else found[2])
        at = found.end() + 1
    if not text or len(text) > _MAX_LENGTH or at != len(text) + 1:
        raise InvalidOverride(
            f"{shown(text)} is no key of a fleet file",
            'write its path with dots:  fairness.half_life, teams.research.share, pools.gpu."1g.10gb"',
        )
    return SHORT_KEYS.get(text, tuple(parts))


def parse_value(text: str) -> Node:
    """Parse a value as YAML: `7d`, `16`, `unlimited`, `{gpu: 8}`."""
    faults = Faults("value")
    node = parse(text, faults)
    if node is None:
        message = next((fault.message for fault in faults.sorted()), "it is empty")
        raise InvalidOverride(f"{shown(text)} is no value: {message}", "write what the file would have")
    return node


def override(key: str, value: str) -> Override:
    """Return the override that sets a key to a value. Raises InvalidOverride."""
    return Override(parse_path(key), parse_value(value), f"{key}={value}")


def overridden(root: Node, overrides: Sequence[Override]) -> Node:
    """Return the tree of a fleet file with values replaced. Raises InvalidOverride if a key has no place."""
    for one in overrides:
        for path in _places(root, one):
            root = _replaced(root, path, one)
    return root


def _places(root: Node, one: Override) -> list[tuple[str, ...]]:
    """Return the full paths that an override means: of nested teams, sizes of pools, and every `*`."""
    path = one.path
    if path[0] == "teams" and len(path) > 1 and path[1] != ANY:
        path = (*(_team_path(root, path[1]) or ("teams", path[1])), *path[2:])
    if path[0] == "pools" and len(path) > 2 and path[2] in _PLACES:
        path = (*path[:2], "virtual", *path[2:])
    found = list(_expanded(root, path, (), one))
    if not found:
        raise InvalidOverride(f"{shown(one.text)}: there is nothing for the * of this key", "name one")
    return found


def _team_path(node: Node, team: str) -> tuple[str, ...] | None:
    """Return the path of a team, wherever it is nested."""
    teams = node.entry("teams") if isinstance(node, MappingNode) else None
    if teams is None or not isinstance(teams.value, MappingNode):
        return None
    for entry in teams.value.entries:
        if entry.key.text == team:
            return ("teams", team)
        inner = _team_path(entry.value, team)
        if inner is not None:
            return ("teams", entry.key.text, *inner)
    return None


def _expanded(
    node: Node | None, path: Sequence[str], before: tuple[str, ...], one: Override
) -> Iterator[tuple[str, ...]]:
    """Generate the paths with each `*` replaced. Raises InvalidOverride for a name that is not there."""
    if not path:
        yield before
        return
    key, rest = path[0], path[1:]
    if node is not None and not isinstance(node, MappingNode):
        raise InvalidOverride(
            f"{shown(one.text)}: {shown('.'.join(before))} is a value, and has no {shown(key)}",
            "name a key that the file has; `fairway schema` lists all",
        )
    names = [] if node is None else [entry.key.text for entry in node.entries]
    if key == ANY:
        for name in names:
            yield from _expanded(_inner(node, name), rest, (*before, name), one)
        return
    if before in (("teams",), ("pools",), ("clusters",), ("priorities",)) and key not in names and rest:
        raise InvalidOverride(
            f"{shown(one.text)}: the file has no {before[0].rstrip('s')} {shown(key)}",
            did_you_mean(key, names, f"it has {', '.join(map(shown, names[:8])) or 'none'}"),
        )
    yield from _expanded(_inner(node, key), rest, (*before, key), one)


def _inner(node: Node | None, key: str) -> Node | None:
    entry = node.entry(key) if isinstance(node, MappingNode) else None
    return None if entry is None else entry.value


def _replaced(node: Node | None, path: Sequence[str], one: Override) -> Node:
    if not path:
        return one.value
    mapping = node if isinstance(node, MappingNode) else MappingNode(Mark(1, 1), (), 1)
    key, old = path[0], mapping.entry(path[0])
    value = _replaced(None if old is None else old.value, path[1:], one)
    if old is None:
        entries = (*mapping.entries, MappingEntry(quoted(key, mapping.mark), value))
    else:
        entries = tuple(replace(e, value=value) if e is old else e for e in mapping.entries)
    return replace(mapping, entries=entries)
