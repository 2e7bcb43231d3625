"""A file as an editor hands it to its schema: YAML 1.2 core values."""

from __future__ import annotations

from typing import Any

from fairway.files.diagnostics import Faults
from fairway.files.yaml.parser import parse
from fairway.files.yaml.tree import Listing, Mapping, Node, Scalar, ScalarKind


def plain(text: str) -> Any:
    """Dictionaries, lists, numbers, words."""
    tree = parse(text, Faults("test"))
    assert tree is not None
    return _value(tree)


def _value(node: Node) -> Any:
    match node:
        case Mapping():
            return {entry.key.text: _value(entry.value) for entry in node.entries}
        case Listing():
            return [_value(item) for item in node.items]
        case Scalar():
            return _scalar(node)


def _scalar(node: Scalar) -> Any:
    match node.kind:
        case ScalarKind.NOTHING:
            return None
        case ScalarKind.TRUTH:
            return node.text.lower() == "true"
        case ScalarKind.WHOLE:
            return int(node.text, 0) if node.text[:2] in {"0x", "0o"} else int(node.text[:4000])
        case ScalarKind.DECIMAL:
            return float(node.text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case ScalarKind.TEXT:
            return node.text
