"""A cluster that left the fleet is remembered: its open jobs are not tracked or charged any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
LOSES = "when clusters left the fleet: their open jobs are shown, and charged, as if they went on"


def upgrade() -> None:
    op.create_table(
        "left_cluster",
        sa.Column("cluster", sa.Text(collation="C"), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("left_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("left_cluster_pkey")),
    )


def downgrade() -> None:
    op.drop_table("left_cluster")
