"""Jobs have a project and labels, of which some are dimensions of cost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from fairway.ledger.migrations.merge_classes import merge_classes

revision = "0019"
down_revision = "0018"
LOSES = "the projects and labels of jobs, and usage by them"

_NAME = sa.Text(collation="C")
_KEY = ("cluster", "user_name", "team", "pool", "slice", "priority", "native", "kind", "service")
_SUMS = ("usage_hour", "usage_day", "service_hour", "service_day", "use_hour", "use_day")


def upgrade() -> None:
    op.add_column("job_class", sa.Column("project", _NAME, nullable=False, server_default=""))
    op.add_column("job_class", sa.Column("labels", JSONB, nullable=False, server_default="{}"))
    op.drop_constraint("job_class_alike_key", "job_class")
    op.create_unique_constraint("job_class_alike_key", "job_class", [*_KEY, "project", "labels"])
    op.create_index("job_class_project_idx", "job_class", ["project"])
    op.create_table(
        "label_value",
        sa.Column("key", _NAME, nullable=False),
        sa.Column("value", _NAME, nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("key", "value", name=op.f("label_value_pkey")),
    )


def downgrade() -> None:
    op.drop_table("label_value")
    merge_classes(_KEY, _SUMS)
    op.drop_index("job_class_project_idx")
    op.drop_constraint("job_class_alike_key", "job_class")
    op.drop_column("job_class", "labels")
    op.drop_column("job_class", "project")
    op.create_unique_constraint("job_class_alike_key", "job_class", _KEY)
