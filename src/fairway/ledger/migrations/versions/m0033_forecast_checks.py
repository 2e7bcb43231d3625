"""Some forecast starts are kept until the jobs have started, to calibrate later forecasts by them."""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
LOSES = "how earlier forecasts of starts came out, by which later ones are calibrated"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE forecast_check (
            cluster text COLLATE "C" NOT NULL,
            computed_at timestamptz NOT NULL,
            job bigint NOT NULL,
            earliest timestamptz NOT NULL,
            latest timestamptz NOT NULL,
            started_at timestamptz,
            CONSTRAINT forecast_check_pkey PRIMARY KEY (cluster, computed_at, job)
        )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE forecast_check")
