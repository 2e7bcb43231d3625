"""What of a supply is used, lent, idle, drained or broken, and what teams hold of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.ledger import PoolState
from fairway.ledger.job_records import JobCount
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.team import Grant, Supply, TeamTree, borrowed

Held = Mapping[TeamName | None, int]
"""Devices of one supply by the team whose jobs hold them; None: under no team."""

WAITS: Final = (JobState.QUEUED, JobState.WAITING)

WORDS: Final = {
    "used": "used",
    "lent": "lent",
    "idle": "idle",
    "drained": "drained",
    "broken": "broken",
}
MEANINGS: Final = {
    "used": "held within a guarantee",
    "lent": "borrowed by a team beyond its guarantee: comes back when its owner asks",
    "idle": "free for whoever asks",
    "drained": "on nodes that are closed to new work",
    "broken": "on nodes that are down, or held back by the engine",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a bar."""

    kind: str
    count: int
    start: str
    """Where it begins and how wide it is, in percent of the bar."""
    width: str


@dataclass(frozen=True, slots=True)
class SupplyBar:
    """One supply as a bar with its numbers."""

    supply: Supply
    total: int
    stretches: tuple[Stretch, ...]

    @property
    def words(self) -> str:
        """The bar for who cannot see it."""
        return ", ".join(f"{s.count} {WORDS[s.kind]}" for s in self.stretches) or "nothing"

    def count(self, *kinds: str) -> int:
        """How many are in one of these states."""
        return sum(s.count for s in self.stretches if s.kind in kinds)


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A team on one supply, with all teams inside it."""

    team: TeamName
    depth: int
    guarantee: int
    held: int
    borrowed: int
    most: int | None
    """None: as much as there is."""
    waiting: int


class Grants:
    """What the teams of a fleet are granted, by supply; made once for a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet: Final = fleet
        self._tree: Final = TeamTree(fleet.teams)
        self._of: dict[Supply, dict[TeamName, Grant]] = {}
        for team in fleet.teams:
            for grant in team.grants:
                self._of.setdefault(grant.supply, {})[team.name] = grant

    def __contains__(self, team: str) -> bool:
        return team in self._tree

    def lent(self, supply: Supply, held: Held) -> int:
        """What the teams at the top borrow: each device is counted once. One pass over the teams."""
        grants = self._of.get(supply, {})
        holds: dict[TeamName | None, int] = {}
        lent = 0
        for team in reversed(self.fleet.teams):  # children before parents
            all_of_it = held.get(team.name, 0) + holds.get(team.name, 0)
            holds[team.parent] = holds.get(team.parent, 0) + all_of_it
            if team.parent is None:
                grant = grants.get(team.name)
                lent += borrowed(all_of_it, grant.guarantee if grant else 0)
        return lent

    def rows(self, supply: Supply, held: Held, waiting: Held) -> list[TeamRow]:
        """Every team with a grant, a job that runs or one that waits there; each below its parent."""
        grants = self._of.get(supply, {})
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
        above: int | None,
        grants: Mapping[TeamName, Grant],
        held: Held,
        waiting: Held,
    ) -> tuple[int, int]:
        """Adds the team and those inside it; what they hold and wait for together."""
        grant = grants.get(name)
        most = 0 if grant is None else grant.ceiling
        if grant is not None and above is not None:
            most = above if most is None else min(most, above)
        place = len(found)
        holds, waits = held.get(name, 0), waiting.get(name, 0)
        for child in self._tree.children(self._tree[name]):
            more = self._add_rows(found, child.name, depth + 1, most, grants, held, waiting)
            holds, waits = holds + more[0], waits + more[1]
        if grant is not None or holds or waits:
            guarantee = grant.guarantee if grant else 0
            row = TeamRow(name, depth, guarantee, holds, borrowed(holds, guarantee), most, waits)
            found.insert(place, row)
        return holds, waits


def by_team(counts: Iterable[JobCount], *states: JobState) -> dict[Supply, dict[TeamName | None, int]]:
    """Devices that jobs in these states hold or ask for, by supply and team."""
    found: dict[Supply, dict[TeamName | None, int]] = {}
    for count in counts:
        if count.pool is not None and count.state in states:
            teams = found.setdefault(Supply(count.pool, count.slice), {})
            teams[count.team] = teams.get(count.team, 0) + count.devices
    return found


def supply_bar(supply: Supply, state: PoolState, lent: int, drained: int) -> SupplyBar:
    """A supply as its nodes were last seen. Jobs, and so what is `lent`, are seen at another moment: no more
    than is in use."""
    lent = min(lent, state.in_use)
    drained = min(drained, state.unhealthy)
    counts = {
        "used": state.in_use - lent,
        "lent": lent,
        "idle": state.free,
        "drained": drained,
        "broken": state.unhealthy - drained,
    }
    return SupplyBar(supply, state.total, stretches(counts, state.total))


def stretches(counts: Mapping[str, int], total: int) -> tuple[Stretch, ...]:
    """Side by side, those that are not empty."""
    found: list[Stretch] = []
    start = 0
    for kind, count in counts.items():
        if count > 0:
            found.append(Stretch(kind, count, part(start, total), part(count, total)))
            start += count
    return tuple(found)


def part(count: int, total: int) -> str:
    """As SVG writes a length: in percent of the whole."""
    return f"{100 * count / total:.3f}".rstrip("0").rstrip(".") if total else "0"
