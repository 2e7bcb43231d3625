"""Reads the files that `fairway render slurm` writes."""

from __future__ import annotations


def conf_lines(text: str) -> tuple[str, ...]:
    """The lines of a rendered file that are not comments."""
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
