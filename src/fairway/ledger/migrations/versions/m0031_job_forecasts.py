"""When each waiting job is expected to start, computed anew every minute."""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
LOSES = "when waiting jobs are expected to start, which is computed anew every minute"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE job_forecast (
            job bigint NOT NULL,
            cluster text COLLATE "C" NOT NULL,
            computed_at timestamptz NOT NULL,
            earliest timestamptz,
            expected timestamptz,
            latest timestamptz,
            started real NOT NULL,
            futures integer NOT NULL,
            samples integer NOT NULL,
            source text NOT NULL,
            refused text NOT NULL,
            CONSTRAINT job_forecast_pkey PRIMARY KEY (job)
        ) WITH (fillfactor = 50)
    """)
    op.execute("CREATE INDEX job_forecast_cluster_idx ON job_forecast (cluster)")


def downgrade() -> None:
    op.execute("DROP TABLE job_forecast")
