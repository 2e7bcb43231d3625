"""Sign-ins of the command line that a person has to confirm in the browser."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
LOSES = "sign-ins of the command line that are in progress: people run  fairway login  again"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "login_request",
        sa.Column("challenge", sa.LargeBinary, nullable=False),
        sa.Column("user_code", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("port", sa.Integer),
        sa.Column("created_at", moment, server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("refused", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("user_name", sa.Text(collation="C")),
        sa.Column("role", sa.Text),
        sa.Column("issuer", sa.Text, server_default="", nullable=False),
        sa.Column("code_hash", sa.LargeBinary),
        sa.Column("token_expires_at", moment),
        sa.CheckConstraint(
            "role IN ('alerts', 'viewer', 'member', 'lead', 'operator', 'admin')",
            name=op.f("login_request_role_check"),
        ),
        sa.PrimaryKeyConstraint("challenge", name=op.f("login_request_pkey")),
        sa.UniqueConstraint("user_code", name=op.f("login_request_user_code_key")),
    )
    op.create_index("login_request_expires_at_idx", "login_request", ["expires_at"])


def downgrade() -> None:
    op.drop_table("login_request")
