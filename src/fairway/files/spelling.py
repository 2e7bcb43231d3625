"""What was probably meant, and what there is, in a sentence of a fault."""

from __future__ import annotations

from collections.abc import Iterable

from fairway.files.faults import shown
from fairway.model.spelling import nearest


def did_you_mean(word: str, choices: Iterable[str], otherwise: str) -> str:
    """A hint that names what was probably meant, or `otherwise` if nothing is near."""
    found = nearest(word, choices)
    return f"did you mean {' or '.join(shown(name) for name in found)}?" if found else otherwise


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a sentence, not too many of them."""
    all_names = list(names)
    more = len(all_names) - most
    return ", ".join(shown(name) for name in all_names[:most]) + (f" and {more} more" if more > 0 else "")
