"""Pages for the keys of fleet and job files, from their JSON Schemas, and for the routes of the API."""

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
    words = {"boolean": "boolean", "object": "mapping"}
    kind = str(schema.get("type", ""))
    if kind == "object" and not schema.get("properties"):
        return "mapping by name"
    if kind == "array":
        return f"list of {_takes(schema.get('items', {}), definitions) or 'values'}"
    if kind in {"integer", "number"}:
        bounds = [str(schema[side]) for side in ("minimum", "maximum") if side in schema]
        return ("integer" if kind == "integer" else "number") + (
            f", {' to '.join(bounds)}" if len(bounds) == 2 else ""
        )
    if kind == "string":
        examples = schema.get("examples", ())
        return "string" + (f", e.g. `{_plain(examples[0])}`" if examples else "")
    return words.get(kind, "mapping" if "$ref" in schema else "")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def file_page(title: str, intro: str, note: str, schema: Schema) -> str:
    """A page with every key of a file."""
    text = f"# {title}\n\n{note}{intro}\n"
    every = keys(schema)
    deep = {key.path.split(".")[0].split("[")[0] for key in every if "." in key.path}
    rows: dict[str, list[Key]] = {"Top level": []}
    for key in every:
        top = key.path.split(".")[0].split("[")[0]
        rows.setdefault(top if top in deep else "Top level", []).append(key)
    for top, group in rows.items():
        text += f"\n## {top}\n\n| key | value | default | description |\n|---|---|---|---|\n"
        for key in group:
            left_out = "**required**" if key.required else f"`{key.default}`" if key.default else ""
            text += f"| `{key.path}` | {key.takes} | {left_out} | {key.means} |\n".replace("||", "| |")
    return text


def api_page(note: str, document: Schema) -> str:
    """A page with every route: who may call it, what it takes, what it answers."""
    text = (
        f"# API\n\n{note}"
        "The API uses JSON over HTTP. Authenticate with `Authorization: Bearer TOKEN`. The machine-readable description is [openapi.json](openapi.json), "
        "which every server also serves at `/openapi.json`. Lists are paginated: pass `next_cursor` as `cursor` to get the next page. Errors are "
        "`application/problem+json` with `code`, `detail` and `hint`; see [the codes](codes.md).\n"
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
    text += "No token required.\n" if role == "public" else f"Required role: `{role}`.\n"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if name := body.get("$ref", "").rsplit("/", 1)[-1]:
        text += f"Request body: `{name}` in openapi.json.\n"
    if parameters := operation.get("parameters"):
        text += "\n| parameter | in | description |\n|---|---|---|\n"
        for one in parameters:
            text += f"| `{one['name']}` | {one['in']} | {one.get('description') or _PARAMETERS.get(one['name'], '')} |\n"
    return text


_PARAMETERS = {
    "cluster": "filter by cluster",
    "pool": "filter by pool",
    "team": "filter by team, including the teams inside it",
    "user": "filter by user",
    "name": "filter by name",
    "cursor": "`next_cursor` of the previous page",
    "limit": "maximum number of items per page",
    "number": "number of the apply",
    "id": "the job's id",
    "month": "month, e.g. 2026-10",
    "attempt": "number of the attempt; default: the last one",
}
"""Descriptions of parameters that mean the same in every route."""
