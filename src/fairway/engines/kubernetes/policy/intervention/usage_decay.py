"""Compute the weights of teams from their decayed past usage. Pure.

Kueue's fair sharing considers only current usage. Fairway stores each team's decayed usage and gives Kueue
`share x 2 x factor` as its weight, where the factor is Slurm's classic fair-share factor: a team that used
exactly its share of late has its share as weight, one that used nothing has twice its share, one that used
twice its share has half of it. Between siblings only the ratio matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fairway.model.team import Team

MIN_WEIGHT_CHANGE: Final = 0.10
"""A weight is written when it differs by this part from the one Kueue has."""
BASELINE_USAGE: Final = 0.005
"""The part of all device-seconds of a half-life that is added to the usage, split among siblings by share.

Without it the first job on an empty cluster would count as much as a week of usage.
"""
MIN_FACTOR: Final = 0.01


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Decayed device-seconds of a team at one moment."""

    amount: float
    at: float
    """Seconds since the epoch."""

    def advance(self, now: float, half_life: float, devices: int = 0) -> DecayedUsage:
        """Return the decayed usage at `now`, if this many devices have been in use since."""
        decay = math.exp2(-max(0.0, now - self.at) / half_life)
        # The usage since decays too, each second of it from then on: this is its integral.
        added = devices * half_life / math.log(2) * (1 - decay)
        return DecayedUsage(self.amount * decay + added, now)

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


def fair_share_factor(used: float, all_used: float, share: float) -> float:
    """Return 1 for a team that used nothing, one half for one that used exactly its share, less for more."""
    if all_used <= 0 or share <= 0:
        return 1.0
    return max(MIN_FACTOR, math.exp2(-used / all_used / share))


def weights(teams: Sequence[Team], used: Mapping[str, float], baseline: float = 0.0) -> dict[str, float]:
    """Return each team's weight among siblings; `baseline` device-seconds are split among them first."""
    by_parent: dict[str | None, list[Team]] = {}
    for team in teams:
        by_parent.setdefault(team.parent, []).append(team)
    result: dict[str, float] = {}
    for siblings in by_parent.values():
        if len(siblings) == 1:
            continue
        all_used = baseline + sum(used.get(t.name, 0.0) for t in siblings)
        all_shares = sum(t.share for t in siblings)
        for team in siblings:
            part = team.share / all_shares if all_shares else 0.0
            own = used.get(team.name, 0.0) + baseline * part
            # Twice, so that a team that used exactly its share has exactly its share as weight.
            factor = 2 * fair_share_factor(own, all_used, part) if all_used else 1
            result[team.name] = team.share * factor
    return result
