"""Define the tables of notices to people. A test compares them with what the migrations create."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from fairway.ledger.schema.tables import Moment, Name, metadata, sql_list
from fairway.model.notice_rules import NoticeKind

notice: Final = Table(
    "notice",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Name, nullable=False),
    Column("key", Name, nullable=False),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("team", Name),
    Column("user", Name),
    Column("job", BigInteger),
    Column("operators", Boolean, nullable=False),
    # The month whose statement is attached.
    Column("month", Date),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    # NULL once its deliveries are decided: by which channels, and when.
    Column("due_at", Moment, server_default=func.now()),
    UniqueConstraint("key"),
    CheckConstraint(f"kind IN ({sql_list(NoticeKind)})", name="kind"),
    Index("notice_due_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("notice_old_idx", "created_at"),
)

# One row for each channel that a notice goes to.
notice_delivery: Final = Table(
    "notice_delivery",
    metadata,
    Column("notice", BigInteger, primary_key=True, autoincrement=False),
    Column("channel", Name, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("delivered_at", Moment),
    # Why the last attempt failed.
    Column("error", Text),
    # When to send it, first or again; NULL once it was delivered, or nothing is left to try.
    Column("due_at", Moment),
    # The message on this channel that it is part of, by its first notice. NULL until a digest is assembled,
    # which happens before it is sent, so that a second attempt has the same content.
    Column("message", BigInteger),
    Index("notice_delivery_due_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
)

# What users chose for themselves.
notice_preference: Final = Table(
    "notice_preference",
    metadata,
    Column("user_name", Name, primary_key=True),
    # When to send each kind: {"budget": "daily"}.
    Column("kinds", JSONB, nullable=False),
    # Minutes after midnight in the time zone of the fleet.
    Column("quiet_start", SmallInteger),
    Column("quiet_end", SmallInteger),
    Column("digest_hour", SmallInteger, nullable=False),
    Column("updated_at", Moment, nullable=False, server_default=func.now()),
)
