"""Jobs, their attempts and events, what they come after; whose a token is."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0003"
down_revision = "0002"

NAME = sa.Text(collation="C")
MOMENT = sa.DateTime(timezone=True)
OPEN = "state IN ('queued', 'waiting', 'held', 'running')"
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


def upgrade() -> None:
    _tokens()
    _jobs()
    _engine_jobs()
    _histories()
    _afters()
    _marks()


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, NAME, nullable=False)


def _text(name: str, default: str | None = "") -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default=default)


def _id(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def _number(name: str, default: str | None = None) -> sa.Column[int]:
    return sa.Column(
        name, sa.Integer, nullable=False, autoincrement=False, server_default=default and sa.text(default)
    )


def _no(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.text("false"))


def _tokens() -> None:
    op.add_column("api_token", sa.Column("user_name", NAME, nullable=False, server_default=""))
    op.drop_constraint(op.f("api_token_role_check"), "api_token")
    op.create_check_constraint(
        op.f("api_token_role_check"), "api_token", "role IN ('viewer', 'member', 'lead', 'operator', 'admin')"
    )


def _jobs() -> None:
    op.create_table(
        "job_class",
        sa.Column("id", sa.Integer, sa.Identity(always=True)),
        _name("cluster"),
        *(
            sa.Column(name, NAME, nullable=False, server_default="")
            for name in ("user_name", "team", "pool", "slice", "priority")
        ),
        sa.Column("native", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("job_class_pkey")),
        sa.UniqueConstraint(
            "cluster",
            "user_name",
            "team",
            "pool",
            "slice",
            "priority",
            "native",
            name=op.f("job_class_alike_key"),
        ),
    )
    for column in ("user_name", "team", "pool"):
        op.create_index(f"job_class_{column}_idx", "job_class", [column])
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger, sa.Identity(always=False)),
        _number("class"),
        _name("cluster"),
        _name("name"),
        _name("state"),
        _text("wish", "run"),
        _no("asked"),
        _text("code"),
        _text("reason"),
        sa.Column("engine_id", sa.Text),
        sa.Column("array_first", sa.BigInteger),
        sa.Column("array_index", sa.Integer),
        _number("gpus"),
        _number("nodes"),
        _number("devices"),
        _number("submission"),
        _number("failures", "0"),
        _number("attempts", "0"),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("ended_at", MOMENT),
        sa.Column("exit_code", sa.Integer),
        sa.Column("time_seconds", sa.Integer),
        _no("has_after"),
        _no("late"),
        sa.Column("not_before", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("sending_until", MOMENT),
        sa.Column("sent_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("job_pkey")),
        sa.CheckConstraint(
            "state IN ('queued', 'waiting', 'held', 'running', 'done', 'failed', 'cancelled', 'timed-out',"
            " 'refused', 'lost')",
            name=op.f("job_state_check"),
        ),
        sa.CheckConstraint("wish IN ('run', 'hold', 'cancel')", name=op.f("job_wish_check")),
        postgresql_with={"fillfactor": 85},
    )
    op.create_index("job_class_idx", "job", ["class", "state", "id"])
    op.create_index("job_state_idx", "job", ["state", "id"])
    op.create_index("job_name_idx", "job", ["name", "class", "state", "id"])
    op.create_index(
        "job_array_idx", "job", ["array_first", "id"], postgresql_where=sa.text("array_first IS NOT NULL")
    )
    op.create_index(
        "job_to_send_idx",
        "job",
        ["cluster", "not_before", "id"],
        postgresql_where=sa.text("state = 'queued' AND NOT has_after"),
    )
    op.create_index("job_asked_idx", "job", ["cluster", "id"], postgresql_where=sa.text("asked"))
    op.create_index(
        "job_open_idx",
        "job",
        ["cluster", "class", "state"],
        postgresql_include=["devices", "engine_id", "sent_at"],
        postgresql_where=sa.text(OPEN),
    )
    op.create_index("job_late_idx", "job", ["id"], postgresql_where=sa.text("late"))
    op.create_table(
        "job_spec",
        _id("job"),
        *(_text(name, None) for name in ("spec", "why_there", "submitted_by")),
        sa.PrimaryKeyConstraint("job", name=op.f("job_spec_pkey")),
    )


def _engine_jobs() -> None:
    op.create_table(
        "engine_job",
        _name("cluster"),
        _name("engine_id"),
        _id("job"),
        _number("submission"),
        _number("attempts_before", "0"),
        _no("double"),
        sa.PrimaryKeyConstraint("cluster", "engine_id", name=op.f("engine_job_pkey")),
    )
    op.create_table(
        "engine_array",
        _name("cluster"),
        _name("engine_id"),
        _id("job"),
        sa.PrimaryKeyConstraint("cluster", "engine_id", name=op.f("engine_array_pkey")),
    )


def _histories() -> None:
    op.create_table(
        "attempt",
        _id("job"),
        _number("number"),
        _text("engine_id", None),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("ending", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.Column("signal", sa.Integer),
        _number("devices"),
        sa.Column("nodes", ARRAY(sa.Text), nullable=False),
        _text("reason"),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("attempt_pkey")),
        sa.CheckConstraint(
            "ending IN ('done', 'failed', 'cancelled', 'timed-out', 'preempted', 'requeued', 'node-lost',"
            " 'lost')",
            name=op.f("attempt_ending_check"),
        ),
    )
    op.create_table(
        "job_event",
        _id("job"),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        sa.Column("at", MOMENT, nullable=False, server_default=sa.func.now()),
        _text("kind", None),
        _text("by_whom"),
        _text("text"),
        sa.PrimaryKeyConstraint("job", "id", name=op.f("job_event_pkey")),
        sa.CheckConstraint(
            "kind IN ('submitted', 'sent', 'refused', 'retry', 'held', 'released', 'cancelled',"
            " 'not-started', 'double')",
            name=op.f("job_event_kind_check"),
        ),
    )


def _afters() -> None:
    op.create_table(
        "job_after",
        _id("job"),
        _id("after"),
        _name("cluster"),
        _text("ending", None),
        sa.Column("whole_array", sa.Boolean, nullable=False),
        sa.Column("met", sa.Boolean),
        sa.PrimaryKeyConstraint("job", "after", name=op.f("job_after_pkey")),
        sa.CheckConstraint("ending IN ('ok', 'failed', 'ended')", name=op.f("job_after_ending_check")),
    )
    op.create_index("job_after_open_idx", "job_after", ["after"], postgresql_where=sa.text("met IS NULL"))
    op.create_index(
        "job_after_settled_idx", "job_after", ["cluster"], postgresql_where=sa.text("met IS NOT NULL")
    )


def _marks() -> None:
    op.create_table(
        "submission_key",
        _name("by_whom"),
        _name("key"),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        _text("ids", None),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("by_whom", "key", name=op.f("submission_key_pkey")),
    )
    op.create_table(
        "mirror_mark",
        _name("cluster"),
        _text("mark", None),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("mirror_mark_pkey")),
    )
    marks = op.create_table(
        "ledger_mark", _text("mark", None), sa.PrimaryKeyConstraint("mark", name=op.f("ledger_mark_pkey"))
    )
    op.bulk_insert(marks, [{"mark": "".join(secrets.choice(DIGITS) for _ in range(4))}])
    op.create_table(
        "job_clock",
        sa.Column("minute", MOMENT, nullable=False),
        _id("job"),
        sa.PrimaryKeyConstraint("minute", name=op.f("job_clock_pkey")),
    )
