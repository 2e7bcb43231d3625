"""Budgets have a forecast with a range."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
LOSES = "the forecasts of budgets, until they are computed again"

_COLUMNS = ("expected", "low", "high")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("budget_standing", sa.Column(name, sa.Numeric))


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("budget_standing", name)
