"""Spot prices can be withdrawn, and two conditions of clusters are about money."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
LOSES = "withdrawn spot prices, and that they were withdrawn"

_CONDITIONS = (
    "DriftNotChecked",
    "JobsNotFollowed",
    "InstallPending",
    "AccountingDetached",
    "QueuesDown",
    "GpusNotMeasured",
)
_NEW = ("PriceFeedStopped", "UsageAboveCapacity")


def _allow_conditions(*types: str) -> None:
    listed = ", ".join(f"'{one}'" for one in types)
    op.execute(
        "ALTER TABLE cluster_condition DROP CONSTRAINT cluster_condition_type_check,"
        f" ADD CONSTRAINT cluster_condition_type_check CHECK (type IN ({listed}))"
    )


def upgrade() -> None:
    op.alter_column("price_point", "per_gpu_hour", nullable=True)
    _allow_conditions(*_CONDITIONS, *_NEW)


def downgrade() -> None:
    listed = ", ".join(f"'{one}'" for one in _NEW)
    op.execute(f"DELETE FROM cluster_condition WHERE type IN ({listed})")  # noqa: S608
    _allow_conditions(*_CONDITIONS)
    op.execute(
        "DELETE FROM price_point USING price_point AS withdrawn WHERE withdrawn.per_gpu_hour IS NULL"
        " AND price_point.pool = withdrawn.pool AND price_point.at = withdrawn.at"
        " AND price_point.kept_at <= withdrawn.kept_at"
    )
    op.alter_column("price_point", "per_gpu_hour", nullable=False)
