"""A job keeps why it waits as a code: nothing reads an engine's sentence a second time.

Rows that are there get none: a server that starts is told of every open job, and the mirror writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
LOSES = ""


def upgrade() -> None:
    op.add_column("job", sa.Column("reason_code", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("job", "reason_code")
