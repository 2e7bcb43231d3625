"""Jobs have a kind of workload; services have replicas, each an attempt of its own, several at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fairway.ledger.migrations.merge_classes import merge_classes

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


def downgrade() -> None:
    merge_classes(_KEY, ("usage_hour", "usage_day", "use_hour", "use_day"))
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
