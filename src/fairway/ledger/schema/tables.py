"""Define all tables except those of jobs (`schema.jobs`) and cost (`schema.costs`).

A test compares them with what the migrations create. No table refers to another by foreign key: nodes,
devices and totals of a cluster are replaced together in one transaction under its lease, and a check per row
would cost more than the write.
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
from sqlalchemy.dialects.postgresql import JSONB

from fairway.model.access import Role
from fairway.model.apply import OPEN_STATES, ApplyKind, ApplyState, DriftKind, Lifted
from fairway.model.condition import ConditionType
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
"""The table in which Alembic stores the current migration."""

NONE: Final = ""
"""The stored form of "no pool" and "whole GPUs": a key cannot hold NULL, and no name is empty."""

# Bytewise order: the same on every server, whatever its locale, so that cursors stay valid.
Name: Final = Text(collation="C")
Moment: Final = DateTime(timezone=True)


def sql_list(members: Iterable[StrEnum]) -> str:
    """Format enum values as an SQL list."""
    return ", ".join(f"'{member.value}'" for member in members)


OPEN_APPLIES_SQL: Final = sql_list(OPEN_STATES)
"""The states of open applies, for `state IN (…)`."""


def one_of(column: str, members: Iterable[StrEnum]) -> CheckConstraint:
    """Return a check constraint: the column holds one of these values."""
    return CheckConstraint(f"{column} IN ({sql_list(members)})", name=column)


fleet_revision: Final = Table(
    "fleet_revision",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("created_by", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("text", Text, nullable=False),
)

# Clusters that left the fleet, and when they were last observed: their open jobs are not tracked any more.
left_cluster: Final = Table(
    "left_cluster",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("left_at", Moment, nullable=False, server_default=func.now()),
    Column("seen_at", Moment, nullable=False),
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
    # Of the nodes and devices last written: an equal observation is not written again.
    Column("digest", LargeBinary),
    # Fencing token of the last writer.
    Column("token", BigInteger, nullable=False, server_default=text("0")),
)

# What is wrong with a cluster beside not being reachable; a row goes when it is no longer so.
cluster_condition: Final = Table(
    "cluster_condition",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("type", Name, primary_key=True),
    Column("code", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    Column("since", Moment, nullable=False),
    one_of("type", ConditionType),
)

# The number of a team's colour in charts: given once, so that no other team's colour ever changes.
team_colour: Final = Table(
    "team_colour",
    metadata,
    Column("team", Name, primary_key=True),
    Column("number", Integer, nullable=False),
)

node: Final = Table(
    "node",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("health", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("since", Moment, nullable=False),
    one_of("health", Health),
)
# Nodes that are not ready are few, and the ones users look for.
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

# A row stays when its lease is released and when its cluster leaves the fleet: tokens never start over.
# Every renewal rewrites it, so pages leave room for the next version beside the last.
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
    # The user the token acts as; empty: the user of the same name as the token.
    Column("user_name", Name, nullable=False, server_default=NONE),
    UniqueConstraint("name"),
    UniqueConstraint("hash"),
    one_of("role", Role),
)

web_session: Final = Table(
    "web_session",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    # The token used to sign in: the session ends with it. NULL: signed in by OIDC.
    Column("token", BigInteger),
    Column("user_name", Name, nullable=False),
    Column("role", Text, nullable=False),
    Column("issuer", Text, nullable=False, server_default=""),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("expires_at", Moment, nullable=False),
    one_of("role", Role),
    Index("web_session_expires_at_idx", "expires_at"),
)

# Sign-ins of the command line that wait for a person, by the hash of the secret that it has alone.
login_request: Final = Table(
    "login_request",
    metadata,
    Column("challenge", LargeBinary, primary_key=True),
    # What the person enters, or what is in the address if the answer goes to a port of their own machine.
    Column("user_code", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("port", Integer),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("expires_at", Moment, nullable=False),
    Column("refused", Boolean, nullable=False, server_default=text("false")),
    # Who confirmed it; NULL: nobody yet.
    Column("user_name", Name),
    Column("role", Text),
    Column("issuer", Text, nullable=False, server_default=""),
    Column("code_hash", LargeBinary),
    Column("token_expires_at", Moment),
    UniqueConstraint("user_code"),
    one_of("role", Role),
    Index("login_request_expires_at_idx", "expires_at"),
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
    Column("reprice_past", Boolean, nullable=False, server_default=text("false")),
    one_of("kind", ApplyKind),
    CheckConstraint("(kind = 'apply') = (revision IS NOT NULL)", name="revision"),
)

# Progress rewrites a row twice a second while an apply runs, but not its long columns.
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
    one_of("state", ApplyState),
    postgresql_with={"fillfactor": 50},
)
# Open rows are few, and queried every second.
Index(
    "apply_cluster_open_idx",
    apply_cluster.c.cluster,
    apply_cluster.c.apply,
    postgresql_where=text(f"state IN ({OPEN_APPLIES_SQL})"),
)
Index(None, apply_cluster.c.cluster, apply_cluster.c.apply)

applied_cluster: Final = Table(
    "applied_cluster",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("apply", BigInteger, nullable=False),
    Column("applied_at", Moment, nullable=False),
    Column("looked_at", Moment),
    # Why, by whom and since when it is no longer enforced; empty: it is.
    Column("lifted", Text, nullable=False, server_default=""),
    Column("lifted_by", Text, nullable=False, server_default=""),
    Column("lifted_at", Moment),
    CheckConstraint(f"lifted IN ('', {sql_list(Lifted)})", name="lifted"),
)

# What Fairway found before it first changed it. NULL: nothing, Fairway created the object.
saved_object: Final = Table(
    "saved_object",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("kind", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("fields", JSONB, nullable=False, server_default=text("'{}'")),
    Column("record", JSONB),
    Column("saved_at", Moment, nullable=False, server_default=func.now()),
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
    one_of("kind", DriftKind),
)

intervention: Final = Table(
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
Index(None, intervention.c.cluster, intervention.c.id)
