"""Which fleet held when, as far as it matters for money.

Prices have their dates in the file, so the newest file tells them for all time, corrections of the past too.
What has no dates is taken as it was applied then: who was guaranteed what, who carries what nobody used, what
clusters cost beside their GPUs, pools that are gone. A guarantee changed today changes nothing of last month.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from fairway.ledger import ApplyKind, ApplyState, Ledger, Revision
from fairway.model.charge import Span
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.price import Sharing
from fairway.services.charges import calendar_of

NO_FLEET = Fleet(name="", currency="", clusters=(), pools=())

MOST_PARSED: Final = 8
"""Revisions kept parsed: the newest, those that clusters are at, and some that people and reports read."""


class Fleets:
    """Parses each revision once for everybody in this process; asking again costs one small query.

    Every loop of every cluster asks, and so does every request. A parsed fleet is one object for all of them:
    who compares it by identity sees a new revision as a new object.
    """

    def __init__(self, ledger: Ledger, parse: Callable[[Revision], Fleet]) -> None:
        self._ledger = ledger
        self._parse = parse
        self._parsed: dict[int, Fleet] = {}
        """By revision, the one used last at the end."""
        self._parsing = asyncio.Lock()

    async def current(self) -> Fleet:
        """The newest fleet; one with nothing in it before the first was given."""
        newest = await self._ledger.revisions.newest_id()
        if newest is None:
            return NO_FLEET
        return await self.read(newest) or NO_FLEET

    async def in_force(self) -> Fleet:
        """What was applied last, or, before anything was, what the server was given."""
        return await self.applied() or await self.current()

    async def applied(self, cluster: str | None = None) -> Fleet | None:
        """The fleet applied last, to one cluster or to any; None: nothing was, or it cannot be read any more.

        Clusters may be at different revisions; the newest of them is what people wrote last.
        """
        known = [c for c in await self._ledger.applies.applied() if cluster in (None, c.cluster)]
        return await self.at(max(c.revision for c in known)) if known else None

    async def at(self, revision: int) -> Fleet | None:
        """An older fleet; None if this release cannot read it any more: that must not hide the new one."""
        try:
            return await self.read(revision)
        except FairwayError as error:
            if error.code == "InvalidFile":
                return None
            raise

    async def read(self, revision: int) -> Fleet | None:
        """The fleet of a revision; None: there is no such revision. Raises InvalidFile."""
        if revision in self._parsed:
            return self._use(revision)
        kept = await self._ledger.revisions.one(revision)
        return None if kept is None else await self.parsed(kept)

    async def parsed(self, revision: Revision) -> Fleet:
        """The fleet of a revision whose text is at hand. Raises InvalidFile."""
        async with self._parsing:  # all loops ask at once when a revision is new: one of them parses it
            if revision.id not in self._parsed:
                # A fleet of a thousand teams takes a second to parse: others are answered meanwhile.
                fleet = await asyncio.to_thread(self._parse, revision)
                while len(self._parsed) >= MOST_PARSED:
                    self._parsed.pop(next(iter(self._parsed)))
                self._parsed[revision.id] = fleet
        return self._use(revision.id)

    def _use(self, revision: int) -> Fleet:
        """Move a parsed fleet to the end: what was not used for the longest time goes first."""
        fleet = self._parsed.pop(revision)
        self._parsed[revision] = fleet
        return fleet


_LOOKED_AT: Final = 2000
"""Applies, the newest; before the oldest of them its fleet is taken."""


class ReadsFleets(Protocol):
    """Reads older fleets."""

    async def at(self, revision: int) -> Fleet | None: ...


class FleetHistory:
    """Made of what was applied."""

    def __init__(self, ledger: Ledger, fleets: ReadsFleets) -> None:
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
            for a in await self._ledger.applies.page(limit=_LOOKED_AT)
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
