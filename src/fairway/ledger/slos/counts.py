"""Read and write counts of objectives by time, how far they were counted, and their states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.slos import slo_status
from fairway.ledger.sql_values import arrays, json_rows, moment, seconds
from fairway.model.slo import MAX_BOUND, MAX_WINDOW
from fairway.policy.slo import Burn, Counts, Slots
from fairway.policy.slo_alerts import SloAlert

KEEP_SECONDS: Final = MAX_WINDOW + MAX_BOUND
"""How long counts and pauses are stored: the longest window, with a job that was promised the most time."""
_FORGET_AT_ONCE: Final = 10_000

_CURSORS = text("SELECT digest, since, counted_to FROM slo_cursor")
_SLOTS = text("""
    SELECT digest, slot, good, bad FROM slo_count
    WHERE digest = ANY(CAST(:digests AS text[])) AND slot >= :first ORDER BY digest, slot
""")
_MOVE = text("""
    INSERT INTO slo_cursor AS stored (digest, since, counted_to)
    SELECT * FROM unnest(
        CAST(:digests AS text[]), CAST(:since AS timestamptz[]), CAST(:counted_to AS timestamptz[])
    )
    ON CONFLICT (digest) DO UPDATE SET counted_to = excluded.counted_to
""")
_ADD = text("""
    INSERT INTO slo_count AS stored (digest, slot, good, bad)
    SELECT * FROM unnest(
        CAST(:digests AS text[]), CAST(:slots AS timestamptz[]), CAST(:good AS bigint[]),
        CAST(:bad AS bigint[])
    )
    ON CONFLICT (digest, slot)
    DO UPDATE SET good = stored.good + excluded.good, bad = stored.bad + excluded.bad
""")
_FORGET_COUNTS = text("""
    DELETE FROM slo_count WHERE digest <> ALL(CAST(:digests AS text[])) OR slot < :before
""")
_FORGET_CURSORS = text("DELETE FROM slo_cursor WHERE digest <> ALL(CAST(:digests AS text[]))")
_FORGET_PAUSES = text("""
    DELETE FROM job_pause WHERE (job, started_at) IN (
        SELECT job, started_at FROM job_pause WHERE waits_from < :before ORDER BY waits_from LIMIT :limit
    ) AND ended_at < :before
""")
_REPLACE = text("""
    WITH measured AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS measured (
            name text, digest text, target numeric, good bigint, bad bigint, since timestamptz,
            counted_to timestamptz, burns jsonb, missed_at timestamptz, last_day numeric, alert text
        )
    ), gone AS (
        DELETE FROM slo_status WHERE name NOT IN (SELECT name FROM measured)
    )
    INSERT INTO slo_status AS stored (
        name, digest, target, good, bad, since, counted_to, burns, missed_at, last_day, alert, alert_since
    )
    SELECT measured.*, now() FROM measured
    ON CONFLICT (name) DO UPDATE SET
        digest = excluded.digest, target = excluded.target, good = excluded.good, bad = excluded.bad,
        since = excluded.since, counted_to = excluded.counted_to, burns = excluded.burns,
        missed_at = excluded.missed_at, last_day = excluded.last_day, alert = excluded.alert,
        alert_since = CASE WHEN stored.alert = excluded.alert AND stored.digest = excluded.digest
            THEN stored.alert_since ELSE excluded.alert_since END,
        checked_at = now()
""")


@dataclass(frozen=True, slots=True)
class SloCursor:
    """From when on, and up to when, the events of an objective are counted. Seconds since 1970."""

    since: int
    counted_to: int


@dataclass(frozen=True, slots=True)
class StoredSlo:
    """The state of an objective, as last measured."""

    name: str
    digest: str
    target: Decimal
    counts: Counts
    since: datetime
    counted_to: datetime
    burns: tuple[Burn, ...]
    missed_at: datetime | None
    last_day: float | None
    alert: SloAlert = SloAlert.NONE
    alert_since: datetime | None = None
    """Set by the ledger when the alert changes."""


class SloStore(LedgerStore):
    """Reads objectives as they were measured."""

    async def cursors(self) -> dict[str, SloCursor]:
        """Return how far each objective is counted, by its digest."""
        rows = await self._fetch(_CURSORS)
        return {row.digest: SloCursor(seconds(row.since), seconds(row.counted_to)) for row in rows}

    async def slots(self, digests: Collection[str], first: float) -> dict[str, dict[int, Counts]]:
        """Return the counts of objectives from a time on, by digest and start of the slot."""
        found: dict[str, dict[int, Counts]] = {digest: {} for digest in digests}
        values = {"digests": sorted(digests), "first": moment(first)}
        for row in await self._fetch(_SLOTS, values):
            found[row.digest][seconds(row.slot)] = Counts(row.good, row.bad)
        return found

    async def statuses(self) -> tuple[StoredSlo, ...]:
        """Return the state of every objective, by name."""
        rows = await self._fetch(select(slo_status).order_by(slo_status.c.name))
        return tuple(
            StoredSlo(
                row.name,
                row.digest,
                row.target,
                Counts(row.good, row.bad),
                row.since,
                row.counted_to,
                tuple(Burn(*burn) for burn in row.burns),
                row.missed_at,
                None if row.last_day is None else float(row.last_day),
                SloAlert(row.alert),
                row.alert_since,
            )
            for row in rows
        )


class SloWriter(FencedWriter):
    """Writes counts and states of objectives."""

    async def count(self, counted: Mapping[str, Slots], cursors: Mapping[str, SloCursor]) -> None:
        """Add counts by digest, and move the cursors of these objectives to where they were counted."""
        if not cursors:
            return
        moved = [(digest, moment(c.since), moment(c.counted_to)) for digest, c in sorted(cursors.items())]
        await self._connection.execute(_MOVE, arrays(moved, "digests", "since", "counted_to"))
        rows = [
            (digest, moment(slot), counts.good, counts.bad)
            for digest, slots in sorted(counted.items())
            for slot, counts in sorted(slots.items())
        ]
        if rows:
            await self._connection.execute(_ADD, arrays(rows, "digests", "slots", "good", "bad"))

    async def write(self, statuses: Sequence[StoredSlo]) -> None:
        """Replace the states of all objectives with these."""
        rows = [
            {
                "name": one.name,
                "digest": one.digest,
                "target": str(one.target),
                "good": one.counts.good,
                "bad": one.counts.bad,
                "since": one.since.isoformat(),
                "counted_to": one.counted_to.isoformat(),
                "burns": [[burn.seconds, burn.rate, burn.spent] for burn in one.burns],
                "missed_at": None if one.missed_at is None else one.missed_at.isoformat(),
                "last_day": one.last_day,
                "alert": one.alert.value,
            }
            for one in statuses
        ]
        await self._connection.execute(_REPLACE, {"rows": json_rows(rows)})

    async def forget(self, digests: Collection[str], now: float) -> None:
        """Delete counts of objectives other than these, and counts and pauses that no window contains."""
        values = {"digests": sorted(digests), "before": moment(now - KEEP_SECONDS), "limit": _FORGET_AT_ONCE}
        await self._connection.execute(_FORGET_COUNTS, values)
        await self._connection.execute(_FORGET_CURSORS, values)
        await self._connection.execute(_FORGET_PAUSES, values)
