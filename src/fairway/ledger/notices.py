"""Read and write notices to people, and which channels have them.

A notice is stored once for each key, in the transaction of the event that it tells of. A delivery is recorded
after it succeeded: a server that is killed between the two delivers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.sql_values import arrays, page_limit, sanitize
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice

KEEP_DAYS: Final = 90
"""How long a notice is stored; until then its key is known."""
_MAX_KEY: Final = 400
_MAX_SUBJECT: Final = 300
_MAX_TEXT: Final = 8000
_FORGET_AT_ONCE: Final = 1000

# In an order: two Alertmanagers report the same at once.
_ADD = text("""
    INSERT INTO notice (key, subject, text, team, "user", job, operators, due_at)
    SELECT row.*, CASE WHEN :is_due THEN now() END FROM unnest(
        CAST(:key AS text[]), CAST(:subject AS text[]), CAST(:text AS text[]), CAST(:team AS text[]),
        CAST(:user AS text[]), CAST(:job AS bigint[]), CAST(:operators AS boolean[])
    ) AS row (key, subject, text, team, "user", job, operators) ORDER BY row.key
    ON CONFLICT (key) DO NOTHING
    RETURNING key
""")
_DELIVER = text("""
    UPDATE notice SET subject = row.subject, text = row.text, due_at = now()
    FROM unnest(CAST(:key AS text[]), CAST(:subject AS text[]), CAST(:text AS text[]))
        AS row (key, subject, text)
    WHERE notice.key = row.key
""")
_KNOWN = text("SELECT key FROM notice WHERE key = ANY(CAST(:keys AS text[]))")
_DUE = text("""
    SELECT notice.id, notice.key, notice.subject, notice.text, notice.team, notice."user", notice.job,
        notice.operators, notice.created_at, delivery.tried, delivery.delivered
    FROM (
        SELECT * FROM notice WHERE due_at <= clock_timestamp() ORDER BY due_at, id LIMIT :limit
    ) AS notice
    LEFT JOIN LATERAL (
        SELECT jsonb_object_agg(channel, attempts) AS tried,
            array_agg(channel) FILTER (WHERE delivered_at IS NOT NULL) AS delivered
        FROM notice_delivery WHERE notice_delivery.notice = notice.id
    ) AS delivery ON true
    ORDER BY notice.id
""")
_RECORD = text("""
    INSERT INTO notice_delivery AS stored (notice, channel, attempts, delivered_at, error)
    SELECT row.notice, row.channel, 1, CASE WHEN row.error IS NULL THEN clock_timestamp() END, row.error
    FROM unnest(CAST(:notice AS bigint[]), CAST(:channel AS text[]), CAST(:error AS text[]))
        AS row (notice, channel, error)
    ON CONFLICT (notice, channel) DO UPDATE SET
        attempts = stored.attempts + 1,
        delivered_at = coalesce(stored.delivered_at, excluded.delivered_at),
        error = excluded.error
""")
_SET_DUE = text("""
    UPDATE notice SET due_at = clock_timestamp() + make_interval(secs => row.seconds)
    FROM unnest(CAST(:notice AS bigint[]), CAST(:seconds AS float8[])) AS row (notice, seconds)
    WHERE notice.id = row.notice
""")
_FORGET = text("""
    WITH old AS (
        DELETE FROM notice WHERE id IN (
            SELECT id FROM notice WHERE created_at < clock_timestamp() - make_interval(days => :days)
            ORDER BY created_at LIMIT :limit
        ) RETURNING id
    )
    DELETE FROM notice_delivery WHERE notice IN (SELECT id FROM old)
""")


@dataclass(frozen=True, slots=True)
class DueNotice:
    """A notice that is to be delivered, and what was tried."""

    id: int
    notice: Notice
    created_at: datetime
    tried: Mapping[str, int]
    """The number of attempts by channel."""
    delivered: frozenset[str]
    """The channels that have it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver a notice by one channel."""

    notice: int
    channel: str
    error: str | None = None
    """Why it failed; None if it succeeded."""


class NoticeStore(LedgerStore):
    """Reads notices, and adds those that come from outside."""

    async def add(self, notices: Sequence[Notice]) -> list[str]:
        """Add notices. Returns the keys of those that are new."""
        if not notices:
            return []
        return [row.key for row in await self._fetch(_ADD, _values(notices) | {"is_due": True})]

    async def add_groups(
        self, groups: Iterable[Sequence[Notice]], combine: Callable[[Sequence[Notice]], Notice]
    ) -> int:
        """Add notices, and deliver those of a group that are new as one. Returns how many are new.

        `combine` makes one notice of several, with the key of the first. Every notice is stored, so that
        whatever comes again is known.
        """
        listed = [group for group in groups if group]
        if not listed:
            return 0
        async with self._connections.transaction() as connection:
            values = _values([notice for group in listed for notice in group])
            rows = await connection.execute(_ADD, values | {"is_due": False})
            new = {row.key for row in rows}
            for group in listed:
                fresh = [notice for notice in group if sanitize(notice.key, _MAX_KEY) in new]
                if fresh:
                    await connection.execute(_DELIVER, _values([combine(fresh)]))
        return len(new)

    async def known(self, keys: Sequence[str]) -> frozenset[str]:
        """Return which of these keys are stored."""
        return frozenset(row.key for row in await self._fetch(_KNOWN, {"keys": list(keys)}))

    async def due(self, limit: int) -> list[DueNotice]:
        """Return notices that are to be delivered now, the longest due first to choose from, by id."""
        return [
            DueNotice(
                row.id,
                Notice(
                    row.key,
                    row.subject,
                    row.text,
                    None if row.team is None else TeamName(row.team),
                    None if row.user is None else UserName(row.user),
                    None if row.job is None else JobId(row.job),
                    row.operators,
                ),
                row.created_at,
                row.tried or {},
                frozenset(row.delivered or ()),
            )
            for row in await self._fetch(_DUE, {"limit": page_limit(limit)})
        ]


class NoticeWriter(FencedWriter):
    """Writes notices, and what came of delivering them."""

    async def add(self, notices: Sequence[Notice]) -> None:
        """Add notices; one whose key is stored already is the same event, and nothing is done."""
        if notices:
            await self._connection.execute(_ADD, _values(notices) | {"is_due": True})

    async def record(self, deliveries: Sequence[Delivery], due: Mapping[int, float | None]) -> None:
        """Record attempts, and in how many seconds each notice is due again; None is never."""
        if deliveries:
            rows = ((d.notice, d.channel, d.error and sanitize(d.error)) for d in deliveries)
            await self._connection.execute(_RECORD, arrays(rows, "notice", "channel", "error"))
        if due:
            await self._connection.execute(_SET_DUE, arrays(due.items(), "notice", "seconds"))

    async def forget(self) -> None:
        """Delete notices that are older than `KEEP_DAYS`, some at a time."""
        await self._connection.execute(_FORGET, {"days": KEEP_DAYS, "limit": _FORGET_AT_ONCE})


def _values(notices: Sequence[Notice]) -> dict[str, object]:
    rows = (
        (
            sanitize(notice.key, _MAX_KEY),
            " ".join(sanitize(notice.subject, _MAX_SUBJECT).split()),
            sanitize(notice.text, _MAX_TEXT),
            notice.team,
            notice.user,
            notice.job,
            notice.operators,
        )
        for notice in notices
    )
    return arrays(rows, "key", "subject", "text", "team", "user", "job", "operators")
