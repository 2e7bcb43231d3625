"""The words of the fleet file and the job file, from their JSON Schemas, and the routes of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Key(NamedTuple):
    """A key of a file: where it stands, what may be written there, what it means."""

    path: str
    takes: str
    default: str
    means: str
    required: bool


def keys(schema: Schema) -> list[Key]:
    """Every key of a file, each once, in the order of the schema."""
    found: dict[str, Key] = {}
    for key in _walk(schema, "", schema.get("$defs", {}), ()):
        known = found.get(key.path, key)
        takes = " or ".join(dict.fromkeys((known.takes, key.takes)))
        found[key.path] = key._replace(takes=takes, required=known.required and key.required)
    return list(found.values())


def _walk(schema: Schema, path: str, definitions: Schema, inside: tuple[str, ...]) -> Iterator[Key]:
    if reference := schema.get("$ref"):
        name = str(reference).rsplit("/", 1)[-1]
        if name not in inside:
            yield from _walk(definitions[name], path, definitions, (*inside, name))
        return
    for name, value in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield Key(
            here,
            _takes(value, definitions),
            json.dumps(value["default"]) if "default" in value else "",
            value.get("description", ""),
            name in schema.get("required", ()),
        )
        yield from _walk(value, here, definitions, inside)
    if isinstance(below := schema.get("additionalProperties"), dict):
        yield from _walk(below, f"{path}.NAME", definitions, inside)
    if isinstance(item := schema.get("items"), dict):
        yield from _walk(item, f"{path}[]", definitions, inside)
    for either in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(either, ()):
            yield from _walk(part, path, definitions, inside)


def _takes(schema: Schema, definitions: Schema) -> str:
    """What may be written, in a few words."""
    if "const" in schema:
        return f"`{_plain(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{_plain(value)}`" for value in schema["enum"])
    if schema.get("anyOf") or ("oneOf" in schema and "properties" not in schema):
        parts = [_takes(part, definitions) for part in (schema.get("anyOf") or schema["oneOf"])]
        return " or ".join(dict.fromkeys(part for part in parts if part))
    return _by_type(schema, definitions)


def _by_type(schema: Schema, definitions: Schema) -> str:
    words = {"boolean": "`true` or `false`", "object": "a mapping"}
    kind = str(schema.get("type", ""))
    if kind == "object" and not schema.get("properties"):
        return "a mapping by name"
    if kind == "array":
        return f"a list of {_takes(schema.get('items', {}), definitions) or 'values'}"
    if kind in {"integer", "number"}:
        bounds = [str(schema[side]) for side in ("minimum", "maximum") if side in schema]
        return ("a whole number" if kind == "integer" else "a number") + (
            f", {' to '.join(bounds)}" if len(bounds) == 2 else ""
        )
    if kind == "string":
        examples = schema.get("examples", ())
        return "text" + (f", as `{_plain(examples[0])}`" if examples else "")
    return words.get(kind, "a mapping" if "$ref" in schema else "")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def file_page(title: str, intro: str, note: str, schema: Schema) -> str:
    """A page with every key of a file."""
    text = f"# {title}\n\n{note}{intro}\n"
    every = keys(schema)
    deep = {key.path.split(".")[0].split("[")[0] for key in every if "." in key.path}
    rows: dict[str, list[Key]] = {"The file": []}
    for key in every:
        top = key.path.split(".")[0].split("[")[0]
        rows.setdefault(top if top in deep else "The file", []).append(key)
    for top, group in rows.items():
        text += f"\n## {top}\n\n| key | takes | left out | means |\n|---|---|---|---|\n"
        for key in group:
            left_out = "**must be there**" if key.required else f"`{key.default}`" if key.default else ""
            text += f"| `{key.path}` | {key.takes} | {left_out} | {key.means} |\n".replace("||", "| |")
    return text


def api_page(note: str, document: Schema) -> str:
    """A page with every route: who may call it, what it takes, what it answers."""
    text = (
        f"# The API\n\n{note}"
        "JSON over HTTP; `Authorization: Bearer TOKEN`. The whole description for programs is [openapi.json](openapi.json), which every server has at "
        "`/openapi.json`. Lists come in pages: pass `next_cursor` on as `cursor`. Errors are `application/problem+json` with `code`, `detail` and "
        "`hint`: see [the codes](codes.md).\n"
    )
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["server"])[0]
            tags.setdefault(tag, []).append(_route(method, path, operation))
    for tag, routes in tags.items():
        text += f"\n## {tag[0].upper()}{tag[1:]}\n" + "".join(routes)
    return text


def _route(method: str, path: str, operation: Schema) -> str:
    text = f"\n### {method.upper()} {path}\n\n{operation.get('description', '')}\n\n"
    role = operation.get("x-fairway-role", "")
    text += "Needs no token.\n" if role == "public" else f"Needs the role `{role}`.\n"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if name := body.get("$ref", "").rsplit("/", 1)[-1]:
        text += f"Takes `{name}` of openapi.json.\n"
    if parameters := operation.get("parameters"):
        text += "\n| parameter | in | means |\n|---|---|---|\n"
        for one in parameters:
            text += f"| `{one['name']}` | {one['in']} | {one.get('description') or _PARAMETERS.get(one['name'], '')} |\n"
    return text


_PARAMETERS = {
    "cluster": "of this cluster only",
    "pool": "of this pool only",
    "team": "of this team only, with all teams inside it",
    "user": "of this user only",
    "name": "of this name only",
    "cursor": "`next_cursor` of the page before",
    "limit": "most items on a page",
    "number": "the apply's number",
    "id": "the job's id",
    "month": "a month, as 2026-10",
    "attempt": "which attempt; the last one if left out",
}
"""What parameters mean that have the same meaning wherever they are."""
