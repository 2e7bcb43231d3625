"""Read and assign the numbers of teams' colours in charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import insert, select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.schema.tables import team_colour

Assign = Callable[[Mapping[str, int], Sequence[str]], Mapping[str, int]]

_LOCK = text("LOCK TABLE team_colour IN EXCLUSIVE MODE")


class TeamColourStore(LedgerStore):
    """Keeps the number of each team that ever was in the fleet."""

    async def numbers(self, teams: Sequence[str], assign: Assign) -> dict[str, int]:
        """Return the numbers of these teams. Teams without one are given one by `assign`, for good."""
        known = {row.team: row.number for row in await self._fetch(select(team_colour))}
        if not known.keys() >= set(teams):
            async with self._connections.transaction() as connection:
                await connection.execute(_LOCK)  # another server may assign the same number
                known = {row.team: row.number for row in await connection.execute(select(team_colour))}
                added = {t: n for t, n in assign(known, teams).items() if t not in known}
                if added:
                    rows = [{"team": team, "number": number} for team, number in added.items()]
                    await connection.execute(insert(team_colour), rows)
                known |= added
        return {team: known[team] for team in teams}
