"""Parse YAML text into a tree with the line and column of every key and value.

The tree is built from parser events, not by a YAML constructor, so that nothing is ever instantiated, and
depth and size are bounded before a value exists.

There are two parsers: libyaml is ten times as fast, ruamel.yaml reports errors better. A text that libyaml
rejects, or that has syntax the two parse differently, is parsed again by ruamel.yaml, whose result is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from fairway.files.diagnostics import FaultCode, Faults, Spot, dotted, shown
from fairway.files.yaml.tree import Listing, Mapping, MappingEntry, Mark, Node, Scalar, ScalarKind, word

MOST_VALUES: Final = 500_000
"""Maximum number of keys and values with aliases expanded; a file of the maximum size has fewer."""
DEEPEST: Final = 24


class _Stop(Exception):
    """Raised to stop parsing after a fault that makes the rest unreadable."""


# Both libraries have the same events, of different classes.
_ALIAS: Final = (events.AliasEvent, yaml.AliasEvent)
_SCALAR: Final = (events.ScalarEvent, yaml.ScalarEvent)
_START: Final = (events.CollectionStartEvent, yaml.CollectionStartEvent)
_START_MAPPING: Final = (events.MappingStartEvent, yaml.MappingStartEvent)
_END: Final = (events.CollectionEndEvent, yaml.CollectionEndEvent)
_DOCUMENT: Final = (events.DocumentStartEvent, yaml.DocumentStartEvent)

# Line ends of YAML 1.1 that 1.2 took out, tabs, directives, block texts, tags: there the two may differ.
_READ_DIFFERENTLY: Final = re.compile("[\x85\u2028\u2029\ufeff\t|>!]|^%", re.MULTILINE)


def parse(text: str, faults: Faults) -> Node | None:
    """Parse a file with one document. Returns None if it is empty or unreadable, with the fault reported."""
    roots = grow_all(text, faults, 1)
    return roots[0] if roots else None


def grow_all(text: str, faults: Faults, most: int) -> tuple[Node, ...]:
    """Parse a file of up to `most` documents, skipping empty ones.

    Returns an empty tuple if the file is empty or unreadable, with the fault reported.
    """
    builder = _parse_fast(text, faults, most) or _parse_strict(text, faults, most)
    if builder is None:
        return ()
    roots = tuple(r for r in builder.roots if not (isinstance(r, Scalar) and r.plain and not r.text))
    if not roots:
        faults.add(
            FaultCode.EMPTY_FILE,
            Spot(1, 1, "", ""),
            "the file is empty",
            hint="start from one of the files in examples/, or see what belongs in it:  fairway schema",
        )
    return roots


def _parse_fast(text: str, faults: Faults, most: int = 1) -> _Builder | None:
    """Parse with libyaml. Returns None, without reporting a fault, if the text needs ruamel.yaml."""
    loader = getattr(yaml, "CSafeLoader", None)  # absent where PyYAML was built without libyaml
    if loader is None or _READ_DIFFERENTLY.search(text):
        return None
    builder = _Builder(Faults(faults.source), most)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except (_Stop, yaml.YAMLError, ValueError):
        return None
    # One voice for all faults: what is wrong with the text itself, ruamel's parser leads to.
    return None if builder.faults.any else builder


def _parse_strict(text: str, faults: Faults, most: int = 1) -> _Builder | None:
    """Parse with ruamel.yaml. Returns None, with the fault reported, if the text is unreadable."""
    builder = _Builder(faults, most)
    try:
        for event in _events(text, faults):
            builder.take(event)
    except _Stop:
        return None
    return builder


def _events(text: str, faults: Faults) -> Iterator[events.Event]:
    last = Mark(1, 1)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            last = _mark(event)
            yield event
    except _Stop:
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
        Spot(*at, "", ""),
        f"this is not YAML: {problem}",
        expected="well-formed YAML",
        hint=_syntax_hint(problem),
    )
    raise _Stop


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
class _Open:
    """A list or mapping whose end event has not arrived yet."""

    mark: Mark
    is_mapping: bool
    anchor: str | None
    children: list[Node] = field(default_factory=list)
    weight: int = 1


@dataclass(slots=True)
class _Builder:
    """A tree builder that takes parser events; its explicit stack bounds the depth."""

    faults: Faults
    most: int
    """Maximum number of documents."""
    roots: list[Node] = field(default_factory=list)
    _stack: list[_Open] = field(default_factory=list)
    _anchors: dict[str, Node | None] = field(default_factory=dict)
    """None while the anchored value is still open: an alias to it would be recursive."""
    _documents: int = 0
    _weight: int = 0

    def take(self, event: Any) -> None:
        if isinstance(event, _SCALAR):
            self._no_tag(event)
            self._add(_scalar(event), event.anchor)
        elif isinstance(event, _START):
            self._no_tag(event)
            self._open(event)
        elif isinstance(event, _END):
            done = self._stack.pop()
            self._add(self._close(done), done.anchor)
        elif isinstance(event, _ALIAS):
            self._add(self._alias(event), None)
        elif isinstance(event, _DOCUMENT):
            self._start_document(_mark(event))

    def _start_document(self, at: Mark) -> None:
        self._documents += 1
        self._anchors.clear()
        if self._documents > self.most:
            self._too_many_documents(at)
            raise _Stop

    def _too_many_documents(self, at: Mark) -> None:
        if self.most == 1:
            message = "a second document begins here"
            hint = "keep one document a file: take the line '---' away, or put the rest in another file"
        else:
            message = f"there are more than {self.most:,} documents in the file"
            hint = "put the rest in another file"
        self._fault(FaultCode.SEVERAL_DOCUMENTS, at, message, hint)

    def _no_tag(self, event: Any) -> None:
        if event.tag is not None:
            self._fault(
                FaultCode.TAG_NOT_ALLOWED,
                _mark(event),
                f"the tag {shown(str(event.tag))} is not allowed",
                "take the tag away; to make text of a number, put it in quotes",
            )

    def _open(self, event: Any) -> None:
        if len(self._stack) >= DEEPEST:
            self._fault(
                FaultCode.TOO_DEEP,
                _mark(event),
                f"values are nested more than {DEEPEST} deep",
                "look for a bracket that is opened too often",
            )
            raise _Stop
        if event.anchor:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(_mark(event), isinstance(event, _START_MAPPING), event.anchor))

    def _alias(self, event: Any) -> Node:
        at, name = _mark(event), shown(str(event.anchor))
        if event.anchor not in self._anchors:
            self._fault(
                FaultCode.UNKNOWN_ALIAS,
                at,
                f"the alias *{name} has no anchor &{name} before it",
                f"put &{name} before the value that is meant, or quote text that begins with '*'",
            )
            raise _Stop
        node = self._anchors[event.anchor]
        if node is None:
            self._fault(
                FaultCode.ENDLESS_ALIAS,
                at,
                f"the alias *{name} stands inside what it refers to",
                "write the value out instead of the alias",
            )
            raise _Stop
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
        if weight > MOST_VALUES:
            self._fault(
                FaultCode.TOO_MANY_VALUES,
                node.mark,
                f"with its aliases written out the file has more than {MOST_VALUES:,} values",
                "use fewer aliases of aliases, or split the file",
            )
            raise _Stop

    def _close(self, done: _Open) -> Node:
        if not done.is_mapping:
            return Listing(done.mark, tuple(done.children), done.weight)
        own: dict[str, MappingEntry] = {}
        merged: list[Mapping] = []
        for key, value in zip(done.children[::2], done.children[1::2], strict=True):
            if isinstance(key, Scalar) and key.plain and key.text == "<<":
                merged.extend(self._merged(value))
            elif not isinstance(key, Scalar) or key.kind is not ScalarKind.TEXT:
                self._key_not_text(key)
            elif key.text in own:
                self._duplicate(key, own[key.text].key)
            else:
                own[key.text] = MappingEntry(key, value)
        for mapping in merged:
            for entry in mapping.entries:
                own.setdefault(entry.key.text, entry)
        return Mapping(done.mark, tuple(own.values()), done.weight)

    def _merged(self, value: Node) -> list[Mapping]:
        parts = value.items if isinstance(value, Listing) else (value,)
        mappings = [part for part in parts if isinstance(part, Mapping)]
        if len(mappings) != len(parts):
            self._fault(
                FaultCode.BAD_MERGE,
                value.mark,
                "what follows << is not a mapping",
                "refer to a mapping that has an anchor:  <<: *name",
            )
        return mappings

    def _key_not_text(self, key: Node) -> None:
        written = shown(key.text) if isinstance(key, Scalar) else ""
        self._fault(
            FaultCode.KEY_NOT_TEXT,
            key.mark,
            f"this key is {key.kind if isinstance(key, Scalar) else 'a list or a mapping'}, not text",
            f'put it in quotes:  "{written}"' if written else "write a word before the ':'",
            found=written,
        )

    def _duplicate(self, again: Scalar, first: Scalar) -> None:
        name = shown(again.text)
        self._fault(
            FaultCode.DUPLICATE_KEY,
            again.mark,
            f"the key {name} stands twice in one mapping",
            "take one of them away, or rename it",
            inside=(again.text,),
            related=(Spot(*first.mark, dotted((*self._path(), again.text)), ""),),
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
        related: tuple[Spot, ...] = (),
    ) -> None:
        spot = Spot(*at, dotted((*self._path(), *inside)), found)
        self.faults.add(code, spot, message, hint=hint, related=related)

    def _path(self) -> list[str | int]:
        """Return the path at which the next event belongs."""
        path: list[str | int] = []
        for parent in self._stack:
            if not parent.is_mapping:
                path.append(len(parent.children))
            elif len(parent.children) % 2:
                key = parent.children[-1]
                path.append(key.text if isinstance(key, Scalar) else "?")
        return path


def _scalar(event: Any) -> Scalar:
    if event.style:
        return Scalar(_mark(event), str(event.value), ScalarKind.TEXT, False)
    return word(str(event.value), _mark(event))
