"""Raises of team budgets are requested and approved."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"
LOSES = "raises of budgets: the amounts of the fleet file are in force again"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE budget_raise (
            id bigint GENERATED ALWAYS AS IDENTITY,
            team text COLLATE "C" NOT NULL,
            every text NOT NULL,
            period date NOT NULL,
            amount numeric NOT NULL,
            reason text NOT NULL,
            requested_by text COLLATE "C" NOT NULL,
            requested_at timestamptz NOT NULL DEFAULT now(),
            state text NOT NULL DEFAULT 'requested',
            decided_by text COLLATE "C",
            decided_at timestamptz,
            comment text NOT NULL DEFAULT '',
            CONSTRAINT budget_raise_pkey PRIMARY KEY (id),
            CONSTRAINT budget_raise_every_check CHECK (every IN ('month', 'quarter')),
            CONSTRAINT budget_raise_amount_check CHECK (amount > 0),
            CONSTRAINT budget_raise_state_check CHECK (state IN ('requested', 'approved', 'denied')),
            CONSTRAINT budget_raise_decided_check CHECK ((state = 'requested') = (decided_at IS NULL))
        )
    """)
    op.execute("""
        CREATE UNIQUE INDEX budget_raise_open_key ON budget_raise (team, every, period)
        WHERE state = 'requested'
    """)
    op.execute("CREATE INDEX budget_raise_period_idx ON budget_raise (period)")


def downgrade() -> None:
    op.execute("DROP TABLE budget_raise")
