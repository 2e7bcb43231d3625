"""All situations, those of one scene after each other."""

from __future__ import annotations

from typing import Final

from tests.situations import on_both, on_kubernetes, on_slurm
from tests.situations.scenes import SCENES
from tests.situations.situation import BOOK, Situation

MODULES: Final = (on_both, on_slurm, on_kubernetes)
"""Imported for what they declare, in this order."""
SITUATIONS: Final[tuple[Situation, ...]] = tuple(
    sorted(BOOK.found, key=lambda one: list(SCENES).index(one.scene))
)
