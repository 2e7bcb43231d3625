"""The fleet, what is known of its clusters, leases, tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.Text(collation="C")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _fleet()
    _known()
    _leases()
    _tokens()


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _fleet() -> None:
    op.create_table(
        "fleet_revision",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("fleet_revision_pkey")),
    )


def _known() -> None:
    op.create_table(
        "cluster_state",
        sa.Column("cluster", NAME),
        _text("engine"),
        _text("engine_version"),
        sa.Column("reachable", sa.Boolean, nullable=False),
        _text("code"),
        _text("message"),
        _text("hint"),
        sa.Column("since", MOMENT, nullable=False),
        sa.Column("attempted_at", MOMENT),
        sa.Column("observed_at", MOMENT),
        sa.Column("digest", sa.LargeBinary),
        sa.Column("token", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("cluster", name=op.f("cluster_state_pkey")),
    )
    op.create_table(
        "node",
        sa.Column("cluster", NAME),
        sa.Column("name", NAME),
        sa.Column("health", sa.Text, nullable=False),
        _text("reason"),
        sa.Column("since", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name", name=op.f("node_pkey")),
        sa.CheckConstraint("health IN ('ready', 'drained', 'down')", name=op.f("node_health_check")),
    )
    op.create_index(
        "node_unready_idx", "node", ["cluster", "name"], postgresql_where=sa.text("health <> 'ready'")
    )
    op.create_table(
        "device",
        sa.Column("cluster", NAME),
        sa.Column("node", NAME),
        sa.Column("kind", NAME),
        sa.Column("pool", NAME, nullable=False, server_default=""),
        sa.Column("slice", NAME, nullable=False, server_default=""),
        _count("total"),
        _count("in_use"),
        _count("unhealthy"),
        sa.PrimaryKeyConstraint("cluster", "node", "kind", name=op.f("device_pkey")),
    )
    op.create_index("device_pool_idx", "device", ["pool", "cluster", "node"])
    op.create_table(
        "pool_total",
        sa.Column("cluster", NAME),
        sa.Column("pool", NAME, server_default=""),
        sa.Column("slice", NAME, server_default=""),
        *(
            _count(c)
            for c in ("total", "in_use", "free", "unhealthy", "nodes", "nodes_drained", "nodes_down")
        ),
        sa.PrimaryKeyConstraint("cluster", "pool", "slice", name=op.f("pool_total_pkey")),
        sa.CheckConstraint("total = in_use + free + unhealthy", name=op.f("pool_total_sum_check")),
    )


def _leases() -> None:
    op.create_table(
        "lease",
        sa.Column("loop", NAME),
        sa.Column("cluster", NAME),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("loop", "cluster", name=op.f("lease_pkey")),
        postgresql_with={"fillfactor": 50},
    )


def _tokens() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        sa.Column("name", NAME, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.Column("last_used_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("api_token_pkey")),
        sa.UniqueConstraint("name", name=op.f("api_token_name_key")),
        sa.UniqueConstraint("hash", name=op.f("api_token_hash_key")),
        sa.CheckConstraint(
            "role IN ('viewer', 'member', 'operator', 'admin')", name=op.f("api_token_role_check")
        ),
    )
