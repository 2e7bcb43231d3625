"""A file as an editor hands it to its schema: YAML 1.2 core values."""

from __future__ import annotations

from typing import Any

from fairway.files.diagnostics import Faults
from fairway.files.yaml import MappingNode, Node, ScalarKind, ScalarNode, SequenceNode, parse


def plain(text: str) -> Any:
    """Dictionaries, lists, numbers, words."""
    tree = parse(text, Faults("test"))
    assert tree is not None
    return _value(tree)


def _value(node: Node) -> Any:
    match node:
        case MappingNode():
            return {entry.key.text: _value(entry.value) for entry in node.entries}
        case SequenceNode():
            return [_value(item) for item in node.items]
        case ScalarNode():
            return _scalar(node)


def _scalar(node: ScalarNode) -> Any:
    match node.kind:
        case ScalarKind.NULL:
            return None
        case ScalarKind.BOOLEAN:
            return node.text.lower() == "true"
        case ScalarKind.INTEGER:
            return int(node.text, 0) if node.text[:2] in {"0x", "0o"} else int(node.text[:4000])
        case ScalarKind.FLOAT:
            return float(node.text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case ScalarKind.STRING:
            return node.text
