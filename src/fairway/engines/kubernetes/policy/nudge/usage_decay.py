"""Weights from decayed past usage between teams. Pure.

Kueue's fair sharing knows only the present. Fairway stores each team's decayed usage and gives Kueue
`share x 2 x forgiveness` as its weight: a team that recently used its share has its share, one that used
nothing twice that, one that used twice its share half. Between siblings only the ratio matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fairway.model.team import Team

NOTICED: Final = 0.10
"""A weight is written when it differs by so much from the one Kueue has."""
NEGLIGIBLE: Final = 0.005
"""The part of a half-life's devices that every team counts as having used.

Else the first job on an empty cluster would weigh as much as a week of usage.
"""
LEAST_WEIGHT: Final = 0.01


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Decayed device-seconds of a team at one moment."""

    amount: float
    at: float
    """Seconds since the epoch."""

    def later(self, now: float, half_life: float, holding: int = 0) -> DecayedUsage:
        """Return the decayed usage after some time in which so many devices were held."""
        passed = max(0.0, now - self.at)
        kept = math.exp2(-passed / half_life)
        # what is held meanwhile decays too, from the moment it is used
        gained = holding * half_life / math.log(2) * (1 - kept)
        return DecayedUsage(self.amount * kept + gained, now)

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        return f"{self.amount:.0f} device-seconds at {moment}"


def parse_usage(text: str) -> DecayedUsage | None:
    """Parse an annotation. Returns None if it cannot be parsed."""
    amount, _, moment = text.partition(" device-seconds at ")
    try:
        return DecayedUsage(float(amount), datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return None


def forgiveness(used: float, all_used: float, share: float) -> float:
    """Return a factor from 1, nothing used, down; one half for a team that used exactly its share."""
    if all_used <= 0 or share <= 0:
        return 1.0
    return max(LEAST_WEIGHT, math.exp2(-used / all_used / share))


def weights(teams: Sequence[Team], used: Mapping[str, float], negligible: float = 0.0) -> dict[str, float]:
    """Return each team's weight among siblings; `negligible` device-seconds are split among all first."""
    given: dict[str, float] = {}
    for siblings in _families(teams):
        all_used = negligible + sum(used.get(t.name, 0.0) for t in siblings)
        all_shares = sum(t.share for t in siblings)
        for team in siblings:
            part = team.share / all_shares if all_shares else 0.0
            own = used.get(team.name, 0.0) + negligible * part
            # twice, so that whoever used exactly its share has exactly its share as weight
            given[team.name] = team.share * 2 * forgiveness(own, all_used, part) if all_used else team.share
    return given


def _families(teams: Sequence[Team]) -> Iterator[list[Team]]:
    families: dict[str | None, list[Team]] = {}
    for team in teams:
        families.setdefault(team.parent, []).append(team)
    yield from (family for family in families.values() if len(family) > 1)
