"""The sites of an engine: one folder each, with the files that its administrators made."""

from __future__ import annotations

from pathlib import Path

from lab.errors import LabError


def names(folder: Path, file: str) -> list[str]:
    """The sites in a folder: each has this file."""
    return sorted(site.name for site in folder.iterdir() if (site / file).exists())


def require(name: str, known: list[str]) -> None:
    """Raise LabError unless there is such a site."""
    if name not in known:
        raise LabError(f"there is no site {name}", hint=f"one of: {', '.join(known)}")
