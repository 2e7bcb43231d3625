"""What-if studies that were asked for on the pages, and their results."""

from __future__ import annotations

from alembic import op

revision = "0032"
down_revision = "0031"
LOSES = "what-if studies and their results"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE what_if_study (
            id bigint GENERATED ALWAYS AS IDENTITY,
            state text NOT NULL DEFAULT 'queued',
            fleet text NOT NULL,
            sweep text NOT NULL,
            days integer NOT NULL,
            seeds integer NOT NULL,
            progress double precision NOT NULL DEFAULT 0,
            tries integer NOT NULL DEFAULT 0,
            result text,
            code text NOT NULL DEFAULT '',
            message text NOT NULL DEFAULT '',
            hint text NOT NULL DEFAULT '',
            created_by text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            ended_at timestamptz,
            CONSTRAINT what_if_study_pkey PRIMARY KEY (id),
            CONSTRAINT what_if_study_state_check CHECK (state IN ('queued', 'running', 'done', 'failed'))
        )
    """)
    op.execute(
        "CREATE INDEX what_if_study_open_idx ON what_if_study (id) WHERE state IN ('queued', 'running')"
    )


def downgrade() -> None:
    op.execute("DROP TABLE what_if_study")
