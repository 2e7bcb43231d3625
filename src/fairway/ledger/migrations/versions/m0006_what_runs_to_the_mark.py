"""What runs is metered up to its cluster's mark: its row in `metered` has no end of its own."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
LOSES = ""

# The meter then finds what runs, and leaves its end open.
UP = """
ALTER TABLE metered ALTER COLUMN metered_to DROP NOT NULL;
CREATE INDEX metered_running_idx ON metered (class) WHERE metered_to IS NULL;
INSERT INTO to_meter (cluster, job)
    SELECT DISTINCT job.cluster, job.id FROM job JOIN attempt ON attempt.job = job.id
    WHERE attempt.ending IS NULL AND attempt.ended_at IS NULL AND job.attempts > 0 ORDER BY job.id;
"""

# To the mark, as the usage rows add up to; what holds nothing yet has no row there.
DOWN = """
DROP INDEX metered_running_idx;
UPDATE metered SET metered_to = greatest(metered.started_at, mark.metered_to)
    FROM job_class JOIN meter_mark AS mark USING (cluster)
    WHERE metered.metered_to IS NULL AND job_class.id = metered.class;
DELETE FROM metered WHERE metered_to IS NULL OR metered_to <= started_at;
ALTER TABLE metered ALTER COLUMN metered_to SET NOT NULL;
"""


def upgrade() -> None:
    _run(UP)


def downgrade() -> None:
    _run(DOWN)


def _run(statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            op.execute(statement)
