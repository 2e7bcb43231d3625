"""Why a job waits, as people read it. Pure."""

from __future__ import annotations

from fairway.api import job_wire as wire
from fairway.cli.job_story import COLOURS
from fairway.cli.layout import Line, fold


def answer(found: wire.Why, width: int | None) -> list[Line]:
    """How it stands, then each reason with its code, the engine's evidence and a hint."""
    lines = [Line(text, COLOURS.get(found.state)) for text in _folded(found.said, width)]
    for reason in found.reasons:
        lines.append(Line())
        lines += [Line(text) for text in _folded(reason.text + _evidence(reason), width)]
        if reason.hint:
            lines += [Line(text) for text in _folded(f"hint: {reason.hint}", width)]
    return lines


def _evidence(reason: wire.WhyReason) -> str:
    """` (TeamAtCeiling; the engine says: AssocGrpGRES)`."""
    said = f"the engine says: {reason.engine}" if reason.engine else ""
    parts = "; ".join(filter(None, (reason.code, said)))
    return f" ({parts})" if parts else ""


def _folded(text: str, width: int | None) -> list[str]:
    return [text] if width is None else fold(text, width)
