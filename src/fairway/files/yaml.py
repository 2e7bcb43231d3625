"""Parse YAML into a tree of nodes: every key and value with its line and column.

Scalars are resolved by the YAML 1.2 core schema, as in editors: `no` stays a word, numbers keep their digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import yaml
from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from fairway.files.diagnostics import FaultCode, Faults, Location, dotted, shown


class ScalarKind(StrEnum):
    """The type of a scalar, named as in fault messages."""

    NULL = "nothing"
    BOOLEAN = "a truth value"
    INTEGER = "a whole number"
    FLOAT = "a number"
    STRING = "text"


class Mark(NamedTuple):
    """A line and column in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A YAML scalar, as written."""

    mark: Mark
    text: str
    kind: ScalarKind
    plain: bool
    """Written without quotes."""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A YAML sequence."""

    mark: Mark
    items: tuple[Node, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class MappingEntry:
    """One key of a mapping and its value."""

    key: ScalarNode
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A YAML mapping: each key once, merge keys written out."""

    mark: Mark
    entries: tuple[MappingEntry, ...]
    weight: int

    def entry(self, name: str) -> MappingEntry | None:
        """Return the entry with this key. Returns None if there is none."""
        return next((e for e in self.entries if e.key.text == name), None)


Node = ScalarNode | SequenceNode | MappingNode

_CORE: Final = (
    (ScalarKind.NULL, re.compile(r"~|null|Null|NULL|")),
    (ScalarKind.BOOLEAN, re.compile(r"true|True|TRUE|false|False|FALSE")),
    (ScalarKind.INTEGER, re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    (
        ScalarKind.FLOAT,
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    ),
)


def unquoted(text: str, mark: Mark) -> ScalarNode:
    """Create a scalar as if written in a file without quotes: its kind depends on the text."""
    kind = next((kind for kind, pattern in _CORE if pattern.fullmatch(text)), ScalarKind.STRING)
    return ScalarNode(mark, text, kind, True)


def quoted(text: str, mark: Mark) -> ScalarNode:
    """Create a scalar as if written in a file in quotes: always text."""
    return ScalarNode(mark, text, ScalarKind.STRING, False)


def mapping_node(entries: Mapping[str, Node], mark: Mark) -> MappingNode:
    """Create a mapping in code, e.g. from flags; each value keeps its position."""
    nodes = tuple(MappingEntry(quoted(key, value.mark), value) for key, value in entries.items())
    return MappingNode(mark, nodes, 1 + sum(value.weight for value in entries.values()))


def sequence_node(items: Sequence[Node], mark: Mark) -> SequenceNode:
    """Create a list in code."""
    return SequenceNode(mark, tuple(items), 1 + sum(item.weight for item in items))


MAX_VALUES: Final = 500_000
"""Maximum number of keys and values with aliases expanded; a file of the maximum size has fewer."""
MAX_DEPTH: Final = 24


class _StopParsing(Exception):
    """Raised to stop parsing after a fault that makes the rest unreadable."""


# Both libraries have the same events, of different classes.
_ALIAS: Final = (events.AliasEvent, yaml.AliasEvent)
_SCALAR: Final = (events.ScalarEvent, yaml.ScalarEvent)
_START: Final = (events.CollectionStartEvent, yaml.CollectionStartEvent)
_START_MAPPING: Final = (events.MappingStartEvent, yaml.MappingStartEvent)
_END: Final = (events.CollectionEndEvent, yaml.CollectionEndEvent)
_DOCUMENT: Final = (events.DocumentStartEvent, yaml.DocumentStartEvent)

# libyaml parses YAML 1.1, so it may read these differently: line ends that 1.2 no longer has, tabs,
# directives, block texts, tags. Other valid YAML 1.2, such as the anchor &a.b, it rejects.
_PARSERS_DIFFER: Final = re.compile("[\x85\u2028\u2029\ufeff\t|>!]|^%", re.MULTILINE)


def parse(text: str, faults: Faults) -> Node | None:
    """Parse a file with one document. Returns None if it is empty or unreadable, with the fault reported."""
    roots = parse_all(text, faults, 1)
    return roots[0] if roots else None


def parse_all(text: str, faults: Faults, max_documents: int) -> tuple[Node, ...]:
    """Parse a file of up to `max_documents` documents, skipping empty ones.

    Returns an empty tuple if the file is empty or unreadable, with the fault reported.
    """
    roots = _parse_fast(text, max_documents)
    if roots is None:
        roots = _parse_strict(text, faults, max_documents)
    if roots is None:
        return ()
    documents = tuple(r for r in roots if not (isinstance(r, ScalarNode) and r.plain and not r.text))
    if not documents:
        faults.add(
            FaultCode.EMPTY_FILE,
            Location(1, 1),
            "the file is empty",
            hint="start from one of the files in examples/, or see what belongs in it:  fairway schema",
        )
    return documents


def _parse_fast(text: str, max_documents: int) -> list[Node] | None:
    """Parse with libyaml. Returns None if the text has a fault or needs ruamel.yaml."""
    loader = getattr(yaml, "CSafeLoader", None)  # absent where PyYAML was built without libyaml
    if loader is None or _PARSERS_DIFFER.search(text):
        return None
    builder = _TreeBuilder(Faults(""), max_documents)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.handle(event)
    except (_StopParsing, yaml.YAMLError, ValueError):
        return None
    # Faults are reported by the second parser only, so that they do not depend on which one is used.
    return None if builder.faults.any else builder.roots


def _parse_strict(text: str, faults: Faults, max_documents: int) -> list[Node] | None:
    """Parse with ruamel.yaml. Returns None, with the fault reported, if the text is unreadable."""
    builder = _TreeBuilder(faults, max_documents)
    try:
        for event in _events(text, faults):
            builder.handle(event)
    except _StopParsing:
        return None
    return builder.roots


def _events(text: str, faults: Faults) -> Iterator[events.Event]:
    last = Mark(1, 1)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            last = _mark(event)
            yield event
    except _StopParsing:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Mark(mark.line + 1, mark.column + 1) if mark else last
        problem = shown(str(error.problem or error.context or "unreadable"), 120)
        _not_yaml(faults, at, problem)
    except ReaderError as error:
        before = text[: error.position]
        at = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        _not_yaml(
            faults, at, f"the character {shown(text[error.position : error.position + 1])} is not allowed"
        )
    except Exception as error:
        # ruamel's scanner has unguarded corners, e.g. chr() of the escape "\UFFFFFFFF".
        _not_yaml(faults, last, shown(str(error), 120) or type(error).__name__)


def _not_yaml(faults: Faults, at: Mark, problem: str) -> None:
    faults.add(
        FaultCode.NOT_YAML,
        Location(*at),
        f"this is not YAML: {problem}",
        expected="well-formed YAML",
        hint=_syntax_hint(problem),
    )
    raise _StopParsing


def _syntax_hint(problem: str) -> str:
    if "\\t" in problem:
        return "indent by spaces: YAML forbids tabs there"
    if "mapping values are not allowed" in problem:
        return "mend the indentation of this line, or put text that holds ': ' in quotes"
    if "stream end" in problem or "end of stream" in problem:
        return "close the bracket or quote that is still open"
    return "look at this line and the one before: indentation, an open bracket, an open quote"


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


@dataclass(slots=True)
class _OpenNode:
    """A list or mapping whose end event has not arrived yet."""

    mark: Mark
    is_mapping: bool
    anchor: str | None
    children: list[Node] = field(default_factory=list)
    weight: int = 1


@dataclass(slots=True)
class _TreeBuilder:
    """A tree builder that takes parser events; its explicit stack bounds the depth."""

    faults: Faults
    max_documents: int
    roots: list[Node] = field(default_factory=list)
    _stack: list[_OpenNode] = field(default_factory=list)
    _anchors: dict[str, Node | None] = field(default_factory=dict)
    """None while the anchored value is still open: an alias to it would be recursive."""
    _documents: int = 0
    _weight: int = 0

    def handle(self, event: Any) -> None:
        if isinstance(event, _SCALAR):
            self._check_tag(event)
            self._add(_scalar(event), event.anchor)
        elif isinstance(event, _START):
            self._check_tag(event)
            self._open(event)
        elif isinstance(event, _END):
            ended = self._stack.pop()
            self._add(self._close(ended), ended.anchor)
        elif isinstance(event, _ALIAS):
            self._add(self._alias(event), None)
        elif isinstance(event, _DOCUMENT):
            self._start_document(_mark(event))

    def _start_document(self, at: Mark) -> None:
        self._documents += 1
        self._anchors.clear()
        if self._documents <= self.max_documents:
            return
        if self.max_documents == 1:
            message = "a second document begins here"
            hint = "keep one document a file: take the line '---' away, or put the rest in another file"
        else:
            message = f"there are more than {self.max_documents:,} documents in the file"
            hint = "put the rest in another file"
        self._fault(FaultCode.SEVERAL_DOCUMENTS, at, message, hint)
        raise _StopParsing

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None:
            self._fault(
                FaultCode.TAG_NOT_ALLOWED,
                _mark(event),
                f"the tag {shown(str(event.tag))} is not allowed",
                "take the tag away; to make text of a number, put it in quotes",
            )

    def _open(self, event: Any) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self._fault(
                FaultCode.TOO_DEEP,
                _mark(event),
                f"values are nested more than {MAX_DEPTH} deep",
                "look for a bracket that is opened too often",
            )
            raise _StopParsing
        if event.anchor:
            self._anchors[event.anchor] = None
        self._stack.append(_OpenNode(_mark(event), isinstance(event, _START_MAPPING), event.anchor))

    def _alias(self, event: Any) -> Node:
        at, name = _mark(event), shown(str(event.anchor))
        if event.anchor not in self._anchors:
            self._fault(
                FaultCode.UNKNOWN_ALIAS,
                at,
                f"the alias *{name} has no anchor &{name} before it",
                f"put &{name} before the value that is meant, or quote text that begins with '*'",
            )
            raise _StopParsing
        node = self._anchors[event.anchor]
        if node is None:
            self._fault(
                FaultCode.ENDLESS_ALIAS,
                at,
                f"the alias *{name} stands inside what it refers to",
                "write the value out instead of the alias",
            )
            raise _StopParsing
        return node

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = node
        if not self._stack:
            self.roots.append(node)
            self._weight += node.weight
            weight = self._weight
        else:
            parent = self._stack[-1]
            parent.weight += node.weight
            parent.children.append(node)
            weight = parent.weight
        if weight > MAX_VALUES:
            self._fault(
                FaultCode.TOO_MANY_VALUES,
                node.mark,
                f"with its aliases written out the file has more than {MAX_VALUES:,} values",
                "use fewer aliases of aliases, or split the file",
            )
            raise _StopParsing

    def _close(self, node: _OpenNode) -> Node:
        if not node.is_mapping:
            return SequenceNode(node.mark, tuple(node.children), node.weight)
        own: dict[str, MappingEntry] = {}
        merged: list[MappingNode] = []
        for key, value in zip(node.children[::2], node.children[1::2], strict=True):
            if isinstance(key, ScalarNode) and key.plain and key.text == "<<":
                merged.extend(self._merged(value))
            elif not isinstance(key, ScalarNode) or key.kind is not ScalarKind.STRING:
                self._key_not_text(key)
            elif key.text in own:
                self._duplicate(key, own[key.text].key)
            else:
                own[key.text] = MappingEntry(key, value)
        for mapping in merged:
            for entry in mapping.entries:
                own.setdefault(entry.key.text, entry)
        return MappingNode(node.mark, tuple(own.values()), node.weight)

    def _merged(self, value: Node) -> list[MappingNode]:
        parts = value.items if isinstance(value, SequenceNode) else (value,)
        mappings = [part for part in parts if isinstance(part, MappingNode)]
        if len(mappings) != len(parts):
            self._fault(
                FaultCode.BAD_MERGE,
                value.mark,
                "what follows << is not a mapping",
                "refer to a mapping that has an anchor:  <<: *name",
            )
        return mappings

    def _key_not_text(self, key: Node) -> None:
        written = shown(key.text) if isinstance(key, ScalarNode) else ""
        self._fault(
            FaultCode.KEY_NOT_TEXT,
            key.mark,
            f"this key is {key.kind if isinstance(key, ScalarNode) else 'a list or a mapping'}, not text",
            f'put it in quotes:  "{written}"' if written else "write a word before the ':'",
            found=written,
        )

    def _duplicate(self, key: ScalarNode, first: ScalarNode) -> None:
        name = shown(key.text)
        self._fault(
            FaultCode.DUPLICATE_KEY,
            key.mark,
            f"the key {name} stands twice in one mapping",
            "take one of them away, or rename it",
            inside=(key.text,),
            related=(Location(*first.mark, dotted((*self._path(), key.text))),),
        )

    def _fault(
        self,
        code: FaultCode,
        at: Mark,
        message: str,
        hint: str,
        *,
        found: str = "",
        inside: tuple[str, ...] = (),
        related: tuple[Location, ...] = (),
    ) -> None:
        location = Location(*at, dotted((*self._path(), *inside)), found)
        self.faults.add(code, location, message, hint=hint, related=related)

    def _path(self) -> list[str | int]:
        """Return the path at which the next event belongs."""
        path: list[str | int] = []
        for parent in self._stack:
            if not parent.is_mapping:
                path.append(len(parent.children))
            elif len(parent.children) % 2:
                key = parent.children[-1]
                path.append(key.text if isinstance(key, ScalarNode) else "?")
        return path


def _scalar(event: Any) -> ScalarNode:
    if event.style:
        return quoted(str(event.value), _mark(event))
    return unquoted(str(event.value), _mark(event))
