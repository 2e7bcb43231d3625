"""What is kept. A test compares this with what the migrations make.

Nothing here refers to another table by foreign key: nodes, devices and totals of a cluster are replaced
together in one transaction under its lease, and a check per row would cost more than the write.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from fairway.ledger.job_records import EventKind, Wish
from fairway.ledger.policy_records import OPEN_STATES, ApplyKind, ApplyState, DriftKind
from fairway.model.access import Role
from fairway.model.job import OPEN_JOBS, Ending, JobState, When
from fairway.model.observation import Health

metadata: Final = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "pk": "%(table_name)s_pkey",
    }
)

VERSION_TABLE: Final = "ledger_version"
"""Where Alembic keeps which migration ran last."""

NONE: Final = ""
"""How "no pool" and "whole GPUs" are kept: a key cannot hold NULL, and no name is empty."""

# Bytewise order: the same on every server, whatever its locale, so that cursors stay valid.
Name: Final = Text(collation="C")
Moment: Final = DateTime(timezone=True)


def _listed(words: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{word.value}'" for word in words)


def _one_of(column: str, words: Iterable[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({_listed(words)})", name=column)


fleet_revision: Final = Table(
    "fleet_revision",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("created_by", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("text", Text, nullable=False),
)

cluster_state: Final = Table(
    "cluster_state",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("engine", Text, nullable=False, server_default=""),
    Column("engine_version", Text, nullable=False, server_default=""),
    Column("reachable", Boolean, nullable=False),
    Column("code", Text, nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
    Column("since", Moment, nullable=False),
    Column("attempted_at", Moment),
    Column("observed_at", Moment),
    # Of the nodes and devices last written: an equal observation need not be written again.
    Column("digest", LargeBinary),
    # Fencing token of the last writer.
    Column("token", BigInteger, nullable=False, server_default=text("0")),
)

node: Final = Table(
    "node",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("health", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("since", Moment, nullable=False),
    _one_of("health", Health),
)
# Nodes that are not ready are few, and the ones people look for.
Index("node_unready_idx", node.c.cluster, node.c.name, postgresql_where=text("health <> 'ready'"))

device: Final = Table(
    "device",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("node", Name, primary_key=True),
    Column("kind", Name, primary_key=True),
    Column("pool", Name, nullable=False, server_default=NONE),
    Column("slice", Name, nullable=False, server_default=NONE),
    Column("total", Integer, nullable=False),
    Column("in_use", Integer, nullable=False),
    Column("unhealthy", Integer, nullable=False),
)
Index("device_pool_idx", device.c.pool, device.c.cluster, device.c.node)

pool_total: Final = Table(
    "pool_total",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("pool", Name, primary_key=True, server_default=NONE),
    Column("slice", Name, primary_key=True, server_default=NONE),
    Column("total", Integer, nullable=False),
    Column("in_use", Integer, nullable=False),
    Column("free", Integer, nullable=False),
    Column("unhealthy", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("nodes_drained", Integer, nullable=False),
    Column("nodes_down", Integer, nullable=False),
    CheckConstraint("total = in_use + free + unhealthy", name="sum"),
)

# A row stays when its lease is given back and when its cluster leaves the fleet: tokens never start anew.
# Every renewal rewrites it, so pages keep room for the next version beside the last.
lease: Final = Table(
    "lease",
    metadata,
    Column("loop", Name, primary_key=True),
    Column("cluster", Name, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Moment, nullable=False),
    postgresql_with={"fillfactor": 50},
)

api_token: Final = Table(
    "api_token",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Name, nullable=False),
    Column("role", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used_at", Moment),
    # Whose it is; none: of the user called as the token is.
    Column("user_name", Name, nullable=False, server_default=NONE),
    UniqueConstraint("name"),
    UniqueConstraint("hash"),
    _one_of("role", Role),
)

web_session: Final = Table(
    "web_session",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    # The token somebody signed in with: the session ends with it. None: signed in by OIDC.
    Column("token", BigInteger),
    Column("user_name", Name, nullable=False),
    Column("role", Text, nullable=False),
    Column("issuer", Text, nullable=False, server_default=""),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("expires_at", Moment, nullable=False),
    _one_of("role", Role),
    Index("web_session_expires_at_idx", "expires_at"),
)

apply: Final = Table(
    "apply",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("created_by", Text, nullable=False),
    Column("revision", BigInteger),
    Column("force", Boolean, nullable=False),
    Column("objects", JSONB, nullable=False, server_default=text("'[]'")),
    _one_of("kind", ApplyKind),
    CheckConstraint("(kind = 'apply') = (revision IS NOT NULL)", name="revision"),
)

# Progress rewrites a row twice a second while it runs, without what is long in it.
apply_cluster: Final = Table(
    "apply_cluster",
    metadata,
    Column("apply", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster", Name, primary_key=True),
    Column("state", Text, nullable=False),
    Column("fingerprint", Text, nullable=False, server_default=""),
    Column("changes", JSONB, nullable=False, server_default=text("'[]'")),
    Column("total", Integer, nullable=False, server_default=text("0")),
    Column("done", Integer, nullable=False, server_default=text("0")),
    Column("current", Text, nullable=False, server_default=""),
    Column("code", Text, nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    # Fencing token of the last writer.
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    _one_of("state", ApplyState),
    postgresql_with={"fillfactor": 50},
)
# What is open is little, and asked for every second.
Index(
    "apply_cluster_open_idx",
    apply_cluster.c.cluster,
    apply_cluster.c.apply,
    postgresql_where=text(f"state IN ({_listed(OPEN_STATES)})"),
)
Index(None, apply_cluster.c.cluster, apply_cluster.c.apply)

applied_cluster: Final = Table(
    "applied_cluster",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("apply", BigInteger, nullable=False),
    Column("applied_at", Moment, nullable=False),
    Column("looked_at", Moment),
)

drift: Final = Table(
    "drift",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("object_kind", Name, primary_key=True),
    Column("object_name", Name, primary_key=True),
    Column("field", Name, primary_key=True, server_default=NONE),
    Column("kind", Text, nullable=False),
    Column("team", Name, nullable=False, server_default=NONE),
    Column("wanted", JSONB),
    Column("found", JSONB),
    Column("changed_by", Text, nullable=False, server_default=""),
    Column("since", Moment, nullable=False),
    _one_of("kind", DriftKind),
)

nudge: Final = Table(
    "nudge",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Name, nullable=False),
    Column("at", Moment, nullable=False, server_default=func.now()),
    Column("promise", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("why", Text, nullable=False),
)
Index(None, nudge.c.cluster, nudge.c.id)

# Jobs. One that is over is never touched again; whatever is asked every second has an index of open ones.

# What jobs have in common whose they are and where they go: few rows for very many jobs. A list of jobs by
# any of these finds its classes first, and then reads each class from its newest job on.
job_class: Final = Table(
    "job_class",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("cluster", Name, nullable=False),
    Column("user_name", Name, nullable=False, server_default=NONE),
    Column("team", Name, nullable=False, server_default=NONE),
    Column("pool", Name, nullable=False, server_default=NONE),
    Column("slice", Name, nullable=False, server_default=NONE),
    Column("priority", Name, nullable=False, server_default=NONE),
    Column("native", Boolean, nullable=False),
    UniqueConstraint(
        "cluster", "user_name", "team", "pool", "slice", "priority", "native", name="job_class_alike_key"
    ),
)
Index(None, job_class.c.user_name)
Index(None, job_class.c.team)
Index(None, job_class.c.pool)

_JOB_OPEN: Final = f"state IN ({_listed(OPEN_JOBS)})"

job: Final = Table(
    "job",
    metadata,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("class", Integer, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("state", Name, nullable=False),
    Column("wish", Text, nullable=False, server_default=Wish.RUN.value),
    # The wish is not yet so.
    Column("asked", Boolean, nullable=False, server_default=text("false")),
    Column("code", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False, server_default=""),
    Column("engine_id", Text),
    Column("array_first", BigInteger),
    Column("array_index", Integer),
    Column("gpus", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("devices", Integer, nullable=False),
    # Which time it is sent, from 1; 0: native.
    Column("submission", Integer, nullable=False),
    # What was not its fault is not counted.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("submitted_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("exit_code", Integer),
    Column("time_seconds", Integer),
    # Some of what it comes after has not ended well.
    Column("has_after", Boolean, nullable=False, server_default=text("false")),
    # Kept more than a minute after it was submitted: its id does not tell when that was. See `job_clock`.
    Column("late", Boolean, nullable=False, server_default=text("false")),
    Column("not_before", Moment, nullable=False, server_default=func.now()),
    Column("sending_until", Moment),
    Column("sent_at", Moment),
    _one_of("state", JobState),
    _one_of("wish", Wish),
    postgresql_with={"fillfactor": 85},
)
Index("job_class_idx", job.c["class"], job.c.state, job.c.id)
Index("job_state_idx", job.c.state, job.c.id)
Index("job_name_idx", job.c.name, job.c["class"], job.c.state, job.c.id)
Index("job_array_idx", job.c.array_first, job.c.id, postgresql_where=text("array_first IS NOT NULL"))
Index(
    "job_to_send_idx",
    job.c.cluster,
    job.c.not_before,
    job.c.id,
    postgresql_where=text(f"state = '{JobState.QUEUED.value}' AND NOT has_after"),
)
Index("job_asked_idx", job.c.cluster, job.c.id, postgresql_where=text("asked"))
Index(
    "job_open_idx",
    job.c.cluster,
    job.c["class"],
    job.c.state,
    postgresql_include=["devices", "engine_id", "sent_at"],
    postgresql_where=text(_JOB_OPEN),
)
Index("job_late_idx", job.c.id, postgresql_where=text("late"))

# One an array: its tasks' ids lead here by `array_first`. As text: what JSONB would refuse or reorder comes
# back as it was.
job_spec: Final = Table(
    "job_spec",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
    Column("why_there", Text, nullable=False),
    Column("submitted_by", Text, nullable=False),
)

# Every engine job there ever was, so that an old one seen again is not taken for a stranger.
engine_job: Final = Table(
    "engine_job",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("engine_id", Name, primary_key=True),
    Column("job", BigInteger, nullable=False),
    Column("submission", Integer, nullable=False),
    # Attempts of the job before this engine job's first.
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),
    # A second one of the same order.
    Column("double", Boolean, nullable=False, server_default=text("false")),
)

# A native array: what its tasks have in common, and the job of the first that was seen.
engine_array: Final = Table(
    "engine_array",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("engine_id", Name, primary_key=True),
    Column("job", BigInteger, nullable=False),
)

attempt: Final = Table(
    "attempt",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("engine_id", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("ending", Text),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("devices", Integer, nullable=False),
    Column("nodes", ARRAY(Text), nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    _one_of("ending", Ending),
)

# What is unusual in a job's life. That it was submitted and sent is told by its own row.
job_event: Final = Table(
    "job_event",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Moment, nullable=False, server_default=func.now()),
    Column("kind", Text, nullable=False),
    Column("by_whom", Text, nullable=False, server_default=""),
    Column("text", Text, nullable=False, server_default=""),
    _one_of("kind", EventKind),
)

# What is not yet fulfilled. Whoever ends a job settles the rows that wait for it; whoever sends the waiting
# one's cluster its jobs takes the settled rows away.
job_after: Final = Table(
    "job_after",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("after", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster", Name, nullable=False),
    Column("ending", Text, nullable=False),
    Column("whole_array", Boolean, nullable=False),
    # Whether it came true; NULL: open.
    Column("met", Boolean),
    _one_of("ending", When),
)
Index("job_after_open_idx", job_after.c.after, postgresql_where=text("met IS NULL"))
Index("job_after_settled_idx", job_after.c.cluster, postgresql_where=text("met IS NOT NULL"))

submission_key: Final = Table(
    "submission_key",
    metadata,
    Column("by_whom", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    # As ranges: "17-2016,2040-2041".
    Column("ids", Text, nullable=False),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
)

mirror_mark: Final = Table(
    "mirror_mark",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("mark", Text, nullable=False),
    Column("at", Moment, nullable=False),
)

# One row, made by the migration.
ledger_mark: Final = Table("ledger_mark", metadata, Column("mark", Text, primary_key=True))

# Which id was given in which minute, so that an age becomes a range of ids.
job_clock: Final = Table(
    "job_clock",
    metadata,
    Column("minute", Moment, primary_key=True),
    Column("job", BigInteger, nullable=False),
)
