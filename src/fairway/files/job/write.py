"""Write a JobSpec as the text of a job file, without default values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from fairway.files.fleet.schema import API_VERSION
from fairway.files.job.gpus import gpus_text
from fairway.model.job import JobSpec, Retries, When, format_job_id
from fairway.model.text import duration_text

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+=-]*")
_NOT_TEXT: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_BLOCK: Final = re.compile(r"[^ \t\n][^\n]*(\n([^\n]*[^ \t\n])?)*\n")
"""A text that reads back the same from a block of lines: it begins with a letter and ends with one line."""


def compose_job(spec: JobSpec) -> str:
    """Write `spec` as a job file that reads back as an equal spec."""
    return "\n".join([f"{API_VERSION.name}: {API_VERSION.example}", "kind: Job", *_lines(spec)]) + "\n"


def _lines(spec: JobSpec) -> Iterator[str]:
    yield f"name: {_scalar(spec.name)}"
    yield from _placement(spec)
    if spec.manifest is not None:
        yield from _time(spec)
        yield from _manifest(spec.manifest)
    else:
        gpus = gpus_text(spec.gpus)
        yield f"gpus: {gpus if gpus.isdigit() else _scalar(gpus)}"
        yield from _limits(spec)
        yield from _program(spec)
    yield from _runs(spec)


def _placement(spec: JobSpec) -> Iterator[str]:
    named = (("team", spec.team), ("project", spec.project), ("priority", spec.priority), ("pool", spec.pool))
    for key, value in named:
        if value is not None:
            yield f"{key}: {_scalar(value)}"
    if spec.labels:
        yield "labels:"
        yield from (f"  {_scalar(key)}: {_quoted(value)}" for key, value in spec.labels.items())


def _limits(spec: JobSpec) -> Iterator[str]:
    if spec.nodes != 1:
        yield f"nodes: {spec.nodes}"
    if spec.cpus is not None:
        yield f"cpus: {spec.cpus}"
    if spec.memory_gb is not None:
        yield f"memory: {spec.memory_gb}GB"
    yield from _time(spec)


def _time(spec: JobSpec) -> Iterator[str]:
    if spec.time_seconds is not None:
        yield f"time: {duration_text(spec.time_seconds)}"


def _manifest(manifest: str) -> Iterator[str]:
    """Yield a manifest as JSON, which is YAML too, one field a line."""
    yield "manifest:"
    lines = json.dumps(json.loads(manifest), ensure_ascii=False, indent=2).split("\n")
    yield from (f"  {_escaped(line)}" for line in lines)


def _program(spec: JobSpec) -> Iterator[str]:
    for key, text in (("image", spec.image), ("workdir", spec.workdir)):
        if text is not None:
            yield f"{key}: {_scalar(text)}"
    if spec.setup is not None:
        yield from _text("setup", spec.setup)
    if spec.env:
        yield "env:"
        yield from (f"  {name}: {_quoted(value)}" for name, value in spec.env.items())
    if spec.script is not None:
        yield from _text("script", spec.script)
    else:
        yield f"command: {_list(spec.command)}"


def _runs(spec: JobSpec) -> Iterator[str]:
    if spec.array:
        yield f"array: {_indices(spec.array)}"
    if spec.after:
        yield "after:"
    for after in spec.after:
        when = "" if after.when is When.OK else f", when: {after.when}"
        yield f"  - {{ job: {_quoted(format_job_id(after.job))}{when} }}"
    if spec.retries != Retries():
        yield from _retries(spec.retries)
    if spec.tolerates:
        yield f"tolerates: {_list(sorted(spec.tolerates))}"
    if spec.together:
        yield "together: rack"


def _retries(retries: Retries) -> Iterator[str]:
    first, longest = duration_text(retries.first_seconds), duration_text(retries.longest_seconds)
    yield f"retries: {{ count: {retries.count}, first: {first}, longest: {longest} }}"


def _text(key: str, text: str) -> Iterator[str]:
    """Yield a text as a block of lines if it reads back the same, else in quotes."""
    plain = all(c.isprintable() or c in "\t\n" for c in text) and not text.endswith("\n\n")
    if not plain or _BLOCK.fullmatch(text) is None:
        yield f"{key}: {_quoted(text)}"
        return
    yield f"{key}: |"
    yield from (f"  {line}" if line else "" for line in text.removesuffix("\n").split("\n"))


def _indices(array: Sequence[int]) -> str:
    """Write indices as ranges: `0-9,12`; a single one as a list."""
    ordered = sorted(array)
    if len(ordered) == 1:
        return f"[{ordered[0]}]"
    ends = [a for a, b in pairwise(ordered) if b != a + 1] + ordered[-1:]
    starts = ordered[:1] + [b for a, b in pairwise(ordered) if b != a + 1]
    ranges = (f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
    return _quoted(",".join(ranges))


def _list(words: Sequence[str]) -> str:
    return f"[{', '.join(_scalar(word) for word in words)}]"


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT else _quoted(text)


def _quoted(text: str) -> str:
    """Quote a text; YAML folds some line separators, which JSON leaves as they are."""
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
