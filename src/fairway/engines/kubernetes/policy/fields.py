"""Flatten an object into fields, and back without loss: what a plan compares and drift names.

A path reads like the object: `spec.resourceGroups[nvidia.com/gpu].flavors[cloud-a100].nominalQuota`. Items of
named lists are identified by name, with their order as a separate field; so a change names the very field.
Numbers of devices are numbers, however the API server writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from fairway.engines.kubernetes.api.kinds import Governed, Json, ObjectKind
from fairway.engines.kubernetes.nodes.devices import whole_number
from fairway.policy.objects import Value

Fields = dict[str, Value]

_EMPTY: Final = "{}"
"""An object without keys: a selector that selects everything is not the same as none."""
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_STEP: Final = re.compile(r"([A-Za-z][A-Za-z0-9]*)|\.([A-Za-z][A-Za-z0-9]*)|\[([^\]]*)\]")
_NUMBER: Final = re.compile(r"[0-9]+([kKMG]i?)?")
_COUNTED: Final = frozenset({"nominalQuota", "borrowingLimit", "lendingLimit", "weight"})

_NAMED: Final[Mapping[str, str]] = {
    "resourceGroups": "coveredResources",
    "flavors": "name",
    "resources": "name",
    "variables": "name",
    "matchConditions": "name",
    "validations": "message",
    "matchExpressions": "key",
}
"""Lists of objects, and the key that identifies their items."""


@dataclass(frozen=True, slots=True)
class _LineFormat:
    """How the items of a list of small objects are written as a line each, and read back."""

    write: Callable[[Json], str]
    read: Callable[[str], Json]


def flatten(kind: ObjectKind, body: Mapping[str, Any]) -> Fields:
    """Return the governed fields of an object as the API server has it."""
    fields: Fields = {}
    _walk(fields, "", _project(body, kind.governed))
    for path, value in kind.server_defaults.items():
        if path in fields and fields[path] == value:
            del fields[path]
    return fields


def unflatten(fields: Mapping[str, Value]) -> Json:
    """Return the object that has these fields; unset ones are not in it."""
    body: Json = {}
    for path, value in fields.items():
        if value is not None:
            _insert(body, _steps(path), value)
    result: Json = _as_lists(body)
    return result


def _project(value: Mapping[str, Any], governed: Governed) -> Mapping[str, Any]:
    if governed is None:
        return value
    projected = {}
    for key, below in governed.items():
        if (part := value.get(key)) is not None:
            projected[key] = _project(part, below) if isinstance(part, dict) else part
    return projected


@lru_cache(maxsize=4096)  # a few hundred paths, on every one of thousands of objects
def _join(path: str, key: str) -> str:
    if not _PLAIN.fullmatch(key):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _walk(fields: Fields, path: str, value: object, key: str = "") -> None:
    if isinstance(value, dict):  # not Mapping, whose isinstance takes five times as long
        if not value and path:
            fields[path] = _EMPTY
        counted = key == "hard"
        for name, part in value.items():
            _walk(fields, _join(path, name), _count(part) if counted else part, name)
    elif isinstance(value, list):
        _walk_list(fields, path, value, key)
    elif value is not None:
        fields[path] = _count(value) if key in _COUNTED else _leaf(value)


def _walk_list(fields: Fields, path: str, items: list[Any], key: str) -> None:
    if key in _LINES:
        fields[path] = tuple(_LINES[key].write(item) for item in items)
    elif key in _NAMED and items and isinstance(items[0], dict):
        by = _NAMED[key]
        names = [_name_of(item, by) for item in items]
        fields[path] = tuple(names)
        for name, item in zip(names, items, strict=True):
            rest = {k: v for k, v in item.items() if k != by}
            if rest:  # in brackets always: an item's name is not a key of an object
                _walk(fields, f"{path}[{name}]", rest)
    else:
        fields[path] = tuple(_dump(item) if isinstance(item, Mapping) else _leaf(item) for item in items)


def _name_of(item: Mapping[str, Any], by: str) -> str:
    name = item.get(by, "")
    return ",".join(name) if isinstance(name, list) else str(name)


def _leaf(value: object) -> Value:
    return value if isinstance(value, bool | int) else str(value)


def _count(value: object) -> Value:
    """Convert a number of devices or a weight; anything that is no whole number stays as it is."""
    text = str(value)
    return whole_number(text) if _NUMBER.fullmatch(text) else text


def _dump(item: object) -> str:
    return json.dumps(item, sort_keys=True, separators=(",", ":"))


def _steps(path: str) -> list[tuple[str, bool]]:
    """Return the keys from the outermost, each with whether it was in brackets."""
    return [
        (m.group(3), True) if m.group(3) is not None else (m.group(1) or m.group(2), False)
        for m in _STEP.finditer(path)
    ]


class _Items(dict[str, Any]):
    """A list of named items under construction, by name."""

    order: tuple[str, ...] = ()


def _insert(body: Json, steps: list[tuple[str, bool]], value: Value) -> None:
    target: Any = body
    for i, (key, _) in enumerate(steps[:-1]):
        named = key in _NAMED and steps[i + 1][1] and not isinstance(target, _Items)
        target = target.setdefault(key, _Items() if named else {})
    key = steps[-1][0]
    if key in _NAMED and isinstance(value, tuple):
        items = target.setdefault(key, _Items())
        items.order = tuple(str(v) for v in value)
    else:
        target[key] = _unflatten_value(key, value, "hard" in [k for k, _ in steps[-2:-1]])


def _unflatten_value(key: str, value: Value, counted: bool) -> object:
    if value == _EMPTY:
        return {}
    if isinstance(value, tuple):
        if key in _LINES:
            return [_LINES[key].read(str(item)) for item in value]
        return [json.loads(v) if isinstance(v, str) and v.startswith("{") else v for v in value]
    return str(value) if key in _COUNTED or counted else value


def _as_lists(value: Any, key: str = "") -> Any:
    if isinstance(value, _Items):
        by = _NAMED[key]
        names = value.order or tuple(value)
        return [
            {by: n.split(",") if by == "coveredResources" else n, **_as_lists(value.get(n, {}))}
            for n in names
        ]
    if isinstance(value, dict):
        return {k: _as_lists(v, k) for k, v in value.items()}
    return value


def parse_taint(text: str) -> Json:
    """Parse a taint of a fleet file: without an effect, as in `fairway/spot`, it is NoSchedule."""
    pair, _, effect = text.partition(":")
    key, _, value = pair.partition("=")
    return {"key": key, **({"value": value} if value else {}), "effect": effect or "NoSchedule"}


def format_taint(taint: Mapping[str, Any]) -> str:
    """Format a taint as kubectl writes it."""
    value = taint.get("value")
    return f"{taint['key']}{f'={value}' if value else ''}:{taint.get('effect', '')}"


def _parse_subject(text: str) -> Json:
    kind, _, name = text.partition("/")
    if kind == "ServiceAccount":
        namespace, _, name = name.partition("/")
        return {"kind": kind, "namespace": namespace, "name": name}
    return {"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name}


def _format_subject(subject: Json) -> str:
    namespace = f"{subject['namespace']}/" if subject.get("namespace") else ""
    return f"{subject['kind']}/{namespace}{subject['name']}"


_LINES: Final[Mapping[str, _LineFormat]] = {
    "levels": _LineFormat(lambda level: str(level["nodeLabel"]), lambda text: {"nodeLabel": text}),
    "nodeTaints": _LineFormat(format_taint, parse_taint),
    "subjects": _LineFormat(_format_subject, _parse_subject),
}
