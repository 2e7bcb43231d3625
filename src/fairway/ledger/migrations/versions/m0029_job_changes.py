"""Users change jobs that wait: their pool, GPUs, nodes, time limit and priority."""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
LOSES = "changes of waiting jobs that are not made yet, and that jobs were changed from their timelines"

_BEFORE = "'submitted', 'sent', 'refused', 'retry', 'held', 'released', 'cancelled', 'not-started', 'double'"
_KINDS = _BEFORE.replace("'not-started'", "'change-requested', 'changed', 'not-started'")


def upgrade() -> None:
    op.execute("""
        CREATE TABLE job_change (
            job bigint NOT NULL,
            id bigint GENERATED ALWAYS AS IDENTITY,
            cluster text COLLATE "C" NOT NULL,
            class integer NOT NULL,
            spec text NOT NULL,
            why_there text NOT NULL,
            gpus integer NOT NULL,
            nodes integer NOT NULL,
            devices integer NOT NULL,
            time_seconds integer,
            text text NOT NULL,
            requested_by text NOT NULL,
            requested_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT job_change_pkey PRIMARY KEY (job)
        )
    """)
    op.execute("CREATE INDEX job_change_cluster_id_idx ON job_change (cluster, id)")
    op.drop_constraint(op.f("job_event_kind_check"), "job_event")
    op.create_check_constraint(op.f("job_event_kind_check"), "job_event", f"kind IN ({_KINDS})")


def downgrade() -> None:
    op.drop_constraint(op.f("job_event_kind_check"), "job_event")
    op.execute("DELETE FROM job_event WHERE kind IN ('change-requested', 'changed')")
    op.create_check_constraint(op.f("job_event_kind_check"), "job_event", f"kind IN ({_BEFORE})")
    op.execute("DROP TABLE job_change")
