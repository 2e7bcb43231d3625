"""What was found of each kind: build/kinds.json, the source of docs/engines/kinds.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
FILE: Final = _ROOT / "build/kinds.json"
PAGE: Final = _ROOT / "docs/engines/kinds.md"

PROPERTIES: Final[Mapping[str, str]] = {
    "queued": "created without a queue by a member, it gets the team's queue, and Kueue admits it by quota",
    "mirrored": "it is one row, with its kind, and as many GPUs as its pods hold",
    "preempted": "it loses borrowed GPUs to the team that they are guaranteed to, and the ledger says so",
    "why": "while it waits, `fairway why` names the reason that Kueue has",
    "held": "after `fairway hold` it does not start, although there is room, until `fairway release`",
    "back": "it runs again once there is room",
    "cancelled": "`fairway cancel` deletes it, and its pods go",
    "usage": "its GPU-seconds in the ledger equal the times of its pods",
    "charged": "its cost is its usage at the price of the pool",
}

Found = Mapping[str, Mapping[str, str]]
"""By kind and property: `yes`, or why not."""


def save(found: Found) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def load() -> Found:
    found: Found = json.loads(FILE.read_text())
    return found
