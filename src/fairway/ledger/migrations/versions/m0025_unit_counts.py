"""Jobs report how much work they have done, such as steps, for the cost of a unit."""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
LOSES = "what jobs reported of their work, and so the cost of a unit"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE unit_total (
            job bigint NOT NULL,
            unit text COLLATE "C" NOT NULL,
            total bigint NOT NULL,
            reported_at timestamptz NOT NULL,
            CONSTRAINT unit_total_pkey PRIMARY KEY (job, unit)
        )
    """)
    op.execute("""
        CREATE TABLE unit_day (
            unit text COLLATE "C" NOT NULL,
            day date NOT NULL,
            class integer NOT NULL,
            units numeric NOT NULL,
            CONSTRAINT unit_day_pkey PRIMARY KEY (unit, day, class)
        )
    """)
    op.execute("""
        CREATE TABLE unit_name (
            unit text COLLATE "C" NOT NULL,
            added_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT unit_name_pkey PRIMARY KEY (unit)
        )
    """)


def downgrade() -> None:
    for table in ("unit_name", "unit_day", "unit_total"):
        op.execute(f"DROP TABLE {table}")
