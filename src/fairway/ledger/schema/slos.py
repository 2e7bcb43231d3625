"""Define the tables of service level objectives. A test compares them with what the migrations create."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Numeric, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB

from fairway.ledger.schema.tables import Moment, Name, metadata

# The times in which a job did not wait for GPUs. A trigger of `job` keeps them.
job_pause: Final = Table(
    "job_pause",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("started_at", Moment, primary_key=True),
    # NULL: it lasts.
    Column("ended_at", Moment),
    # The job waits as if it had been submitted then: its submission plus all pauses up to this one's end.
    Column("waits_from", Moment),
    Index("job_pause_waits_from_idx", "waits_from", postgresql_where=text("waits_from IS NOT NULL")),
)

# Good and bad events of an objective, by the digest of what it counts and the start of a quarter of an hour.
slo_count: Final = Table(
    "slo_count",
    metadata,
    Column("digest", Name, primary_key=True),
    Column("slot", Moment, primary_key=True),
    Column("good", BigInteger, nullable=False),
    Column("bad", BigInteger, nullable=False),
)

# Moved in the transaction that adds the counts, so that each event is counted once.
slo_cursor: Final = Table(
    "slo_cursor",
    metadata,
    Column("digest", Name, primary_key=True),
    Column("since", Moment, nullable=False),
    Column("counted_to", Moment, nullable=False),
)

# The state of each objective of the fleet file, as last measured.
slo_status: Final = Table(
    "slo_status",
    metadata,
    Column("name", Name, primary_key=True),
    Column("digest", Name, nullable=False),
    Column("target", Numeric, nullable=False),
    Column("good", BigInteger, nullable=False),
    Column("bad", BigInteger, nullable=False),
    Column("since", Moment, nullable=False),
    Column("counted_to", Moment, nullable=False),
    Column("burns", JSONB, nullable=False),
    # When the target is missed if the last day goes on; NULL: not within one window.
    Column("missed_at", Moment),
    # The good part of the last day; NULL: nothing was counted.
    Column("last_day", Numeric),
    Column("alert", Name, nullable=False),
    Column("alert_since", Moment, nullable=False),
    Column("checked_at", Moment, nullable=False, server_default=func.now()),
)
