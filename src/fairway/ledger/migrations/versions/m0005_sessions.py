"""Sessions of the pages: who signed in, until when."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
LOSES = "the sessions of the pages: people sign in again"

SESSION = """
CREATE TABLE web_session (
    hash bytea NOT NULL,
    token bigint,
    user_name text COLLATE "C" NOT NULL,
    role text NOT NULL,
    issuer text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT web_session_pkey PRIMARY KEY (hash),
    CONSTRAINT web_session_role_check CHECK (role IN ('viewer', 'member', 'lead', 'operator', 'admin'))
);
CREATE INDEX web_session_expires_at_idx ON web_session (expires_at);
"""


def upgrade() -> None:
    op.execute(SESSION)


def downgrade() -> None:
    op.execute("DROP TABLE web_session")
