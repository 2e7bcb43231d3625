"""A cluster keeps its conditions: what could not be looked at, and what is yet to be installed.

Loops write a row while something is wrong, and remove it when it is not, so nothing is lost by a downgrade.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
LOSES = ""

_NAME = sa.Text(collation="C")
_TYPES = ("DriftNotChecked", "JobsNotFollowed", "InstallPending", "AccountingDetached", "QueuesDown")


def upgrade() -> None:
    types = ", ".join(f"'{t}'" for t in _TYPES)
    op.create_table(
        "cluster_condition",
        sa.Column("cluster", _NAME, nullable=False),
        sa.Column("type", _NAME, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "type", name=op.f("cluster_condition_pkey")),
        sa.CheckConstraint(f"type IN ({types})", name=op.f("cluster_condition_type_check")),
    )


def downgrade() -> None:
    op.drop_table("cluster_condition")
