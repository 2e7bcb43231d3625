"""Format applies that stopped before their end: what is live of them, and what is not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.model.text import clean, count
from fairway.wire import policy as wire


def stopped_text(s: wire.StoppedApply) -> str:
    """Format where and why it stopped: `apply 4 stopped on cloud after 34 of 37 changes: …`."""
    return (
        f"apply {s.apply} stopped on {clean(s.cluster)} after {s.done} of {count(s.total, 'change')}: "
        f"{clean(s.message)}"
    )


def liveness_text(s: wire.StoppedApply) -> str:
    """Format which of its teams are live: `live: nlp; not live: ads`. Empty if it changes no team."""
    parts = (("live", s.live), ("partly live", s.partly_live), ("not live", s.not_live))
    return "; ".join(f"{word}: {', '.join(map(clean, teams))}" for word, teams in parts if teams)


def stopped_notes(stopped: Sequence[wire.StoppedApply]) -> list[str]:
    """Return the lines for all of them, each with what is live and what to do."""
    notes: list[str] = []
    for s in stopped:
        notes.append(stopped_text(s))
        live = liveness_text(s)
        notes += [f"  {live}"] if live else []
        notes.append(f"  hint: {clean(s.hint)}; what is missing:  fairway history {s.apply}")
    return notes
