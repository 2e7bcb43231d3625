"""Define the tables of notices to people. A test compares them with what the migrations create."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)

from fairway.ledger.schema.tables import Moment, Name, metadata

notice: Final = Table(
    "notice",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("key", Name, nullable=False),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("team", Name),
    Column("user", Name),
    Column("job", BigInteger),
    Column("operators", Boolean, nullable=False),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    # When to deliver it next; NULL once every channel has it, or none is left to try.
    Column("due_at", Moment, server_default=func.now()),
    UniqueConstraint("key"),
    Index("notice_due_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("notice_old_idx", "created_at"),
)

# One row for each channel that was tried.
notice_delivery: Final = Table(
    "notice_delivery",
    metadata,
    Column("notice", BigInteger, primary_key=True, autoincrement=False),
    Column("channel", Name, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("delivered_at", Moment),
    # Why the last attempt failed.
    Column("error", Text),
)
