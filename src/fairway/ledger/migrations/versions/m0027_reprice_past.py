"""An apply records whether it was allowed to change closed months."""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
LOSES = "which applies were allowed to change closed months"


def upgrade() -> None:
    op.execute("ALTER TABLE apply ADD COLUMN reprice_past boolean NOT NULL DEFAULT false")


def downgrade() -> None:
    op.execute("ALTER TABLE apply DROP COLUMN reprice_past")
