"""Applies and what became of them, what was last applied, drift, nudges."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"

NAME = sa.Text(collation="C")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _applies()
    _drift()
    _nudges()


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _number(name: str, kind: type[sa.Integer]) -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text("0"))


def _list(name: str) -> sa.Column[object]:
    return sa.Column(name, JSONB, nullable=False, server_default=sa.text("'[]'"))


def _applies() -> None:
    op.create_table(
        "apply",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger),
        sa.Column("force", sa.Boolean, nullable=False),
        _list("objects"),
        sa.PrimaryKeyConstraint("id", name=op.f("apply_pkey")),
        sa.CheckConstraint("kind IN ('apply', 'adopt')", name=op.f("apply_kind_check")),
        sa.CheckConstraint("(kind = 'apply') = (revision IS NOT NULL)", name=op.f("apply_revision_check")),
    )
    op.create_table(
        "apply_cluster",
        sa.Column("apply", sa.BigInteger, autoincrement=False),
        sa.Column("cluster", NAME),
        sa.Column("state", sa.Text, nullable=False),
        _text("fingerprint"),
        _list("changes"),
        _number("total", sa.Integer),
        _number("done", sa.Integer),
        _text("current"),
        _text("code"),
        _text("message"),
        _text("hint"),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        _number("token", sa.BigInteger),
        sa.PrimaryKeyConstraint("apply", "cluster", name=op.f("apply_cluster_pkey")),
        sa.CheckConstraint(
            "state IN ('waiting', 'running', 'done', 'refused', 'failed', 'skipped')",
            name=op.f("apply_cluster_state_check"),
        ),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "apply_cluster_open_idx",
        "apply_cluster",
        ["cluster", "apply"],
        postgresql_where=sa.text("state IN ('waiting', 'running')"),
    )
    op.create_index("apply_cluster_cluster_apply_idx", "apply_cluster", ["cluster", "apply"])
    op.create_table(
        "applied_cluster",
        sa.Column("cluster", NAME),
        sa.Column("apply", sa.BigInteger, nullable=False),
        sa.Column("applied_at", MOMENT, nullable=False),
        sa.Column("looked_at", MOMENT),
        sa.PrimaryKeyConstraint("cluster", name=op.f("applied_cluster_pkey")),
    )


def _drift() -> None:
    op.create_table(
        "drift",
        sa.Column("cluster", NAME),
        sa.Column("object_kind", NAME),
        sa.Column("object_name", NAME),
        sa.Column("field", NAME, server_default=""),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("team", NAME, nullable=False, server_default=""),
        sa.Column("wanted", JSONB),
        sa.Column("found", JSONB),
        _text("changed_by"),
        sa.Column("since", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "object_kind", "object_name", "field", name=op.f("drift_pkey")),
        sa.CheckConstraint(
            "kind IN ('changed', 'missing', 'extra', 'unmarked')", name=op.f("drift_kind_check")
        ),
    )


def _nudges() -> None:
    op.create_table(
        "nudge",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("at", MOMENT, nullable=False, server_default=sa.func.now()),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("promise", "verb", "job", "why")),
        sa.PrimaryKeyConstraint("id", name=op.f("nudge_pkey")),
    )
    op.create_index("nudge_cluster_id_idx", "nudge", ["cluster", "id"])
