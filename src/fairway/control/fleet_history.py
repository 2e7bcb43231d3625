"""Which fleet held when, as far as it matters for money.

Prices have their dates in the file, so the newest file tells them for all time, corrections of the past too.
What has no dates is taken as it was applied then: who was guaranteed what, who carries what nobody used, what
clusters cost beside their GPUs, pools that are gone. A guarantee changed today changes nothing of last month.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from fairway.control.costs import calendar_of
from fairway.ledger import ApplyKind, ApplyState, Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.price import Sharing

_LOOKED_AT: Final = 2000
"""Applies, the newest; before the oldest of them its fleet is taken."""


class Fleets(Protocol):
    """Reads older fleets."""

    async def at(self, revision: int) -> Fleet | None: ...


class FleetHistory:
    """Made of what was applied."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets

    async def fleets(self, newest: Fleet, period: Span) -> Sequence[tuple[Span, Fleet]]:
        """The period by the fleet that held at the end of each day; days of the same are one part."""
        moments, revisions = await self._applied()
        found: list[tuple[Span, Fleet]] = []
        known: dict[int | None, Fleet] = {None: newest}
        for day in calendar_of(newest).days(period):
            first, last = held_on(day, moments, revisions)
            for revision in (first, last):
                if revision not in known:
                    then = await self._fleets.at(revision) if revision is not None else None
                    known[revision] = newest if then is None else as_it_held(newest, then)
            fleet = with_gone(known[last], known[first])
            if found and found[-1][1] == fleet:
                found[-1] = (Span(found[-1][0].start, day.end), fleet)
            else:
                found.append((day, fleet))
        return found

    async def _applied(self) -> tuple[list[int], list[int]]:
        """When which revision was applied, to one cluster at least; in order."""
        applied = [
            (int(a.created_at.timestamp()), a.revision)
            for a in await self._ledger.applies(limit=_LOOKED_AT)
            if a.kind is ApplyKind.APPLY
            and a.revision is not None
            and any(c.state is ApplyState.DONE for c in a.clusters)
        ]
        applied.sort()
        return [at for at, _ in applied], [revision for _, revision in applied]


def held_on(
    day: Span, moments: Sequence[int], revisions: Sequence[int]
) -> tuple[int, int] | tuple[None, None]:
    """What held when a day began and when it ended, of revisions and when each was applied, in order."""
    if not revisions:
        return None, None
    first = max(0, bisect_right(moments, day.start) - 1)
    last = max(0, bisect_left(moments, day.end) - 1)
    return revisions[first], revisions[last]


def with_gone(fleet: Fleet, before: Fleet) -> Fleet:
    """With the pools it no longer has: somebody may have used them on the day they went."""
    there = {pool.name for pool in fleet.pools}
    gone = tuple(pool for pool in before.pools if pool.name not in there)
    return replace(fleet, pools=(*fleet.pools, *gone)) if gone else fleet


def as_it_held(newest: Fleet, then: Fleet) -> Fleet:
    """The newest prices and time zone, with what has no dates as it was in an older fleet."""
    cost = replace(then.cost, timezone=newest.cost.timezone)
    shared = Sharing.BY_GUARANTEE in (cost.idle, cost.overhead)
    teams = then.teams if shared else newest.teams
    return with_gone(replace(newest, clusters=then.clusters, teams=teams, cost=cost), then)
