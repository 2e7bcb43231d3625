"""Reads the files that `fairway render slurm` writes."""

from __future__ import annotations

from collections.abc import Mapping


def conf_lines(text: str) -> tuple[str, ...]:
    """The lines of a rendered file that are not comments."""
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def slurm_lines(files: Mapping[str, str]) -> tuple[str, ...]:
    """What slurm.conf has with the file that it includes."""
    own = [line for line in conf_lines(files["slurm.conf"]) if line != "Include fairway.conf"]
    return (*own, *conf_lines(files["fairway.conf"]))
