"""Define the form of projects and labels, in job files and in fleet files."""

from __future__ import annotations

import re
from typing import Final

from fairway.files.diagnostics import FaultCode, shown
from fairway.files.schema.values import Problem, Text
from fairway.model.labels import (
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    MAX_LABEL_LENGTH,
    PROJECT_KEY,
    is_reserved_key,
)

_FORM: Final = f"letters, digits, '.', '_' and '-', at most {MAX_LABEL_LENGTH} characters"


def _nearest(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:MAX_LABEL_LENGTH].rstrip("-._")


def _key_rule(text: str) -> Problem | None:
    if not is_reserved_key(text):
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"{shown(text)} is reserved",
        "write  project: NAME" if text == PROJECT_KEY else "choose another prefix, or none",
    )


PROJECT_NAME: Final = Text(
    f"a name of {_FORM}",
    LABEL_VALUE_PATTERN,
    MAX_LABEL_LENGTH,
    FaultCode.BAD_NAME,
    normalize=_nearest,
    examples=("llm",),
)
LABEL_VALUE: Final = Text(_FORM, LABEL_VALUE_PATTERN, MAX_LABEL_LENGTH, normalize=_nearest, examples=("e12",))
LABEL_KEY: Final = Text(
    f"a key of {_FORM}",
    LABEL_KEY_PATTERN,
    MAX_LABEL_LENGTH,
    FaultCode.BAD_NAME,
    rule=_key_rule,
    examples=("experiment",),
)
