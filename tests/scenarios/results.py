"""What was found, promise by promise and engine by engine: build/promises.json, source of the docs' table."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.scenarios.stage import Verdict

_ROOT = Path(__file__).parents[2]
_WORST = (Verdict.KEPT, Verdict.CAVEAT, Verdict.DIFFERS, Verdict.FAILED)


@dataclass(frozen=True, slots=True)
class Result:
    """How one engine keeps one promise."""

    verdict: Verdict
    seconds: float
    evidence: tuple[str, ...]
    exception: str = ""
    """Why it is not simply kept."""


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a promise with several scenarios."""
    return max(verdicts, key=_WORST.index)


def results_file() -> Path:
    """FAIRWAY_PROMISES, or build/promises.json."""
    return Path(os.environ.get("FAIRWAY_PROMISES") or _ROOT / "build/promises.json")


def keep(promise: str, engine: str, result: Result) -> None:
    """Put one result into the file, whoever else writes to it now; readers never see half of it."""
    file = results_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(file.read_text()) if file.exists() else {}
        known.setdefault(promise, {})[engine] = {
            "verdict": result.verdict.value,
            "seconds": round(result.seconds, 1),
            "evidence": list(result.evidence),
            **({"exception": result.exception} if result.exception else {}),
        }
        making = file.with_suffix(".making")
        making.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n")
        making.rename(file)


def load() -> Mapping[str, Mapping[str, Result]]:
    """Every result, by promise and engine; empty when there is no file."""
    file = results_file()
    known = json.loads(file.read_text()) if file.exists() else {}
    return {
        promise: {
            engine: Result(
                Verdict(found["verdict"]),
                found["seconds"],
                tuple(found["evidence"]),
                found.get("exception", ""),
            )
            for engine, found in engines.items()
        }
        for promise, engines in known.items()
    }
