"""Teams keep the number of their colour, and the GPUs that jobs wait for are summed by hour, for charts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
LOSES = "the colours of teams in charts, and how many GPUs jobs waited for in the past"

_NAME = sa.Text(collation="C")


def upgrade() -> None:
    op.create_table(
        "team_colour",
        sa.Column("team", _NAME, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("team", name=op.f("team_colour_pkey")),
    )
    op.create_table(
        "queue_hour",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cluster", _NAME, nullable=False),
        sa.Column("pool", _NAME, nullable=False),
        sa.Column("slice", _NAME, nullable=False),
        sa.Column("seconds", sa.Integer, nullable=False),
        sa.Column("device_seconds", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hour", "cluster", "pool", "slice", name=op.f("queue_hour_pkey")),
    )


def downgrade() -> None:
    op.drop_table("queue_hour")
    op.drop_table("team_colour")
