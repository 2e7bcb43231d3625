"""Read and write what-if studies: a bounded queue, and the results of the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.what_if import what_if_study
from fairway.ledger.sql_values import AnyRow
from fairway.model.errors import FairwayError
from fairway.model.study import StudyState

MAX_QUEUED: Final = 10
"""Studies that wait or run at once."""
KEPT: Final = 200
"""Studies that are stored; older ones are deleted with their results."""
MAX_TRIES: Final = 2
"""How often a study is begun: one that ends the server must not end it again and again."""

_COLUMNS = (
    "id, state, sweep, days, seeds, progress, tries, code, message, hint, created_by, created_at, ended_at"
)
_ADD = text(f"""
    INSERT INTO what_if_study (fleet, sweep, days, seeds, created_by)
    SELECT :fleet, :sweep, :days, :seeds, :by
    WHERE (SELECT count(*) FROM what_if_study WHERE state IN ('queued', 'running')) < {MAX_QUEUED}
    RETURNING id
""")  # noqa: S608
_NEWEST = text(f"""
    SELECT {_COLUMNS}, '' AS fleet, NULL AS result FROM what_if_study ORDER BY id DESC LIMIT :most
""")  # noqa: S608
_BEGIN = text(f"""
    UPDATE what_if_study SET state = 'running', tries = tries + 1, progress = 0
    WHERE id = (SELECT min(id) FROM what_if_study WHERE state IN ('queued', 'running'))
    RETURNING {_COLUMNS}, fleet, NULL AS result
""")  # noqa: S608
_PROGRESS = text("UPDATE what_if_study SET progress = :progress WHERE id = :id AND state = 'running'")
_END = text("""
    UPDATE what_if_study SET state = :state, progress = 1, result = :result, code = :code, message = :message,
        hint = :hint, ended_at = now()
    WHERE id = :id AND state = 'running'
""")
_PRUNE = text("""
    DELETE FROM what_if_study WHERE state IN ('done', 'failed')
        AND id <= (SELECT id FROM what_if_study ORDER BY id DESC OFFSET :kept LIMIT 1)
""")


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A study as it is stored."""

    id: int
    state: StudyState
    fleet: str
    """Empty in lists."""
    sweep: str
    days: int
    seeds: int
    progress: float
    tries: int
    result: str | None
    """As JSON; None in lists."""
    code: str
    message: str
    hint: str
    created_by: str
    created_at: datetime
    ended_at: datetime | None


class StudyStore(LedgerStore):
    """Queues studies and reads them."""

    async def add(self, fleet: str, sweep: str, days: int, seeds: int, by: str) -> int | None:
        """Queue a study. Returns its number, or None if MAX_QUEUED wait already."""
        values = {"fleet": fleet, "sweep": sweep, "days": days, "seeds": seeds, "by": by}
        async with self._connections.transaction() as connection:
            row = (await connection.execute(_ADD, values)).first()
        return None if row is None else int(row.id)

    async def one(self, number: int) -> StoredStudy | None:
        """Return one study with its file and result. Returns None if there is none of this number."""
        row = await self._fetch_first(select(what_if_study).where(what_if_study.c.id == number))
        return None if row is None else _study(row)

    async def newest(self, most: int) -> Sequence[StoredStudy]:
        """Return the newest studies, without files and results."""
        return [_study(row) for row in await self._fetch(_NEWEST, {"most": most})]


class StudyWriter(FencedWriter):
    """Writes what became of studies, under the lease of the loop that runs them."""

    async def begin(self) -> StoredStudy | None:
        """Begin the oldest study that has not ended, again if its server ended. Returns None if all have."""
        row = (await self._connection.execute(_BEGIN)).first()
        return None if row is None else _study(row)

    async def progress(self, number: int, progress: float) -> None:
        """Store how far a study is."""
        await self._connection.execute(_PROGRESS, {"id": number, "progress": progress})

    async def finish(self, number: int, result: str) -> None:
        """Store a result, and delete the oldest studies beyond KEPT."""
        await self._end(number, StudyState.DONE, result)

    async def fail(self, number: int, error: FairwayError) -> None:
        """Store why a study has no result."""
        await self._end(number, StudyState.FAILED, None, error.code, error.message, error.hint)

    async def _end(
        self,
        number: int,
        state: StudyState,
        result: str | None,
        code: str = "",
        message: str = "",
        hint: str = "",
    ) -> None:
        values = {"id": number, "state": state.value, "result": result, "code": code}
        await self._connection.execute(_END, {**values, "message": message, "hint": hint})
        await self._connection.execute(_PRUNE, {"kept": KEPT})


def _study(row: AnyRow) -> StoredStudy:
    return StoredStudy(**{**row._mapping, "state": StudyState(row.state)})
