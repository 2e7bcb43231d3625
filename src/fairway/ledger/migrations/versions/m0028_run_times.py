"""How long jobs ran, as histograms by groups of jobs."""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
LOSES = "learnt run times, until they are learnt again from history"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE run_time_histogram (
            key bigint NOT NULL,
            histogram bytea NOT NULL,
            used_on date NOT NULL,
            CONSTRAINT run_time_histogram_pkey PRIMARY KEY (key)
        ) WITH (fillfactor = 70)
    """)
    op.execute("""
        CREATE TABLE run_to_learn (
            job bigint NOT NULL,
            attempt integer NOT NULL,
            CONSTRAINT run_to_learn_pkey PRIMARY KEY (job, attempt)
        )
    """)
    op.execute("CREATE TABLE run_time_mark (next_job bigint)")
    op.execute("INSERT INTO run_time_mark (next_job) VALUES (0)")


def downgrade() -> None:
    op.execute("DROP TABLE run_time_mark")
    op.execute("DROP TABLE run_to_learn")
    op.execute("DROP TABLE run_time_histogram")
