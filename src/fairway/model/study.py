"""Define how far a what-if study is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class StudyState(StrEnum):
    """How far a study is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


OPEN_STUDIES: Final = (StudyState.QUEUED, StudyState.RUNNING)
