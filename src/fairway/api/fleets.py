"""The fleet that holds now, parsed once for each revision."""

from __future__ import annotations

from collections.abc import Callable

from fairway.ledger import Ledger, Revision
from fairway.model.fleet import Fleet

NO_FLEET = Fleet(name="", currency="", clusters=(), pools=())


class Fleets:
    """Remembers the newest revision; asking again costs one small query."""

    def __init__(self, ledger: Ledger, parse: Callable[[Revision], Fleet]) -> None:
        self._ledger = ledger
        self._parse = parse
        self._revision: int | None = None
        self._fleet = NO_FLEET

    async def current(self) -> Fleet:
        """The newest fleet; one with nothing in it before the first was given."""
        newest = await self._ledger.fleet_revision()
        if newest != self._revision:
            revision = await self._ledger.fleet()
            self._fleet = self._parse(revision) if revision else NO_FLEET
            self._revision = revision.id if revision else None
        return self._fleet
