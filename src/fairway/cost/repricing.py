"""Find from which day a new fleet file can change charges of the past. Pure.

Undated settings never do. See docs/adr/0053.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import date

from fairway.model.fleet import Fleet


def changed_since(before: Fleet, after: Fleet) -> date | None:
    """Return the earliest day of a price step, commitment or dated move that only one of two fleets has."""
    old, new = _dated(before), _dated(after)
    return min(((old.get(key) or new[key]) for key in old.keys() ^ new.keys()), default=None)


def _dated(fleet: Fleet) -> Mapping[Hashable, date]:
    """Return the first day of each dated setting of a fleet."""
    found: dict[Hashable, date] = {}
    for pool in fleet.pools:
        found |= {(pool.name, step): step.since for step in pool.pricing.steps}
        held = pool.pricing.commitments
        found |= {(pool.name, one, held.count(one)): one.since for one in held}
    # A move takes a team out of a parent by name: a rename can be of that parent.
    renames = frozenset((team.renamed_from, team.name) for team in fleet.teams if team.renamed_from)
    found |= {
        (team.name, team.parent, team.moved, renames): team.moved.since
        for team in fleet.teams
        if team.moved is not None
    }
    return found
