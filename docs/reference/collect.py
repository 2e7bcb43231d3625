"""Every code that the source gives an error, a reason, an objection or a notice, with the words that go with it.

Codes are written where they arise, so the source is walked: a string counts where it is the `code` of a call, that
is of a function, class or dataclass of ours that has a parameter of this name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/fairway"
_CODE = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_KINDS = {
    "Notice": "notice",
    "Objection": "objection",
    "WaitReason": "wait",
    "Wait": "wait",
    "DiagnosisRule": "diagnosis",
}
_OWN_WORDS = {"WaitReason", "DiagnosisRule"}
"""Classes whose words are the page's own."""
_MAX_SAYINGS = 4


@dataclass(slots=True)
class Code:
    """A code, what kind of thing it is, in which rooms it arises, and what is said with it."""

    name: str
    kinds: set[str] = field(default_factory=set)
    rooms: set[str] = field(default_factory=set)
    sayings: list[tuple[str, str]] = field(default_factory=list)

    def heard(self, kind: str, room: str, message: str, hint: str) -> None:
        self.kinds.add(kind)
        self.rooms.add(room)
        if message and (message, hint) not in self.sayings and len(self.sayings) < _MAX_SAYINGS:
            self.sayings.append((message, hint))


@cache
def collect(source: Path = SOURCE) -> dict[str, Code]:
    """All codes of the source by name."""
    trees = {
        path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(source.rglob("*.py"))
    }
    takers = _takers(list(trees.values()))
    found: dict[str, Code] = {}
    for path, tree in trees.items():
        room = path.relative_to(source).with_suffix("").parts[0]
        for name, kind, message, hint in _said(tree, takers):
            found.setdefault(name, Code(name)).heard(kind, room, message, hint)
    return dict(sorted(found.items()))


def _takers(trees: list[list[ast.AST]]) -> dict[str, int]:
    """At which place each function or class of ours takes a code."""
    takers: dict[str, int] = {"FairwayError": 0}
    classes: list[ast.ClassDef] = []
    for tree in trees:
        for node in tree:
            if isinstance(node, ast.ClassDef):
                classes.append(node)
                if (place := _of_class(node)) is not None:
                    takers[node.name] = place
            elif (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name != "__init__"
                and (place := _of_arguments(node.args)) is not None
            ):
                takers[node.name] = place
    for _ in range(5):  # classes below classes; none of ours is deeper
        for one in classes:
            parents = [base.id for base in one.bases if isinstance(base, ast.Name) and base.id in takers]
            own = any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in one.body)
            if parents and not own:
                takers.setdefault(one.name, takers[parents[0]])
    return takers


def _of_class(node: ast.ClassDef) -> int | None:
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return _of_arguments(part.args)
    fields = [
        p.target.id for p in node.body if isinstance(p, ast.AnnAssign) and isinstance(p.target, ast.Name)
    ]
    return fields.index("code") if "code" in fields else None


def _of_arguments(arguments: ast.arguments) -> int | None:
    names = [a.arg for a in arguments.args if a.arg not in {"self", "cls"}]
    for a in arguments.args:
        if a.arg == "code" and isinstance(a.annotation, ast.Name) and a.annotation.id == "str":
            return names.index("code")
    return None


def _said(tree: list[ast.AST], takers: dict[str, int]) -> Iterator[tuple[str, str, str, str]]:
    thrown = {
        id(n.exc if isinstance(n, ast.Raise) else n.value)
        for n in tree
        if isinstance(n, ast.Raise | ast.Return)
    }
    for node in tree:
        if isinstance(node, ast.Call):
            yield from _of_call(node, takers, thrown=id(node) in thrown)
        elif isinstance(node, ast.Dict):  # an engine's numbers as our codes, each with its hint
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(value, ast.Tuple) and len(value.elts) == 2 and not _text(key).strip("…"):
                    code, hint = (_text(part) for part in value.elts)
                    if _CODE.fullmatch(code) and " " in hint:
                        yield code, "error", "the engine's own words", hint


def _of_call(node: ast.Call, takers: dict[str, int], *, thrown: bool) -> Iterator[tuple[str, str, str, str]]:
    callee = _name(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    place = takers.get(callee, -1)
    if callee == "__init__":  # of super(), in an error that has its code built in
        place = next((i for i, given_ in enumerate(node.args[:2]) if _codes(given_)), -1)
    elif place < 0 and thrown and len(node.args) == 3:  # a class that was chosen before
        place = 0
    code = given.get("code") or (node.args[place] if 0 <= place < len(node.args) else None)
    if code is None:
        return
    after = node.args[place + 1 :]
    message = given.get("message") or (after[0] if after else None)
    hint = given.get("hint") or (after[1] if len(after) > 1 else None)
    if callee in _OWN_WORDS:
        message = hint = None
    for name in _codes(code):
        yield name, _KINDS.get(callee, "error"), _text(message), _text(hint)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _codes(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_codes(node.body), *_codes(node.orelse)]
    text = _text(node)
    return [text] if isinstance(node, ast.Constant) and _CODE.fullmatch(text) else []


def _text(node: ast.expr | None) -> str:
    """Text as it is written, with … for what is filled in."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(v) if isinstance(v, ast.Constant) else "…" for v in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case None:
            return ""
        case _:
            return "…"
