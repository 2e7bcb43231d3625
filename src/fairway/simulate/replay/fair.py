"""Divide devices among teams by their shares, as an ideal that real service is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fairway.model.names import TeamName
from fairway.model.team import Team


def divide(amount: float, demands: Sequence[tuple[float, float]]) -> list[float]:
    """Divide an amount by weight, never above demand (max-min fairness). Entries are weight and demand.

    What one does not need goes to the others. O(n log n).
    """
    given = [0.0] * len(demands)
    order = sorted(range(len(demands)), key=lambda i: demands[i][1] / demands[i][0])
    weights = sum(weight for weight, _ in demands)
    left = amount
    for i in order:
        weight, demand = demands[i]
        given[i] = min(demand, left * weight / weights) if weights > 0 else 0.0
        left -= given[i]
        weights -= weight
    return given


class FairDivision:
    """Divides a supply among the teams of a tree: a team's own jobs first, then its children by share."""

    def __init__(self, teams: Sequence[Team]) -> None:
        """`teams` has parents before children."""
        numbers = {team.name: number for number, team in enumerate(teams)}
        self._shares: Final = [float(max(1, team.share)) for team in teams]
        self._parents: Final = [None if team.parent is None else numbers[team.parent] for team in teams]
        self._children: Final[list[list[int]]] = [[] for _ in teams]
        for number, parent in enumerate(self._parents):
            if parent is not None:
                self._children[parent].append(number)
        self._tops: Final = [number for number, parent in enumerate(self._parents) if parent is None]

    def ideal(self, amount: float, own: Sequence[float]) -> list[float]:
        """Return what each team's own jobs would hold, given the devices that each team's own jobs want."""
        below = list(own)
        for number in range(len(below) - 1, -1, -1):
            parent = self._parents[number]
            if parent is not None:
                below[parent] += below[number]
        given = [0.0] * len(below)
        self._give(self._tops, amount, below, given)
        for number, children in enumerate(self._children):  # parents first
            if given[number] > 0 and children:
                had, given[number] = given[number], min(own[number], given[number])
                self._give(children, had - given[number], below, given)
        return given

    def _give(self, teams: Iterable[int], amount: float, below: Sequence[float], given: list[float]) -> None:
        wanting = [number for number in teams if below[number] > 0]
        parts = divide(amount, [(self._shares[number], below[number]) for number in wanting])
        for number, part in zip(wanting, parts, strict=True):
            given[number] = part


def share_parts(teams: Sequence[Team], active: Iterable[TeamName]) -> dict[TeamName, float]:
    """Return the part of everything that the shares give each active team if all of them want all of it."""
    wanted = set(active)
    own = [1.0 if team.name in wanted else 0.0 for team in teams]
    total = sum(own)
    if not total:
        return {}
    ideal = FairDivision(teams).ideal(1.0, own)
    return {team.name: part for team, part in zip(teams, ideal, strict=True) if team.name in wanted}


def jains_index(values: Sequence[float]) -> float:
    """Return Jain's index: 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return 1.0 if not squares else sum(values) ** 2 / (len(values) * squares)
