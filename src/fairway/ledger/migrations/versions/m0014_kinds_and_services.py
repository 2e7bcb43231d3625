"""Jobs have a kind of workload; services have replicas, each an attempt of its own, several at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
LOSES = "the kinds of Kubernetes workloads, which of them are services, their sums, and each replica's pod"

_NAME = sa.Text(collation="C")
_KEY = ("cluster", "user_name", "team", "pool", "slice", "priority", "native")


def upgrade() -> None:
    op.add_column("job_class", sa.Column("kind", _NAME, nullable=False, server_default=""))
    op.add_column("job_class", sa.Column("service", sa.Boolean, nullable=False, server_default=sa.false()))
    op.drop_constraint("job_class_alike_key", "job_class")
    op.create_unique_constraint("job_class_alike_key", "job_class", [*_KEY, "kind", "service"])
    op.add_column("job", sa.Column("replicas", sa.Integer))
    op.add_column("attempt", sa.Column("replica", _NAME, nullable=False, server_default=""))
    for time, type_ in (("hour", sa.DateTime(timezone=True)), ("day", sa.Date())):
        op.create_table(
            f"service_{time}",
            sa.Column(time, type_, nullable=False),
            sa.Column("class", sa.Integer, nullable=False),
            sa.Column("job", sa.BigInteger, nullable=False),
            sa.Column("device_seconds", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint(time, "class", "job", name=op.f(f"service_{time}_pkey")),
        )
    op.add_column("to_meter", sa.Column("attempt", sa.Integer))
    op.create_index(
        "attempt_replica_idx",
        "attempt",
        ["job", "replica", "started_at"],
        postgresql_where="replica <> ''",
    )
    op.create_index(
        "attempt_open_replica_idx",
        "attempt",
        ["job"],
        postgresql_where="replica <> '' AND ending IS NULL",
    )


# Classes that would differ in nothing any more become one: the oldest of them.
_MERGED = f"""
    CREATE TEMPORARY TABLE merged_class ON COMMIT DROP AS
    SELECT id AS old, class FROM (
        SELECT id, min(id) OVER (PARTITION BY {", ".join(_KEY)}) AS class FROM job_class
    ) AS alike WHERE id <> class
"""  # noqa: S608

_MOVE = "UPDATE {0} SET class = merged.class FROM merged_class AS merged WHERE {0}.class = merged.old"

_ADD_SUMS = """
    WITH moved AS (
        DELETE FROM {0} USING merged_class AS merged WHERE {0}.class = merged.old
        RETURNING {0}.{1}, merged.class AS into_class, {2}
    )
    INSERT INTO {0} ({1}, class, {2}) SELECT {1}, into_class, {3} FROM moved GROUP BY {1}, into_class
    ON CONFLICT ({1}, class) DO UPDATE SET {4}
"""


def _add_sums(table: str, key: str) -> None:
    """Add up the rows of merged classes; a peak is the highest of them."""
    columns = [
        one["name"]
        for one in sa.inspect(op.get_bind()).get_columns(table)
        if one["name"] not in (key, "class")
    ]
    peaks = {name for name in columns if name.endswith("_peak")}
    sums = ", ".join(f"max({name})" if name in peaks else f"sum({name})" for name in columns)
    sets = ", ".join(
        f"{name} = greatest({table}.{name}, excluded.{name})"
        if name in peaks
        else f"{name} = {table}.{name} + excluded.{name}"
        for name in columns
    )
    op.execute(_ADD_SUMS.format(table, key, ", ".join(columns), sums, sets))


def downgrade() -> None:
    op.execute(_MERGED)
    for table in ("job", "metered", "usage"):
        op.execute(_MOVE.format(table))
    for table, key in (
        ("usage_hour", "hour"),
        ("usage_day", "day"),
        ("use_hour", "hour"),
        ("use_day", "day"),
    ):
        _add_sums(table, key)
    op.execute("DELETE FROM job_class USING merged_class WHERE id = old")
    op.drop_table("service_day")
    op.drop_table("service_hour")
    op.drop_index("attempt_open_replica_idx")
    op.drop_index("attempt_replica_idx")
    op.drop_column("to_meter", "attempt")
    op.drop_column("attempt", "replica")
    op.drop_column("job", "replicas")
    op.drop_constraint("job_class_alike_key", "job_class")
    op.drop_column("job_class", "service")
    op.drop_column("job_class", "kind")
    op.create_unique_constraint("job_class_alike_key", "job_class", _KEY)
