"""A page for every reason and error code: what it means, what is said with it, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from docs.reference.collect import Code, collect
from fairway.advise.diagnosis import DIAGNOSES, DiagnosisRule
from fairway.explain.engine_reasons import ENGINE_REASONS
from fairway.explain.reasons import REASONS, WaitReason
from fairway.files.diagnostics import FaultCode

HERE = Path(__file__).parent
_KINDS = {
    "wait": "why a job waits",
    "diagnosis": "what a running job does with its GPUs",
    "objection": "stands against a plan",
    "notice": "a note beside a plan",
    "fault": "a fault of a file",
    "error": "an error",
}
_ORDER = tuple(_KINDS)
_ROOMS = {
    "advise": "`fairway why`",
    "api": "the server's API",
    "cli": "the command line",
    "client": "the command line and the Python client",
    "control": "the server's loops",
    "cost": "prices and charges",
    "engines": "a cluster",
    "explain": "`fairway why`",
    "files": "a file",
    "ledger": "the ledger",
    "policy": "a plan or a job's placing",
    "settings": "the server's settings",
    "web": "the pages",
    "demo": "`fairway demo`",
    "server": "the server's start",
    "services": "the server",
    "views": "the command line and the pages",
    "wire": "the API",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Everything known of one code."""

    name: str
    kinds: tuple[str, ...]
    rooms: tuple[str, ...]
    means: str
    do: str
    sayings: tuple[tuple[str, str], ...]


def words() -> dict[str, Any]:
    """The hand-written part."""
    loaded: dict[str, Any] = yaml.safe_load((HERE / "codes.yaml").read_text(encoding="utf-8"))
    return loaded


def written_words() -> dict[str, Any]:
    """What each code means: a job's reasons and diagnoses as the code has them, all others as codes.yaml does."""
    own: list[WaitReason | DiagnosisRule] = [*REASONS.values(), *DIAGNOSES.values()]
    reasons = {
        one.code: {"means": one.means, "do": f"{one.remedy[0].upper()}{one.remedy[1:]}."} for one in own
    }
    return {**words()["codes"], **reasons}


def entries() -> list[Entry]:
    """Every code of the source and every fault of a file, by name."""
    found = collect()
    written = written_words()
    faults = {code.value: code.explanation for code in FaultCode}
    return [
        _entry(name, found.get(name), written.get(name), faults.get(name))
        for name in sorted({*found, *faults}, key=str.lower)
    ]


def _entry(name: str, code: Code | None, written: Any, fault: str | None) -> Entry:
    kinds = {*(code.kinds if code else ()), *(("fault",) if fault else ())}
    own = written if isinstance(written, dict) else {"means": written or ""}
    means = " ".join(dict.fromkeys(part for part in (own["means"], fault) if part))
    sayings = tuple(code.sayings) if code else ()
    do = own.get("do", "")
    if not do and fault:
        do = "fairway check -f FILE shows the line, what was expected, and a hint."
    return Entry(
        name,
        tuple(sorted(kinds, key=_ORDER.index)),
        tuple(sorted({*(code.rooms if code else ()), *(("files",) if fault else ())})),
        means,
        do,
        tuple(saying for saying in sayings if "".join(saying).strip("… :")),
    )


def _page(entry: Entry) -> str:
    kinds = ", ".join(_KINDS[kind] for kind in entry.kinds)
    rooms = ", ".join(_ROOMS.get(room, room) for room in entry.rooms)
    parts = [f"# {entry.name}\n", f"{entry.means}\n", f"*{kinds[0].upper()}{kinds[1:]}; from {rooms}.*\n"]
    if entry.do:
        parts.append(f"## What to do\n\n{entry.do}\n")
    if entry.sayings:
        said = "\n".join(
            f"{message}\n" + (f"hint: {hint}\n" if hint.strip("… :") else "")
            for message, hint in entry.sayings
        )
        title = "What is said with it" if entry.do else "What is said with it, and what to do"
        parts.append(f"## {title}\n\n```text\n{said.rstrip()}\n```\n")
    parts.append("[All codes](../codes.md)\n")
    return "\n".join(parts)


def pages(note: str) -> dict[Path, str]:
    """The index, the engines' own words, and a page for each code."""
    every = entries()
    index = [
        f"# Reason and error codes\n\n{note}",
        "Every error, wait and objection has a code that stays the same, so that scripts can match on it: in `-o json`, in the API's "
        "`problem+json`, in the log and on the pages. The CLI prints what, where, why, then `hint:`.\n\n",
        f"{len(every)} codes. Words of Slurm and Kueue themselves, in brackets: [the engines' reasons](engine-reasons.md).\n",
    ]
    for kind in _ORDER:
        rows = [e for e in every if e.kinds[0] == kind]
        if not rows:
            continue
        index.append(f"\n## {_KINDS[kind][0].upper()}{_KINDS[kind][1:]}\n\n| code | means |\n|---|---|\n")
        index += [
            f"| [`{e.name}`](codes/{e.name}.md) | {e.means.replace('|', chr(92) + '|')} |\n" for e in rows
        ]
    return {
        HERE / "codes.md": "".join(index),
        HERE / "engine-reasons.md": _engine_reasons(note),
        **{HERE / "codes" / f"{e.name}.md": _page(e) for e in every},
    }


def _engine_reasons(note: str) -> str:
    text = (
        f"# The engines' own reasons\n\n{note}"
        "`fairway why` says why a job waits in Fairway's words, with the engine's own as evidence. These are the ones it knows; any other "
        "is shown as the engine says it. What the virtual engine says is Fairway's own text and has its code from the start.\n"
    )
    for engine, known in ENGINE_REASONS.items():
        text += f"\n## {engine}\n\n| the engine says | code | means |\n|---|---|---|\n"
        text += "".join(
            f"| `{word.shown}` | [`{word.code}`](codes/{word.code}.md) | {word.reason.means} |\n"
            for word in known
        )
    return text
