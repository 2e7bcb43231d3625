"""Compute the recent use of teams as the simulator's quotas average it, from sums by day and hour. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp2

from fairway.model.names import TeamName
from fairway.model.team import Supply, Team, TeamTree


@dataclass(frozen=True, slots=True)
class PeriodUse:
    """Devices times seconds that a team itself, without those inside it, used in a period."""

    start: float
    end: float
    team: TeamName
    supply: Supply
    device_seconds: float


def mean_use_beyond_guarantee(
    use: Iterable[PeriodUse],
    teams: Iterable[Team],
    half_life: float,
    now: float,
    *,
    counts_guaranteed: bool = False,
) -> dict[tuple[TeamName, Supply], float]:
    """Return the devices that each team, with its descendants, held beyond its guarantee, on average.

    With `counts_guaranteed`, what it held within its guarantee counts too.
    Recent use weighs more: half as much for each half-life that has passed. Within a period, use counts as
    even: what was held beyond a guarantee for a part of a day only is missed. O(rows x depth of teams).
    """
    tree = TeamTree(teams)
    sums: dict[tuple[float, float, TeamName, Supply], float] = {}
    for row in use:
        if row.team not in tree or row.start >= now:
            continue
        team = tree[row.team]
        for above in (team, *tree.ancestors(team)):
            key = (row.start, min(row.end, now), above.name, row.supply)
            sums[key] = sums.get(key, 0.0) + row.device_seconds
    found: dict[tuple[TeamName, Supply], float] = {}
    for (start, end, name, supply), seconds in sums.items():
        grant = tree[name].grant(supply)
        exempt = grant.guarantee if grant and not counts_guaranteed else 0
        beyond = seconds / (end - start) - exempt
        if beyond > 0:
            weight = exp2((end - now) / half_life) - exp2((start - now) / half_life)
            found[name, supply] = found.get((name, supply), 0.0) + beyond * weight
    return found
