"""Tell of which waiting jobs nobody can know when they start, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fairway.explain.binding import Stage, stage

_IN_QUEUE: Final = frozenset({"", "EngineSays", "EngineSilent", "NotConsidered"})
"""Codes that say too little to keep a job out of a forecast."""
_UNKNOWN_LIMITS: Final = frozenset(
    {"AccountLimit", "ArrayTaskLimit", "NamespaceQuota", "QosLimit", "UsageLimit"}
)
"""Limits that are not in the fleet file."""
_UNTIL: Final[Mapping[Stage, str]] = MappingProxyType(
    {
        Stage.HELD: "it does not start until what stops it is lifted, and nobody knows when",
        Stage.NEVER: "it cannot start as it is",
        Stage.DEPENDENCY: "it joins the queue only after what it waits for",
        Stage.START: "it has its nodes already and is being started",
    }
)


def unknown_start(code: str) -> str:
    """Return why nobody can know when a job that waits for this reason starts; empty: a forecast can."""
    if code in _IN_QUEUE:
        return ""
    if code in _UNKNOWN_LIMITS:
        return "a limit that is not in the fleet file stops it, and what uses it up is not known"
    return _UNTIL.get(stage(code), "")
