"""Notices have a kind and deliveries a time, digests are one message, and users choose rules of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"
LOSES = "what users chose to be notified of, the kinds of notices, and digests that were not sent yet"

_NAME = sa.Text(collation="C")
_MOMENT = sa.DateTime(timezone=True)
_KINDS = "'budget', 'anomaly', 'job-end', 'drift', 'health', 'idle', 'alert', 'statement', 'test'"


def upgrade() -> None:
    op.add_column("notice", sa.Column("kind", _NAME))
    op.execute("""
        UPDATE notice SET kind = CASE
            WHEN key LIKE 'idle:%' THEN 'idle'
            WHEN key LIKE 'alert/%' THEN 'alert'
            ELSE 'health'
        END
    """)
    op.alter_column("notice", "kind", nullable=False)
    op.create_check_constraint(op.f("notice_kind_check"), "notice", f"kind IN ({_KINDS})")
    op.add_column("notice", sa.Column("month", sa.Date))
    op.add_column("notice_delivery", sa.Column("due_at", _MOMENT))
    op.add_column("notice_delivery", sa.Column("message", sa.BigInteger))
    op.create_index(
        "notice_delivery_due_idx", "notice_delivery", ["due_at"], postgresql_where="due_at IS NOT NULL"
    )
    op.create_table(
        "notice_preference",
        sa.Column("user_name", _NAME, primary_key=True),
        sa.Column("kinds", JSONB, nullable=False),
        sa.Column("quiet_start", sa.SmallInteger),
        sa.Column("quiet_end", sa.SmallInteger),
        sa.Column("digest_hour", sa.SmallInteger, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False, server_default=sa.func.now()),
    )


def downgrade() -> None:
    op.drop_table("notice_preference")
    # What a channel has yet to get is due for all of them; those that have it are recorded.
    op.execute("""
        UPDATE notice SET due_at = now() WHERE due_at IS NULL AND EXISTS (
            SELECT FROM notice_delivery
            WHERE notice_delivery.notice = notice.id AND notice_delivery.due_at IS NOT NULL
        )
    """)
    op.execute("DELETE FROM notice_delivery WHERE attempts = 0")
    op.drop_index("notice_delivery_due_idx", "notice_delivery")
    op.drop_column("notice_delivery", "message")
    op.drop_column("notice_delivery", "due_at")
    op.drop_column("notice", "month")
    op.drop_constraint("notice_kind_check", "notice")
    op.drop_column("notice", "kind")
