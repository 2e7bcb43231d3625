"""What clusters had before Fairway changed it, and clusters whose policy is no longer enforced.

Objects that Fairway created before this step are known from the applies. What it adopted before is not:
`leave` takes the mark off these and leaves them as they are.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
LOSES = "the state of objects before Fairway adopted them: `leave` can no longer restore it"

UP = """
CREATE TABLE saved_object (
    cluster text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    fields jsonb NOT NULL DEFAULT '{}',
    record jsonb,
    saved_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT saved_object_pkey PRIMARY KEY (cluster, kind, name)
);
INSERT INTO saved_object (cluster, kind, name)
SELECT DISTINCT apply_cluster.cluster, change->>1, change->>2
FROM apply_cluster, jsonb_array_elements(apply_cluster.changes) AS change
WHERE change->>0 = 'create' AND change->>5 = 'true';
ALTER TABLE applied_cluster
    ADD COLUMN lifted text NOT NULL DEFAULT '',
    ADD COLUMN lifted_by text NOT NULL DEFAULT '',
    ADD COLUMN lifted_at timestamptz,
    ADD CONSTRAINT applied_cluster_lifted_check CHECK (lifted IN ('', 'left', 'released'));
ALTER TABLE apply DROP CONSTRAINT apply_kind_check;
ALTER TABLE apply ADD CONSTRAINT apply_kind_check CHECK (kind IN ('apply', 'adopt', 'leave', 'release'));
"""

DOWN = """
DELETE FROM apply_cluster WHERE apply IN (SELECT id FROM apply WHERE kind IN ('leave', 'release'));
DELETE FROM apply WHERE kind IN ('leave', 'release');
ALTER TABLE apply DROP CONSTRAINT apply_kind_check;
ALTER TABLE apply ADD CONSTRAINT apply_kind_check CHECK (kind IN ('apply', 'adopt'));
DELETE FROM applied_cluster WHERE lifted <> '';
ALTER TABLE applied_cluster DROP COLUMN lifted, DROP COLUMN lifted_by, DROP COLUMN lifted_at;
DROP TABLE saved_object;
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute(DOWN)
