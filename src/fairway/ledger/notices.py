"""Read and write notices to people, and which channels have them.

A notice is stored once for each key, in the transaction of the event that it is about. It is routed once:
this stores a delivery for each channel, with its time. Due deliveries of a channel become messages, whose
content is stored before they are sent. A success is recorded after it: a server that is killed between the
two sends the same message again, with the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.notices import notice_preference
from fairway.ledger.sql_values import AnyRow, arrays, page_limit, sanitize
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import (
    DEFAULT_RULES,
    NoticeKind,
    NoticeRule,
    NoticeRules,
    QuietHours,
    SendWhen,
)
from fairway.policy.notice_times import SendTime

KEEP_DAYS: Final = 90
"""How long a notice is stored; until then its key is known."""
_MAX_KEY: Final = 400
_MAX_SUBJECT: Final = 300
_MAX_TEXT: Final = 8000
_FORGET_AT_ONCE: Final = 1000

_MAX_DIGEST: Final = 200
"""Notices in one message; more are sent as several."""
_ASSEMBLE_AT_ONCE: Final = 10_000

# In an order: two Alertmanagers report the same at once.
_ADD = text("""
    INSERT INTO notice (kind, key, subject, text, team, "user", job, operators, month, due_at)
    SELECT row.*, CASE WHEN :silent THEN NULL ELSE now() END FROM unnest(
        CAST(:kind AS text[]), CAST(:key AS text[]), CAST(:subject AS text[]), CAST(:text AS text[]),
        CAST(:team AS text[]), CAST(:user AS text[]), CAST(:job AS bigint[]), CAST(:operators AS boolean[]),
        CAST(:month AS date[])
    ) AS row (kind, key, subject, text, team, "user", job, operators, month) ORDER BY row.key
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
_OPEN = text("""
    SELECT * FROM notice WHERE key LIKE :prefix AND key NOT LIKE :ended AND NOT EXISTS (
        SELECT FROM notice AS later WHERE later.key = notice.key || :end
    ) ORDER BY id LIMIT :limit
""")
_PENDING = text("""
    SELECT EXISTS (SELECT FROM notice WHERE due_at IS NOT NULL) AS unrouted, clock_timestamp() AS now,
        EXISTS (SELECT FROM notice_delivery WHERE due_at <= clock_timestamp()) AS due
""")
_UNROUTED = text("SELECT * FROM notice WHERE due_at IS NOT NULL ORDER BY id LIMIT :limit")
_ROUTE = text("""
    INSERT INTO notice_delivery AS stored (notice, channel, attempts, due_at, message)
    SELECT row.notice, row.channel, 0, row.due_at, CASE WHEN row.alone THEN row.notice END
    FROM unnest(
        CAST(:notice AS bigint[]), CAST(:channel AS text[]), CAST(:due_at AS timestamptz[]),
        CAST(:alone AS boolean[])
    ) AS row (notice, channel, due_at, alone)
    ON CONFLICT (notice, channel) DO UPDATE SET due_at = excluded.due_at, message = excluded.message
    WHERE stored.delivered_at IS NULL
""")
_ROUTED = text("UPDATE notice SET due_at = NULL WHERE id = ANY(CAST(:ids AS bigint[]))")
_ASSEMBLE = text("""
    WITH due AS (
        SELECT notice, channel FROM notice_delivery
        WHERE due_at <= clock_timestamp() AND message IS NULL ORDER BY due_at, notice LIMIT :limit
    ), part AS (
        SELECT notice, channel, (row_number() OVER (PARTITION BY channel ORDER BY notice) - 1) / :most AS part
        FROM due
    ), named AS (
        SELECT notice, channel, min(notice) OVER (PARTITION BY channel, part) AS message FROM part
    )
    UPDATE notice_delivery AS stored SET message = named.message FROM named
    WHERE stored.notice = named.notice AND stored.channel = named.channel
""")
_DUE = text("""
    WITH due AS (
        SELECT channel, message FROM notice_delivery
        WHERE due_at <= clock_timestamp() AND message IS NOT NULL
        GROUP BY channel, message ORDER BY min(due_at), message, channel LIMIT :limit
    )
    SELECT notice.*, delivery.channel, delivery.message, delivery.attempts
    FROM due JOIN notice_delivery AS delivery
        ON delivery.channel = due.channel AND delivery.message = due.message AND delivery.due_at IS NOT NULL
    JOIN notice ON notice.id = delivery.notice
    ORDER BY delivery.message, delivery.channel, notice.id
""")
_RECORD = text("""
    UPDATE notice_delivery SET attempts = attempts + 1, error = :error,
        delivered_at = CASE WHEN CAST(:error AS text) IS NULL THEN clock_timestamp() END,
        due_at = clock_timestamp() + make_interval(secs => CAST(:again AS float8))
    WHERE channel = :channel AND notice = ANY(CAST(:notices AS bigint[])) AND delivered_at IS NULL
""")
_PAGE = text("""
    WITH page AS (
        SELECT * FROM notice
        WHERE (CAST(:kind AS text) IS NULL OR kind = :kind)
            AND (CAST(:teams AS text[]) IS NULL OR team = ANY(CAST(:teams AS text[])) OR "user" = :user)
        ORDER BY id DESC LIMIT :limit
    )
    SELECT page.*, delivery.channel, delivery.attempts, delivery.delivered_at, delivery.error,
        delivery.due_at AS again
    FROM page LEFT JOIN notice_delivery AS delivery ON delivery.notice = page.id
    ORDER BY page.id DESC, delivery.channel
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
class StoredNotice:
    """A notice with its number and the time of its event."""

    id: int
    notice: Notice
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DueMessage:
    """What is to be sent by one channel now: one notice, or a digest of several."""

    channel: str
    attempts: int
    """How many were made."""
    notices: tuple[StoredNotice, ...]
    """In the order of their ids, which is the same at every attempt."""


@dataclass(frozen=True, slots=True)
class PlannedDelivery:
    """A channel that a notice goes to, and when."""

    notice: int
    channel: str
    time: SendTime


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of sending a notice by one channel."""

    channel: str
    attempts: int
    delivered_at: datetime | None
    error: str | None
    due_at: datetime | None
    """When it is sent, first or again; None once it was delivered, or nothing is left to try."""


@dataclass(frozen=True, slots=True)
class PendingNotices:
    """Whether there is anything to do."""

    now: datetime
    """By the clock of the database."""
    unrouted: bool
    due: bool


async def add_notices(
    connection: AsyncConnection, notices: Sequence[Notice], *, silent: bool = False
) -> None:
    """Add notices in the transaction of the event that they are about; those that are stored are left."""
    if notices:
        await connection.execute(_ADD, _values(notices) | {"silent": silent})


class NoticeStore(LedgerStore):
    """Reads notices, and adds those that come from outside."""

    async def add(self, notices: Sequence[Notice]) -> list[str]:
        """Add notices. Returns the keys of those that are new."""
        if not notices:
            return []
        return [row.key for row in await self._fetch(_ADD, _values(notices) | {"silent": False})]

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
            rows = await connection.execute(_ADD, values | {"silent": True})
            new = {row.key for row in rows}
            for group in listed:
                fresh = [notice for notice in group if sanitize(notice.key, _MAX_KEY) in new]
                if fresh:
                    await connection.execute(_DELIVER, _values([combine(fresh)]))
        return len(new)

    async def known(self, keys: Sequence[str]) -> frozenset[str]:
        """Return which of these keys are stored."""
        return frozenset(row.key for row in await self._fetch(_KNOWN, {"keys": list(keys)}))

    async def open(self, prefix: str, end: str, limit: int) -> list[StoredNotice]:
        """Return notices whose key has a prefix, and for which there is none with `end` added to the key."""
        values = {"prefix": f"{prefix}%", "end": end, "ended": f"%{end}", "limit": page_limit(limit)}
        return [_stored(row) for row in await self._fetch(_OPEN, values)]

    async def pending(self) -> PendingNotices:
        """Return whether there is anything to do now."""
        row = (await self._fetch(_PENDING))[0]
        return PendingNotices(row.now, row.unrouted, row.due)

    async def page(
        self, kind: NoticeKind | None, teams: Iterable[str] | None, user: str, limit: int
    ) -> list[tuple[StoredNotice, tuple[Delivery, ...]]]:
        """Return the newest notices with their deliveries.

        With `teams`, only notices to those teams or to `user`.
        """
        values = {"kind": kind, "teams": None if teams is None else list(teams), "user": user}
        rows = await self._fetch(_PAGE, values | {"limit": page_limit(limit)})
        found: dict[int, list[AnyRow]] = {}
        for row in rows:
            found.setdefault(row.id, []).append(row)
        return [
            (
                _stored(rows[0]),
                tuple(
                    Delivery(row.channel, row.attempts, row.delivered_at, row.error, row.again)
                    for row in rows
                    if row.channel is not None
                ),
            )
            for rows in found.values()
        ]

    async def unrouted(self, limit: int) -> list[StoredNotice]:
        """Return notices whose deliveries are not decided, the oldest first."""
        return [_stored(row) for row in await self._fetch(_UNROUTED, {"limit": page_limit(limit)})]

    async def due(self, limit: int) -> list[DueMessage]:
        """Return messages that are to be sent now, at most `limit`: those that have been due longest."""
        found: dict[tuple[int, str], list[AnyRow]] = {}
        for row in await self._fetch(_DUE, {"limit": page_limit(limit)}):
            found.setdefault((row.message, row.channel), []).append(row)
        return [
            DueMessage(channel, max(row.attempts for row in rows), tuple(_stored(row) for row in rows))
            for (_, channel), rows in found.items()
        ]


_CHOOSE = text("""
    INSERT INTO notice_preference (user_name, kinds, quiet_start, quiet_end, digest_hour)
    VALUES (:user, CAST(:kinds AS jsonb), :quiet_start, :quiet_end, :digest_hour)
    ON CONFLICT (user_name) DO UPDATE SET kinds = excluded.kinds, quiet_start = excluded.quiet_start,
        quiet_end = excluded.quiet_end, digest_hour = excluded.digest_hour, updated_at = now()
""")
_WANT = text("""
    SELECT user_name FROM notice_preference WHERE coalesce(kinds ->> :kind, :never) <> :never
""")


class NoticePreferenceStore(LedgerStore):
    """Reads and writes the rules that users chose for themselves."""

    async def all(self) -> dict[UserName, NoticeRules]:
        """Return the rules of every user who chose any."""
        rows = await self._fetch(select(notice_preference))
        return {UserName(row.user_name): _rules(row) for row in rows}

    async def get(self, user: str) -> NoticeRules:
        """Return the rules of a user; the default ones if they chose none."""
        query = select(notice_preference).where(notice_preference.c.user_name == user)
        row = await self._fetch_first(query)
        return DEFAULT_RULES if row is None else _rules(row)

    async def put(self, user: str, rules: NoticeRules) -> None:
        """Replace the rules of a user."""
        values: dict[str, object] = {
            "user": user,
            "kinds": json.dumps({rule.kind.value: rule.send.value for rule in rules.rules}),
            "quiet_start": None if rules.quiet is None else rules.quiet.start,
            "quiet_end": None if rules.quiet is None else rules.quiet.end,
            "digest_hour": rules.digest_hour,
        }
        async with self._connections.single() as connection:
            await connection.execute(_CHOOSE, values)

    async def want(self, kind: NoticeKind) -> frozenset[UserName]:
        """Return the users who chose to get notices of a kind."""
        values = {"kind": kind.value, "never": SendWhen.NEVER.value}
        return frozenset(UserName(row.user_name) for row in await self._fetch(_WANT, values))


class NoticeWriter(FencedWriter):
    """Writes notices, and what came of delivering them."""

    async def add(self, notices: Sequence[Notice], *, silent: bool = False) -> None:
        """Add notices; one whose key is stored already is the same event, and nothing is done.

        Silent ones are known from now on, and are not sent.
        """
        await add_notices(self._connection, notices, silent=silent)

    async def route(self, notices: Sequence[int], deliveries: Sequence[PlannedDelivery]) -> None:
        """Store by which channels and when these notices are delivered; one without a channel is done."""
        if deliveries:
            rows = ((d.notice, d.channel, d.time.at, d.time.alone) for d in deliveries)
            await self._connection.execute(_ROUTE, arrays(rows, "notice", "channel", "due_at", "alone"))
        await self._connection.execute(_ROUTED, {"ids": list(notices)})

    async def assemble(self) -> None:
        """Make messages of the due notices of each channel that are not part of one yet."""
        await self._connection.execute(_ASSEMBLE, {"limit": _ASSEMBLE_AT_ONCE, "most": _MAX_DIGEST})

    async def record(self, message: DueMessage, error: str | None, again: float | None) -> None:
        """Record an attempt: why it failed, or None, and after how many seconds to try again, or None."""
        values = {
            "channel": message.channel,
            "notices": [one.id for one in message.notices],
            "error": error and sanitize(error),
            "again": again,
        }
        await self._connection.execute(_RECORD, values)

    async def forget(self) -> None:
        """Delete notices that are older than `KEEP_DAYS`, some at a time."""
        await self._connection.execute(_FORGET, {"days": KEEP_DAYS, "limit": _FORGET_AT_ONCE})


def _values(notices: Sequence[Notice]) -> dict[str, object]:
    rows = (
        (
            notice.kind.value,
            sanitize(notice.key, _MAX_KEY),
            " ".join(sanitize(notice.subject, _MAX_SUBJECT).split()),
            sanitize(notice.text, _MAX_TEXT),
            notice.team,
            notice.user,
            notice.job,
            notice.operators,
            notice.month,
        )
        for notice in notices
    )
    return arrays(rows, "kind", "key", "subject", "text", "team", "user", "job", "operators", "month")


def _stored(row: AnyRow) -> StoredNotice:
    notice = Notice(
        NoticeKind(row.kind),
        row.key,
        row.subject,
        row.text,
        None if row.team is None else TeamName(row.team),
        None if row.user is None else UserName(row.user),
        None if row.job is None else JobId(row.job),
        row.operators,
        row.month,
    )
    return StoredNotice(row.id, notice, row.created_at)


def _rules(row: AnyRow) -> NoticeRules:
    kinds = tuple(NoticeRule(NoticeKind(kind), SendWhen(send)) for kind, send in row.kinds.items())
    quiet = None if row.quiet_start is None else QuietHours(row.quiet_start, row.quiet_end)
    return NoticeRules(kinds, quiet, row.digest_hour)
