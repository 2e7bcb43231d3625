"""Say who used in the last 30 days what a plan takes away. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DAYS: Final = 30
MAX_USERS: Final = 5
"""Users that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class RecentUse:
    """Who used something in the last 30 days, whoever used it most first."""

    users: tuple[tuple[str, float], ...] = ()
    """The first few users, with their GPU-hours."""
    more: int = 0
    """Users that are not named."""
    gpu_hours: float = 0.0
    """Of all of them."""
    unknown: str = ""
    """Why it is not known; empty if it is."""

    @classmethod
    def of(cls, device_seconds: Mapping[str, int]) -> RecentUse:
        """Sum up the use of each user; who used nothing is left out."""
        used = sorted(
            ((u, s) for u, s in device_seconds.items() if s > 0), key=lambda item: (-item[1], item[0])
        )
        named = tuple((user, _hours(seconds)) for user, seconds in used[:MAX_USERS])
        return cls(named, max(0, len(used) - MAX_USERS), _hours(sum(s for _, s in used)))


@dataclass(frozen=True, slots=True)
class TakenAway:
    """Something that people could use on a cluster, and that a policy takes from them on purpose."""

    what: str
    """What they can no longer do: `GPU jobs of account physics, which is no team`."""
    used: RecentUse
    team: str | None = None
    user: str | None = None
    """The only one who loses it; None: everybody of the account."""


def _hours(device_seconds: int) -> float:
    return round(device_seconds / 3600, 3)
