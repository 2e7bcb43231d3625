"""Define the tables of GPU use. A test compares them with what the migrations create.

Each metric has two columns: its integral over time, and the seconds in which it was measured. What nobody
measured is not stored: it is what usage has beyond `engine_seconds`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    func,
    text,
)

from fairway.ledger.schema.tables import Moment, Name, metadata, one_of
from fairway.model.gpu_health import EventClass
from fairway.model.gpu_use import MetricCode
from fairway.model.idle import IdleAction, IdleOutcome

SUMS: Final = tuple(name for code in MetricCode for name in (code.value, f"{code.value}_seconds"))
"""The integral of each metric and how long it was measured."""
ADDED: Final = (*SUMS, "idle")
"""Columns that are added up."""
PEAK: Final = "memory_peak"
HOST: Final = ("cpu", "cpu_given", "cpu_seconds", "io_wait", "io_wait_seconds")
"""What is known of the host around a job's GPUs."""
LATEST: Final = ("engine", "sm", "tensor", "dram", "memory", "power")
"""Metrics whose mean in the last window is stored by GPU, as `last_engine` and so on."""


def _sum(name: str) -> Column[Any]:
    return Column(name, Double, nullable=False, server_default=text("0"))


def _use() -> tuple[Column[Any], ...]:
    return *(_sum(name) for name in ADDED), Column(PEAK, Double)


def _key(name: str, kind: Any = Name) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


# By job and hour, for the course of a job; with core-seconds busy and given of the seconds in which both were
# measured, and node-seconds in which tasks waited for storage of those measured. Reports by name read all
# rows of their hours, which lie side by side, so that an index of blocks suffices.
job_use: Final = Table(
    "job_use",
    metadata,
    _key("job", BigInteger()),
    _key("hour", Moment),
    *_use(),
    *(_sum(n) for n in HOST),
    Index("job_use_hour_idx", "hour", postgresql_using="brin"),
)

# By job and GPU over its whole life, so that one that lags behind the others is seen.
# The start and the means of the last window in which it was measured show what it does now.
gpu_use: Final = Table(
    "gpu_use",
    metadata,
    _key("job", BigInteger()),
    _key("node"),
    _key("gpu"),
    _key("instance"),
    *_use(),
    Column("last_at", Moment),
    *(Column(f"last_{name}", Double) for name in LATEST),
)

# The same by hour, for the last hours of running jobs.
gpu_hour: Final = Table(
    "gpu_hour",
    metadata,
    _key("job", BigInteger()),
    _key("hour", Moment),
    _key("node"),
    _key("gpu"),
    _key("instance"),
    Column("cluster", Name, nullable=False),
    *_use(),
    Index("gpu_hour_old_idx", "cluster", "hour"),
)

# By class, as `usage_hour` and `usage_day` are.
use_hour: Final = Table("use_hour", metadata, _key("hour", Moment), _key("class", Integer()), *_use())
use_day: Final = Table("use_day", metadata, _key("day", Date()), _key("class", Integer()), *_use())

# By node and hour: all of its GPUs, and of them those that jobs held.
node_use: Final = Table(
    "node_use",
    metadata,
    _key("cluster"),
    _key("hour", Moment),
    _key("node"),
    Column("measured", Double, nullable=False),
    Column("busy", Double, nullable=False),
    _sum("held_measured"),
    _sum("held_busy"),
)

# The last day of running jobs, window by window, for rules about idle GPUs.
job_window: Final = Table(
    "job_window",
    metadata,
    _key("job", BigInteger()),
    _key("started_at", Moment),
    Column("cluster", Name, nullable=False),
    Column("measured", Double, nullable=False),
    Column("busy", Double, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("idle_gpus", Integer, nullable=False),
    Column("memory_peak", Double),
    Index("job_window_old_idx", "cluster", "started_at"),
)

# Up to when a cluster is read; moved in the transaction that adds the window.
telemetry_mark: Final = Table(
    "telemetry_mark",
    metadata,
    _key("cluster"),
    Column("read_to", Moment, nullable=False),
    Column("interval_seconds", Double, nullable=False),
)

# Where exporters show an attempt: what they may call it, and its GPUs where the engine tells. For a month.
attempt_gpu: Final = Table(
    "attempt_gpu",
    metadata,
    _key("job", BigInteger()),
    _key("attempt", Integer()),
    _key("node"),
    Column("cluster", Name, nullable=False),
    Column("holders", ARRAY(Text), nullable=False),
    Column("gpus", ARRAY(Integer), nullable=False),
    # Of an attempt that ended; NULL while it runs.
    Column("ended_at", Moment),
    Index("attempt_gpu_cluster_idx", "cluster", "ended_at"),
)

# What went wrong with GPUs; what lasts is one row. Rows are deleted after `KEEP_EVENTS_SECONDS`.
gpu_event: Final = Table(
    "gpu_event",
    metadata,
    _key("cluster"),
    _key("node"),
    _key("gpu"),
    _key("code"),
    _key("at", Moment),
    Column("last_seen", Moment, nullable=False),
    # By the ledger's clock: what was recorded since a server last looked.
    Column("recorded_at", Moment, nullable=False, server_default=func.now()),
    Column("class", Text, nullable=False),
    Column("uuid", Name, nullable=False),
    Column("serial", Name, nullable=False),
    Column("model", Text, nullable=False),
    Column("detail", Text, nullable=False),
    # Who held the GPU when it began; NULL if nobody did or nobody knows.
    Column("job", BigInteger),
    Column("attempt", Integer),
    Column("onset_known", Boolean, nullable=False),
    one_of("class", EventClass),
    Index("gpu_event_seen_idx", "cluster", "last_seen"),
    Index("gpu_event_uuid_idx", "uuid", "at"),
)
Index("gpu_event_job_idx", gpu_event.c.job, postgresql_where=gpu_event.c.job.is_not(None))

# Up to when the health of a cluster's GPUs is known for sure.
health_mark: Final = Table(
    "health_mark",
    metadata,
    _key("cluster"),
    Column("read_at", Moment, nullable=False),
    Column("settled_to", Moment, nullable=False),
)

# Failures that hardware explains and that used up no retry, with the node to avoid.
spared_attempt: Final = Table(
    "spared_attempt",
    metadata,
    _key("job", BigInteger()),
    _key("attempt", Integer()),
    _key("node"),
    Column("reason", Text, nullable=False),
)

# Nodes that Fairway closed to new jobs. `lifted_at` is set when that was lifted, or the node was gone.
cordon: Final = Table(
    "cordon",
    metadata,
    _key("cluster"),
    _key("node"),
    _key("at", Moment),
    Column("reason", Text, nullable=False),
    # When the engine confirmed it; NULL while it is still to be done.
    Column("done_at", Moment),
    Column("lift_asked_by", Text),
    Column("lifted_at", Moment),
    Index("cordon_open_idx", "cluster", "node", postgresql_where=text("lifted_at IS NULL")),
)

# A step of an idle rule, written before the engine is asked; `outcome` follows.
idle_action: Final = Table(
    "idle_action",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("job", BigInteger, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("rule", Name, nullable=False),
    Column("action", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("idle_since", Moment, nullable=False),
    Column("dry_run", Boolean, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("outcome", Text),
    Column("detail", Text, nullable=False, server_default=""),
    one_of("action", IdleAction),
    one_of("outcome", IdleOutcome),
    Index("idle_action_job_idx", "job", "id"),
    Index("idle_action_open_idx", "cluster", "id", postgresql_where=text("outcome IS NULL")),
)

# Until when idle rules leave a job alone, because somebody asked for it.
job_keep: Final = Table(
    "job_keep",
    metadata,
    _key("job", BigInteger()),
    Column("until", Moment, nullable=False),
    Column("by_whom", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("at", Moment, nullable=False, server_default=func.now()),
)
