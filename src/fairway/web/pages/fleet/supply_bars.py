"""Compute how much of a supply is used, on loan, idle, drained or down, and what teams hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairway.ledger import PoolState
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.team import Grant, Supply, TeamTree, borrowed

DevicesByTeam = Mapping[TeamName | None, int]
"""Devices of one supply by the team whose jobs hold them; None is no team."""

MEANINGS: Final = {
    "used": "in use within a team's guarantee",
    "on_loan": "in use beyond a team's guarantee; returned when the owner of the guarantee needs them",
    "idle": "free for any team",
    "drained": "on nodes that accept no new jobs",
    "down": "on nodes that are down, or disabled by the engine",
}


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A segment of a bar."""

    kind: str
    count: int
    start: str
    """Start and width, in percent of the bar."""
    width: str

    @property
    def name(self) -> str:
        """Return the kind as pages write it."""
        return self.kind.replace("_", " ")


@dataclass(frozen=True, slots=True)
class SupplyBar:
    """The bar of one supply with its numbers."""

    supply: Supply
    total: int
    segments: tuple[BarSegment, ...]

    @property
    def description(self) -> str:
        """Describe the bar in text, for screen readers."""
        return ", ".join(f"{s.count} {s.name}" for s in self.segments) or "nothing"

    def count(self, *kinds: str) -> int:
        """Return the number of devices in one of these states."""
        return sum(s.count for s in self.segments if s.kind in kinds)


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A team on one supply, including its subteams."""

    team: TeamName
    depth: int
    guarantee: int
    held: int
    borrowed: int
    limit: int | None
    """None means no limit."""
    waiting: int


class Grants:
    """The grants of a fleet's teams by supply; computed once per fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet: Final = fleet
        self._tree: Final = TeamTree(fleet.teams)
        self._by_supply: dict[Supply, dict[TeamName, Grant]] = {}
        for team in fleet.teams:
            for grant in team.grants:
                self._by_supply.setdefault(grant.supply, {})[team.name] = grant

    def __contains__(self, team: str) -> bool:
        return team in self._tree

    def lent(self, supply: Supply, held: DevicesByTeam, scale: int = 1) -> int:
        """Return how much top-level teams borrow, counting each device once. One pass over the teams.

        `scale`: of device-seconds, the seconds over which they were held.
        """
        grants = self._by_supply.get(supply, {})
        holds: dict[TeamName | None, int] = {}
        lent = 0
        for team in reversed(self.fleet.teams):  # children before parents
            total = held.get(team.name, 0) + holds.get(team.name, 0)
            holds[team.parent] = holds.get(team.parent, 0) + total
            if team.parent is None:
                grant = grants.get(team.name)
                lent += borrowed(total, scale * grant.guarantee if grant else 0)
        return lent

    def rows(self, supply: Supply, held: DevicesByTeam, waiting: DevicesByTeam) -> list[TeamRow]:
        """Return every team with a grant, a running or a waiting job there; each after its parent."""
        grants = self._by_supply.get(supply, {})
        found: list[TeamRow] = []
        for team in self.fleet.teams:
            if team.parent is None:
                self._add_rows(found, team.name, 0, None, grants, held, waiting)
        return found

    def _add_rows(
        self,
        found: list[TeamRow],
        name: TeamName,
        depth: int,
        parent_limit: int | None,
        grants: Mapping[TeamName, Grant],
        held: DevicesByTeam,
        waiting: DevicesByTeam,
    ) -> tuple[int, int]:
        """Add the team and its subteams. Returns what they hold and wait for together."""
        grant = grants.get(name)
        limit = 0 if grant is None else grant.ceiling
        if grant is not None and parent_limit is not None:
            limit = parent_limit if limit is None else min(limit, parent_limit)
        place = len(found)
        holds, waits = held.get(name, 0), waiting.get(name, 0)
        for child in self._tree.children(self._tree[name]):
            more = self._add_rows(found, child.name, depth + 1, limit, grants, held, waiting)
            holds, waits = holds + more[0], waits + more[1]
        if grant is not None or holds or waits:
            guarantee = grant.guarantee if grant else 0
            row = TeamRow(name, depth, guarantee, holds, borrowed(holds, guarantee), limit, waits)
            found.insert(place, row)
        return holds, waits


def supply_bar(supply: Supply, state: PoolState, lent: int, drained: int) -> SupplyBar:
    """Build the bar of a supply from its last observation.

    Jobs, and so `lent`, are observed at another time: `lent` is capped at what is in use.
    """
    lent = min(lent, state.in_use)
    drained = min(drained, state.unhealthy)
    counts = {
        "used": state.in_use - lent,
        "on_loan": lent,
        "idle": state.free,
        "drained": drained,
        "down": state.unhealthy - drained,
    }
    return SupplyBar(supply, state.total, segments(counts, state.total))


def segments(counts: Mapping[str, int], total: int) -> tuple[BarSegment, ...]:
    """Build the non-empty segments side by side."""
    found: list[BarSegment] = []
    start = 0
    for kind, count in counts.items():
        if count > 0:
            found.append(BarSegment(kind, count, part(start, total), part(count, total)))
            start += count
    return tuple(found)


def part(count: int, total: int) -> str:
    """Format a length as a percentage of the whole, for SVG."""
    return f"{100 * count / total:.3f}".rstrip("0").rstrip(".") if total else "0"
