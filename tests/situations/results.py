"""What was found: build/situations, a file for each engine and a transcript for each situation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = _ROOT / "build/situations"
PAGE: Final = _ROOT / "docs/engines/situations.md"


@dataclass(frozen=True)
class Found:
    """What `why` said of one situation on one engine."""

    codes: tuple[str, ...]
    """What binds, then what would remain."""
    text: str
    """Of the reason that binds."""
    evidence: tuple[str, ...]
    engine: str
    """The engine's own words."""
    resolved: bool = False
    """Whether the job started after what the output suggests was done."""


def keep(engine: str, name: str, found: Found, transcript: str) -> None:
    """Store one result, beside those of the other situations."""
    folder = FOLDER / engine
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(transcript)
    (folder / f"{name}.json").write_text(json.dumps(asdict(found), indent=2, ensure_ascii=False) + "\n")


def forget(engine: str, name: str) -> None:
    """Remove what a run before this one found."""
    for suffix in (".txt", ".json"):
        (FOLDER / engine / f"{name}{suffix}").unlink(missing_ok=True)


def load(engine: str) -> Mapping[str, Found]:
    """Return what was found on an engine, by the name of the situation."""
    found = {}
    for file in sorted((FOLDER / engine).glob("*.json")):
        fields: dict[str, Any] = json.loads(file.read_text())
        codes, evidence = tuple(fields.pop("codes")), tuple(fields.pop("evidence"))
        found[file.stem] = Found(codes=codes, evidence=evidence, **fields)
    return found
