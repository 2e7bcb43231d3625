"""Read manifests of Kubernetes workloads that are submitted as they are: on their own, or in a job file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fairway.files.diagnostics import FaultCode, Faults, Location, dotted
from fairway.files.schema.values import FieldPath, ParsedValue, Schema, ValueSchema, wrong_type
from fairway.files.yaml import MappingNode, Node, ScalarKind, SequenceNode, mapping_node, quoted
from fairway.model.manifest import Json, Manifest, Path, encode_manifest, read_manifest, without_placement


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest and what it requests."""

    found: Manifest
    text: str
    """As JSON, without what the job has beside it."""


@dataclass(frozen=True, slots=True)
class ManifestValue(ValueSchema[ReadManifest]):
    """A whole Kubernetes object."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[ReadManifest] | None:
        if not isinstance(node, MappingNode):
            wrong_type(node, at, faults, "a Kubernetes object", "write the whole object, indented")
            return None
        body = _mapping(node)
        found, problems = read_manifest(body)
        # A manifest on its own has no key of a job file before it.
        before = () if at.key == node.mark else at.path
        for problem in problems:
            location = Location(*_nearest_mark(node, problem.path), dotted((*before, *problem.path)))
            faults.add(FaultCode.BAD_MANIFEST, location, problem.message, hint=problem.hint)
        if found is None:
            return None
        return ParsedValue(ReadManifest(found, encode_manifest(without_placement(body))), at.location(node))

    def schema(self) -> Schema:
        return {
            "type": "object",
            "required": ["apiVersion", "kind", "metadata"],
            "properties": {
                "apiVersion": {"type": "string", "description": "The object's group and version."},
                "kind": {"type": "string", "description": "The object's kind."},
            },
        }


def as_job(node: MappingNode) -> MappingNode:
    """Return the keys of a job file for a manifest on its own; namespace and priority label become keys."""
    found, _ = read_manifest(_mapping(node))
    keys: dict[str, Node] = {"manifest": node}
    if found is not None:
        named = {"name": found.name, "team": found.namespace, "priority": found.priority}
        keys |= {key: quoted(text, node.mark) for key, text in named.items() if text}
    return mapping_node(keys, node.mark)


def has_faults(node: MappingNode) -> bool:
    """Return whether a manifest cannot be submitted as it is."""
    return read_manifest(_mapping(node))[0] is None


def _mapping(node: MappingNode) -> Json:
    return {entry.key.text: _value(entry.value) for entry in node.entries}


def _value(node: Node) -> object:
    if isinstance(node, MappingNode):
        return _mapping(node)
    if isinstance(node, SequenceNode):
        return [_value(item) for item in node.items]
    text = node.text
    scalars: dict[ScalarKind, Callable[[], object]] = {
        ScalarKind.NULL: lambda: None,
        ScalarKind.BOOLEAN: lambda: text.lower() == "true",
        ScalarKind.INTEGER: lambda: _integer(text),
        ScalarKind.FLOAT: lambda: float(text) if re.search(r"[0-9]", text) else text,
        ScalarKind.STRING: lambda: text,
    }
    return scalars[node.kind]()


def _integer(text: str) -> int | str:
    """Return a number, or the text of one that is longer than any number of an API."""
    if len(text) > 20:
        return text
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _nearest_mark(node: Node, path: Path) -> tuple[int, int]:
    """Return the position of a path, or of as much of it as the manifest has."""
    mark = node.mark
    for key in path:
        if isinstance(node, MappingNode) and (entry := node.entry(str(key))) is not None:
            mark, node = entry.key.mark, entry.value
        elif isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
            mark = node.mark
        else:
            break
    return mark
