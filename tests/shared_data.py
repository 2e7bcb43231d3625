"""Find the public traces beside the repository; tests that need one are skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(
    os.environ.get("FAIRWAY_SHARED_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)


def shared_data(name: str) -> Path:
    """Return the path of a file of the public traces; skips the test if it is absent."""
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(
            f"{name} is not in {SHARED_DATA}: set FAIRWAY_SHARED_DATA to the folder with the public traces"
        )
    return path
