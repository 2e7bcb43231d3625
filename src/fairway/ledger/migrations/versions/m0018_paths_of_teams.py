"""Closed charges say which teams their team was inside of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
LOSES = "which teams the teams of closed months were inside of"


def upgrade() -> None:
    op.add_column("closed_charge", sa.Column("inside", sa.Text))


def downgrade() -> None:
    op.drop_column("closed_charge", "inside")
