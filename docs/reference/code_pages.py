"""A page for every reason and error code: its meaning, its messages, and what to do."""

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
    "wait": "reason why a job is waiting",
    "diagnosis": "diagnosis of GPU utilization",
    "objection": "refusal of a plan",
    "notice": "note in a plan",
    "fault": "error in a file",
    "error": "error",
}
_ORDER = tuple(_KINDS)
_ROOMS = {
    "advise": "`fairway why`",
    "api": "the API",
    "cli": "the command line",
    "client": "the command line and the Python client",
    "control": "the loops of the server",
    "cost": "prices and charges",
    "engines": "a cluster",
    "explain": "`fairway why`",
    "files": "a file",
    "ledger": "the database",
    "policy": "a plan or the placement of a job",
    "settings": "the settings of the server",
    "web": "the web pages",
    "demo": "`fairway demo`",
    "server": "the start of the server",
    "services": "the server",
    "views": "the command line and the web pages",
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
    parts = [
        f"# {entry.name}\n",
        f"{entry.means}\n",
        f"*{kinds[0].upper()}{kinds[1:]}; reported by {rooms}.*\n",
    ]
    if entry.do:
        parts.append(f"## What to do\n\n{entry.do}\n")
    if entry.sayings:
        said = "\n".join(
            f"{message}\n" + (f"hint: {hint}\n" if hint.strip("… :") else "")
            for message, hint in entry.sayings
        )
        title = "Messages" if entry.do else "Messages and what to do"
        parts.append(f"## {title}\n\n```text\n{said.rstrip()}\n```\n")
    parts.append("[All codes](../codes.md)\n")
    return "\n".join(parts)


def pages(note: str) -> dict[Path, str]:
    """The index, the engines' own words, and a page for each code."""
    every = entries()
    index = [
        f"# Reason and error codes\n\n{note}",
        "Every error, waiting reason and refusal has a stable code that scripts can match: in `-o json`, in the `problem+json` of the API, in the "
        "log and on the web pages. The command line prints the error, its location and its cause, followed by `hint:`.\n\n",
        f"There are {len(every)} codes. Messages of Slurm and Kueue are listed in [Engine reasons](engine-reasons.md).\n",
    ]
    for kind in _ORDER:
        rows = [e for e in every if e.kinds[0] == kind]
        if not rows:
            continue
        index.append(f"\n## {_KINDS[kind][0].upper()}{_KINDS[kind][1:]}\n\n| code | meaning |\n|---|---|\n")
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
        f"# Engine reasons\n\n{note}"
        "`fairway why` translates the reasons of Slurm and Kueue, and shows the original as evidence. This page lists the known reasons; any other "
        "is shown unchanged. The virtual engine uses Fairway's codes directly.\n"
    )
    for engine, known in ENGINE_REASONS.items():
        text += f"\n## {engine}\n\n| engine reason | code | meaning |\n|---|---|---|\n"
        text += "".join(
            f"| `{word.shown}` | [`{word.code}`](codes/{word.code}.md) | {word.reason.means} |\n"
            for word in known
        )
    return text
