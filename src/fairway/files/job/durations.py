"""Parse time limits of jobs: `72h`, `90m`, `1d12h`, and Slurm's `1-12:00:00`."""

from __future__ import annotations

import re
from typing import Final

from fairway.files.diagnostics import FaultCode, shown
from fairway.files.schema.values import Problem, corrected_duration
from fairway.model.text import DURATION_PATTERN, duration_text, parse_duration

MAX_SECONDS: Final = 3650 * 86_400
EXPECTED: Final = "a time, for example 72h, 1d12h or 1-12:00:00"

_DAYS: Final = r"[0-9]{1,5}-[0-9]{1,5}(:[0-9]{1,5}){0,2}"
_CLOCK: Final = r"[0-9]{1,5}:[0-9]{1,5}:[0-9]{1,5}"
TIME_PATTERN: Final = rf"{DURATION_PATTERN}|{_DAYS}|{_CLOCK}"


def parse_time(text: str) -> int | Problem:
    """Parse a time limit into seconds. Returns a Problem if it is invalid or ambiguous, like 10:30."""
    if text.isascii() and re.fullmatch(f"{_DAYS}|{_CLOCK}", text):
        seconds = slurm_seconds(text)
    else:
        seconds = parse_duration(text)
    if seconds is None:
        return Problem(
            FaultCode.BAD_VALUE, f"{shown(text) or 'an empty text'} is not {EXPECTED}", _hint(text)
        )
    if not 1 <= seconds <= MAX_SECONDS:
        limits = f"from 1s to {duration_text(MAX_SECONDS)}"
        return Problem(FaultCode.OUT_OF_RANGE, f"{shown(text)} is out of range", f"write a time {limits}")
    return seconds


def slurm_seconds(text: str) -> int | None:
    """Parse a time limit as Slurm does: MIN, MIN:SEC, H:MIN:SEC, D-H, D-H:MIN, D-H:MIN:SEC.

    Returns None if the text has none of these forms.
    """
    if not text.isascii() or not re.fullmatch(r"([0-9]{1,5}-)?[0-9]{1,9}(:[0-9]{1,5}){0,2}", text):
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], parts[1] if len(parts) == 2 else 0
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _hint(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,9}", text):
        return f"add the unit, e.g.  {text}h  or  {text}m"
    if re.fullmatch(r"[0-9]{1,5}:[0-9]{1,5}", text):
        first, second = text.split(":")
        return f"say which it is:  {int(first)}h{int(second)}m  or  {int(first)}m{int(second)}s"
    meant = corrected_duration(text)
    return f"write {meant}" if meant else f"write {EXPECTED}"
