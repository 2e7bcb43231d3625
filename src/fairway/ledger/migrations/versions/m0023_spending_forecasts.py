"""What each team and project will have spent at the end of the month."""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0020"
LOSES = "forecasts of spending, until they are computed again"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE spending_forecast (
            label text NOT NULL,
            payer text COLLATE "C" NOT NULL,
            month date NOT NULL,
            spent numeric NOT NULL,
            expected numeric NOT NULL,
            low numeric NOT NULL,
            high numeric NOT NULL,
            checked_at timestamptz NOT NULL,
            CONSTRAINT spending_forecast_pkey PRIMARY KEY (label, payer)
        )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE spending_forecast")
