"""Sums of usage by day and team.

Triggers keep them: an older release, which may run beside this one during an upgrade, meters without knowing
the table, and sums that miss its usage would be wrong amounts.
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
LOSES = ""

# Classes are looked up one by one (enforced by OFFSET 0), whatever planner settings a transaction has.
_ADD = """
    INSERT INTO usage_team_day (day, cluster, team, pool, slice, device_seconds)
    SELECT day, cluster, team, pool, slice, sum(device_seconds)
    FROM ({changed}) AS changed CROSS JOIN LATERAL (
        SELECT cluster, team, pool, slice FROM job_class WHERE id = changed.class OFFSET 0
    ) AS owner
    GROUP BY day, cluster, team, pool, slice
    ORDER BY day, cluster, team, pool, slice
    ON CONFLICT (day, cluster, team, pool, slice)
    DO UPDATE SET device_seconds = usage_team_day.device_seconds + excluded.device_seconds
"""
_NEW = "SELECT day, class, device_seconds FROM new_sum"
_OLD = "SELECT day, class, -device_seconds AS device_seconds FROM old_sum"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE usage_team_day (
            day date NOT NULL,
            cluster text COLLATE "C" NOT NULL,
            team text COLLATE "C" NOT NULL,
            pool text COLLATE "C" NOT NULL,
            slice text COLLATE "C" NOT NULL,
            device_seconds bigint NOT NULL,
            CONSTRAINT usage_team_day_pkey PRIMARY KEY (day, cluster, team, pool, slice)
        )
    """)
    op.execute("LOCK TABLE usage_day IN SHARE ROW EXCLUSIVE MODE")
    op.execute(_ADD.format(changed="SELECT day, class, device_seconds FROM usage_day"))
    op.execute("ANALYZE usage_team_day")
    op.execute(f"""
        CREATE FUNCTION add_usage_by_team() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN {_ADD.format(changed=_NEW)};
            ELSIF TG_OP = 'UPDATE' THEN {_ADD.format(changed=f"{_NEW} UNION ALL {_OLD}")};
            ELSE {_ADD.format(changed=_OLD)};
            END IF;
            RETURN NULL;
        END $$
    """)
    for event, tables in (
        ("INSERT", "NEW TABLE AS new_sum"),
        ("UPDATE", "OLD TABLE AS old_sum NEW TABLE AS new_sum"),
        ("DELETE", "OLD TABLE AS old_sum"),
    ):
        op.execute(f"""
            CREATE TRIGGER usage_by_team_{event.lower()} AFTER {event} ON usage_day
            REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION add_usage_by_team()
        """)


def downgrade() -> None:
    for event in ("insert", "update", "delete"):
        op.execute(f"DROP TRIGGER usage_by_team_{event} ON usage_day")
    op.execute("DROP FUNCTION add_usage_by_team()")
    op.execute("DROP TABLE usage_team_day")
