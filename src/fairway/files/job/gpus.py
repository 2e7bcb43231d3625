"""Parse and format GPU requests of jobs: `A100-80GB:8`, `H100:8`, `8`, `40GB..80GB:2`, `1g.10gb`."""

from __future__ import annotations

import re
from typing import Final

from fairway.files.diagnostics import FaultCode, Severity, did_you_mean, shown
from fairway.files.schema.values import SLICE, Problem
from fairway.model.gpu import replicas_of
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.job import GpuRequest
from fairway.model.names import SliceName
from fairway.model.text import nearest

MAX_GPUS: Final = 1024
"""Maximum number of GPUs on one node."""
MAX_MEMORY_GB: Final = 10_000
EXPECTED: Final = "GPUs for each node, like A100-80GB:8, H100:8, 8, 40GB..80GB or 1g.10gb:2"
GPUS_EXAMPLES: Final = ("A100-80GB:8", "H100:8", "8", "40GB..80GB:2", "40GB..", "1g.10gb", "shared-4")

_COUNT: Final = r"[1-9][0-9]{0,3}"
_GB: Final = r"[1-9][0-9]{0,4}[Gg][Bb]"
_RANGE: Final = rf"{_GB}\.\.({_GB})?"
_PROFILE: Final = r"[1-9][Gg]\.[1-9][0-9]*[Gg][Bb]([+-][A-Za-z.]+)?"
_MODEL: Final = r"[A-Za-z][A-Za-z0-9._-]{0,62}"
GPUS_PATTERN: Final = rf"{_COUNT}|({_RANGE}|{_PROFILE}|{_MODEL})(:{_COUNT})?"
"""The form for the JSON Schema; `parse_gpus` checks what a schema cannot express."""


def parse_gpus(text: str) -> tuple[GpuRequest | None, Problem | None]:
    """Parse a GPU request. Returns an error without a request, or a request with at most a warning."""
    what, _, number = text.partition(":")
    if not text.isascii() or re.fullmatch(GPUS_PATTERN, text) is None or what.lower() in ("gpu", "gpus"):
        message = f"{shown(text) or 'an empty text'} does not say which GPUs"
        return None, Problem(FaultCode.BAD_VALUE, message, _hint(text))
    if what.isdigit():
        what, number = "", what
    count = int(number or 1)
    if count > MAX_GPUS:
        message = f"{shown(text)} asks for {count} on one node; the most is {MAX_GPUS}"
        return None, Problem(FaultCode.OUT_OF_RANGE, message, "GPUs count per node: say how many nodes, too")
    if not what:
        return GpuRequest(count), None
    if ".." in what:
        return _range(count, what)
    if re.fullmatch(_PROFILE, what) or replicas_of(what.lower()) is not None:
        return _slice(count, what.lower())
    return _model(count, what)


def gpus_text(gpus: GpuRequest) -> str:
    """Format a GPU request as the shortest text that parses to the same request."""
    what = gpus.model or gpus.slice or ""
    if gpus.memory_gb is not None:
        low, high = gpus.memory_gb
        what = f"{low}GB.." + (f"{high}GB" if high is not None else "")
    if not what:
        return str(gpus.count)
    return what if gpus.count == 1 else f"{what}:{gpus.count}"


def model_of_product(product: str) -> str | None:
    """Look up the GPU type of a driver's product name: `NVIDIA-A100-SXM4-80GB` is A100-80GB.

    Returns None if the product is unknown.
    """
    return next((gpu.name for gpu in CATALOGUE.values() if product in gpu.products), None)


def _range(count: int, what: str) -> tuple[GpuRequest | None, Problem | None]:
    first, _, last = what.lower().partition("..")
    low, high = int(first[:-2]), int(last[:-2]) if last else None
    if high is not None and high < low:
        message = f"{what} ends below where it begins"
        return None, Problem(FaultCode.BAD_VALUE, message, f"write {high}GB..{low}GB")
    if max(low, high or 0) > MAX_MEMORY_GB:
        hint = "write the memory of one GPU, for example 40GB..80GB"
        return None, Problem(FaultCode.OUT_OF_RANGE, f"no GPU has as much memory as {what}", hint)
    return GpuRequest(count, memory_gb=(low, high)), None


def _slice(count: int, what: str) -> tuple[GpuRequest | None, Problem | None]:
    if what not in SLICE.suggestions and replicas_of(what) is None:
        hint = did_you_mean(
            what, SLICE.suggestions, "see the profiles of each GPU in docs/reference/gpu-types.md"
        )
        return None, Problem(FaultCode.UNKNOWN_SLICE, f"{what} is not a MIG profile of any GPU", hint)
    return GpuRequest(count, slice=SliceName(what)), None


def _model(count: int, what: str) -> tuple[GpuRequest, Problem | None]:
    """Parse a GPU model. An unknown name is only a warning: a fleet may define its own GPU types."""
    word = what.lower()
    for name in CATALOGUE:
        if name.lower() == word:
            return GpuRequest(count, name), None
    for name in CATALOGUE:
        if name.lower().startswith(f"{word}-"):
            return GpuRequest(count, name[: len(what)]), None
    problem = Problem(
        FaultCode.UNKNOWN_GPU_TYPE,
        f"{what} is no GPU type that Fairway knows; the fleet must have one of that name",
        did_you_mean(what, _names(), "fairway get pools  shows the fleet's GPU types"),
        Severity.WARNING,
    )
    return GpuRequest(count, what), problem


def _names() -> list[str]:
    """Return the names of all GPU types and their common prefixes."""
    return list(dict.fromkeys(n for name in CATALOGUE for n in (name, name.split("-")[0]) if n != "RTX"))


_UNIT: Final = r"(?:GB|G|GiB|Gi)"
_NUMBER: Final = r"([1-9][0-9]{0,4})"
_MEANT: Final = (
    (r"0+|.*:0+", "request at least one: jobs without GPUs go to the engine itself"),
    (rf"{_NUMBER}{_UNIT}?(?:\.{{2,3}}|-|\.\.=){_NUMBER}{_UNIT}", r"write \1GB..\2GB"),
    (rf"(?:>=)?{_NUMBER}{_UNIT}\+?", r"write \1GB..  for at least that much memory"),
    (rf"(?:\.\.|<=){_NUMBER}{_UNIT}", r"write 1GB..\1GB"),
    (rf"(?:gres[/:])?gpu:({_COUNT})", r"write \1"),
)
_MEANT_MODEL: Final = (
    rf"(?P<count>{_COUNT})[x*](?P<what>{_MODEL}|{_PROFILE})",
    rf"(?:gres[/:])?gpu:(?P<what>{_MODEL}):(?P<count>{_COUNT})",
    rf"(?P<what>{_MODEL}?|{_PROFILE})[x*=,](?P<count>{_COUNT})",
)


def _hint(text: str) -> str:
    """Return a hint on what was probably meant by `8xA100`, `gpu:a100:8`, `80GB`, `40-80GB`, `0`."""
    word = re.sub(r"\s+", "", text[:100])
    for pattern, hint in _MEANT:
        if found := re.fullmatch(pattern, word, re.IGNORECASE):
            return found.expand(hint)
    for pattern in _MEANT_MODEL:
        if found := re.fullmatch(pattern, word, re.IGNORECASE):
            (name,) = nearest(found["what"], _names(), 1) or [found["what"]]
            return f"write {name}:{found['count']}"
    return f"write {EXPECTED}"
