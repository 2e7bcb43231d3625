"""A condition of clusters says that labels have too many values."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
LOSES = "the condition of clusters whose labels have too many values"

_CONDITIONS = (
    "DriftNotChecked",
    "JobsNotFollowed",
    "InstallPending",
    "AccountingDetached",
    "QueuesDown",
    "GpusNotMeasured",
    "PriceFeedStopped",
    "UsageAboveCapacity",
)
_NEW = "TooManyLabelValues"


def _allow_conditions(*types: str) -> None:
    listed = ", ".join(f"'{one}'" for one in types)
    op.execute(
        "ALTER TABLE cluster_condition DROP CONSTRAINT cluster_condition_type_check,"
        f" ADD CONSTRAINT cluster_condition_type_check CHECK (type IN ({listed}))"
    )


def upgrade() -> None:
    _allow_conditions(*_CONDITIONS, _NEW)


def downgrade() -> None:
    op.execute(f"DELETE FROM cluster_condition WHERE type = '{_NEW}'")  # noqa: S608
    _allow_conditions(*_CONDITIONS)
