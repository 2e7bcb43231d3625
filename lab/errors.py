"""The lab's failures: what went wrong, why, and what to do about it."""

from __future__ import annotations


class LabError(Exception):
    """Shown to the user as three short parts, never as a traceback."""

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"  {self.why.strip()}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)
