"""Texts that users read use the terms of docs/reference/glossary.yaml, and none of its retired phrases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/reference/glossary.yaml"
SHOWN_DOCSTRINGS = (
    "src/fairway/api/routes/",
    "src/fairway/cli/commands/",
    "src/fairway/wire/",
    "src/fairway/client/",
)
"""Where docstrings are shown to users: as help of commands, or in the reference of the API or the client."""
TEXTS = (
    "README.md",
    "docs/**/*.md",
    "docs/reference/codes.yaml",
    "examples/**/*.yaml",
    "deploy/prometheus/*.yaml",
)
SQL = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\b")
QUOTES = ("docs/reference/glossary.md", "docs/promises.md", "docs/adr/")
"""The list itself; measured results; and decisions, which are a record of what was written then."""


class Phrase(NamedTuple):
    """A retired phrase, and what to write instead."""

    pattern: re.Pattern[str]
    write: str


@cache
def glossary() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(GLOSSARY.read_text(encoding="utf-8"))
    return loaded


@cache
def retired() -> tuple[Phrase, ...]:
    return tuple(Phrase(re.compile(r["pattern"], re.IGNORECASE), r["write"]) for r in glossary()["retired"])


def python_texts(source: str, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a module; an f-string with braces for its expressions."""
    tree = ast.parse(source)
    inner: set[int] = set()
    bare = [node for node in ast.walk(tree) if not docstrings and _is_bare_string(node)]
    hidden = {id(child) for node in bare for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in inner or id(node) in hidden:
            continue
        if isinstance(node, ast.JoinedStr):
            inner |= {id(child) for child in ast.walk(node)}
            yield node.lineno, "".join(_part(value) for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _is_bare_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):  # of an expression only the function counts: `since {span}`
        called = value.value.func if isinstance(value.value, ast.Call) else None
        return "{" + (called.id if isinstance(called, ast.Name) else "") + "}"
    return str(value.value) if isinstance(value, ast.Constant) else ""


def template_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a template: between tags, of titles and labels, and quoted ones of expressions."""
    for number, line in enumerate(source.splitlines(), 1):
        for code in re.findall(r"\{[{%].*?[}%]\}", line):
            yield from ((number, quoted) for quoted in re.findall(r'"([^"]* [^"]*)"', code))
        plain = re.sub(r"\{#.*?#\}|\{[{%].*?[}%]\}", "…", line)
        yield from (
            (number, text)
            for text in re.findall(r'(?:title|aria-label|placeholder|data-label)="([^"]*)"', plain)
        )
        yield number, re.sub(r"<[^>]*>", " ", plain)


def _plain_lines(source: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(source.splitlines(), 1)


def shown_texts() -> Iterator[tuple[str, int, str]]:
    """Yield every text that users may read, with its file and line."""
    for path in sorted(ROOT.glob("src/fairway/**/*.py")):
        name = str(path.relative_to(ROOT))
        source = path.read_text(encoding="utf-8")
        texts = python_texts(source, docstrings=name.startswith(SHOWN_DOCSTRINGS))
        yield from ((name, line, text) for line, text in texts if " " in text.strip() and not SQL.match(text))
    for path in sorted(ROOT.glob("src/fairway/web/templates/**/*.html")):
        texts = template_texts(path.read_text(encoding="utf-8"))
        yield from ((str(path.relative_to(ROOT)), line, text) for line, text in texts)
    for path in sorted({p for pattern in TEXTS for p in ROOT.glob(pattern)}):
        name = str(path.relative_to(ROOT))
        if not name.startswith(QUOTES):
            yield from ((name, line, text) for line, text in _plain_lines(path.read_text(encoding="utf-8")))


def found_in(text: str) -> Iterator[tuple[str, str]]:
    for phrase in retired():
        if (match := phrase.pattern.search(text)) is not None:
            yield match[0], phrase.write


def test_no_text_has_a_retired_phrase() -> None:
    faults = [
        f"{name}:{line}: {phrase!r} is retired: write {write}"
        for name, line, text in shown_texts()
        for phrase, write in found_in(text)
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("text", [r["phrase"] for r in glossary()["retired"]])
def test_every_retired_phrase_is_found(text: str) -> None:
    assert list(found_in(text.replace("…", "what was borrowed")))


@pytest.mark.parametrize(
    "text",
    [
        "reachable since 2026-10-17",
        "fairway get jobs --since 2h",
        "since revision 4",
        "the partition gpu-lent",
        "POOLS[name].lent",
        "the team is over its budget",
        "done by an operator",
        "1.5 nodes, 21 GPUs and 101 jobs",
        "/dev/nvidia0 is device 0",
        "tolerates: [preemption]",
    ],
)
def test_legitimate_uses_are_not_found(text: str) -> None:
    assert not list(found_in(text))


def test_identifiers_and_docstrings_are_not_texts() -> None:
    source = (
        'def told(said: str) -> str:\n    """What was said."""\n    return f"{said} since {span(told)}"\n'
    )
    assert list(python_texts(source, docstrings=False)) == [(3, "{} since {span}")]
    assert len(list(python_texts(source, docstrings=True))) == 2


def test_tags_of_templates_are_not_texts() -> None:
    line = '<p class="said lent" title="what was lent">{{ told }} {{ "is over, or so" }} ends</p>'
    assert [t.strip() for _, t in template_texts(line)] == ["is over, or so", "what was lent", "… … ends"]
