"""Fleets by revision: the one that holds now, and those that were applied, each parsed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairway.ledger import Ledger, Revision
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet

NO_FLEET = Fleet(name="", currency="", clusters=(), pools=())
_REMEMBERED: Final = 4
"""Revisions kept parsed: the newest, what was applied, and two that somebody reads about."""


class Fleets:
    """Remembers what was parsed; asking again costs one small query."""

    def __init__(self, ledger: Ledger, parse: Callable[[Revision], Fleet]) -> None:
        self._ledger = ledger
        self._parse = parse
        self._parsed: dict[int, Fleet] = {}

    async def current(self) -> Fleet:
        """The newest fleet; one with nothing in it before the first was given."""
        newest = await self._ledger.fleet_revision()
        if newest is None:
            return NO_FLEET
        return await self._at(newest) or NO_FLEET

    async def in_force(self) -> Fleet:
        """What was applied last, or, before anything was, what the server was given."""
        return await self.applied() or await self.current()

    async def applied(self, cluster: str | None = None) -> Fleet | None:
        """The fleet applied last, to one cluster or to any; None: nothing was, or it cannot be read any more.

        Clusters may be at different revisions; the newest of them is what people wrote last.
        """
        known = [c for c in await self._ledger.applied_clusters() if cluster in (None, c.cluster)]
        return await self.at(max(c.revision for c in known)) if known else None

    async def at(self, revision: int) -> Fleet | None:
        """An older fleet; None if this release cannot read it any more: that must not hide the new one."""
        try:
            return await self._at(revision)
        except FairwayError as error:
            if error.code == "InvalidFile":
                return None
            raise

    async def _at(self, revision: int) -> Fleet | None:
        if revision not in self._parsed:
            kept = await self._ledger.revision(revision)
            if kept is None:
                return None
            # A fleet of a thousand teams takes a second to read: others are answered meanwhile.
            fleet = await asyncio.to_thread(self._parse, kept)
            while len(self._parsed) >= _REMEMBERED:
                self._parsed.pop(next(iter(self._parsed)))
            self._parsed[revision] = fleet
        return self._parsed[revision]
