"""Define the tables of jobs. A test compares them with what the migrations create.

An ended job's row is never written again; whatever is queried every second has a partial index of open jobs.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Column,
    Date,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from fairway.ledger.records.jobs import DesiredState, EventKind
from fairway.ledger.schema.tables import NONE, Moment, Name, metadata, one_of, sql_list
from fairway.model.job import OPEN_JOBS, Ending, JobState, When

# The owner and placement that many jobs have in common: few rows for very many jobs. A list of jobs by any of
# these columns finds its classes first, and then reads each class from its newest job on.
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
    # The kind of workload on Kubernetes; empty: a job.
    Column("kind", Name, nullable=False, server_default=NONE),
    # Runs until somebody ends it; its attempts are replicas.
    Column("service", Boolean, nullable=False, server_default=text("false")),
    Column("project", Name, nullable=False, server_default=NONE),
    # Of the keys in the fleet file's cost.labels only. `label_value` bounds their values.
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    UniqueConstraint(
        *("cluster", "user_name", "team", "pool", "slice", "priority", "native", "kind", "service"),
        *("project", "labels"),
        name="job_class_alike_key",
    ),
)
Index(None, job_class.c.user_name)
Index(None, job_class.c.team)
Index(None, job_class.c.pool)
Index(None, job_class.c.project)

# The values that count apart in sums of usage, and when each was first used. Further ones are `(other)`.
label_value: Final = Table(
    "label_value",
    metadata,
    # Empty: projects.
    Column("key", Name, primary_key=True),
    Column("value", Name, primary_key=True),
    Column("added_at", Moment, nullable=False, server_default=func.now()),
)

OPEN_JOBS_SQL: Final = sql_list(OPEN_JOBS)
"""The states of open jobs, for `state IN (…)`."""

job: Final = Table(
    "job",
    metadata,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("class", Integer, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("state", Name, nullable=False),
    Column("wish", Text, nullable=False, server_default=DesiredState.RUN.value),
    # The engine job is not yet as requested.
    Column("asked", Boolean, nullable=False, server_default=text("false")),
    # Fairway's own: why it is not sent, was refused or not started.
    Column("code", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False, server_default=""),
    # What the engine's reason for its waiting means, as a code of `explain.reasons`.
    Column("reason_code", Text, nullable=False, server_default=""),
    Column("engine_id", Text),
    Column("array_first", BigInteger),
    Column("array_index", Integer),
    Column("gpus", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("devices", Integer, nullable=False),
    # Replicas that run now; NULL: it has one attempt at a time.
    Column("replicas", Integer),
    # Which time it is sent, from 1; 0: native.
    Column("submission", Integer, nullable=False),
    # Failures that were not the job's fault are not counted.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("submitted_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("exit_code", Integer),
    Column("time_seconds", Integer),
    # Has dependencies that are not yet met.
    Column("has_after", Boolean, nullable=False, server_default=text("false")),
    # Stored more than a minute after it was submitted: its id does not show when that was. See `job_clock`.
    Column("late", Boolean, nullable=False, server_default=text("false")),
    Column("not_before", Moment, nullable=False, server_default=func.now()),
    Column("sending_until", Moment),
    Column("sent_at", Moment),
    one_of("state", JobState),
    one_of("wish", DesiredState),
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
    postgresql_where=text(f"state IN ({OPEN_JOBS_SQL})"),
)
Index("job_late_idx", job.c.id, postgresql_where=text("late"))
Index("job_late_submitted_idx", job.c.submitted_at, postgresql_where=text("late"))

# One row per array, which its tasks refer to by `array_first`. As text, because JSONB refuses some strings
# and reorders keys.
job_spec: Final = Table(
    "job_spec",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
    Column("why_there", Text, nullable=False),
    Column("submitted_by", Text, nullable=False),
)

# Every engine job there ever was, so that an old one that is reported again is not taken for a native job.
engine_job: Final = Table(
    "engine_job",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("engine_id", Name, primary_key=True),
    Column("job", BigInteger, nullable=False),
    Column("submission", Integer, nullable=False),
    # Attempts of the job before this engine job's first.
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),
    # A second engine job of the same order.
    Column("double", Boolean, nullable=False, server_default=text("false")),
)

# A native array: the engine id that its tasks share, and the job of the first task that was reported.
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
    # The pod, of a job whose pods hold their GPUs each on its own: several such attempts run at once.
    Column("replica", Name, nullable=False, server_default=NONE),
    one_of("ending", Ending),
)
# A service may have had very many replicas: a report reads those that it names and those that run.
Index(
    "attempt_replica_idx",
    attempt.c.job,
    attempt.c.replica,
    attempt.c.started_at,
    postgresql_where=text("replica <> ''"),
)
Index("attempt_open_replica_idx", attempt.c.job, postgresql_where=text("replica <> '' AND ending IS NULL"))

# Unusual events of a job. That it was submitted and sent follows from its own row.
job_event: Final = Table(
    "job_event",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Moment, nullable=False, server_default=func.now()),
    Column("kind", Text, nullable=False),
    Column("by_whom", Text, nullable=False, server_default=""),
    Column("text", Text, nullable=False, server_default=""),
    one_of("kind", EventKind),
)

# The change that was requested last of a job that has not started, until it is made or refused. Only the
# dispatch loop of the job's cluster makes changes, so that no order is sent with old values meanwhile.
job_change: Final = Table(
    "job_change",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    # A later request replaces an earlier one, and has another number.
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("cluster", Name, nullable=False),
    Column("class", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    # Empty: as it was.
    Column("why_there", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("time_seconds", Integer),
    Column("text", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("requested_at", Moment, nullable=False, server_default=func.now()),
)
Index(None, job_change.c.cluster, job_change.c.id)

# Open dependencies. Whoever ends a job settles the rows that wait for it; the dispatch loop of the waiting
# job's cluster removes the settled rows.
job_after: Final = Table(
    "job_after",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("after", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster", Name, nullable=False),
    Column("ending", Text, nullable=False),
    Column("whole_array", Boolean, nullable=False),
    # Whether the dependency is met; NULL: open.
    Column("met", Boolean),
    one_of("ending", When),
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

# The first id that was assigned in each minute, so that an age becomes a range of ids.
job_clock: Final = Table(
    "job_clock",
    metadata,
    Column("minute", Moment, primary_key=True),
    Column("job", BigInteger, nullable=False),
)

# How long the jobs of a group ran: `simulate.run_times` computes the key and reads and writes the histogram.
run_time_histogram: Final = Table(
    "run_time_histogram",
    metadata,
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("histogram", LargeBinary, nullable=False),
    # A day, not a moment: of the many updates of a row, few change it.
    Column("used_on", Date, nullable=False),
    postgresql_with={"fillfactor": 70},
)

# Queue of attempts that ended by themselves. Whoever records the end adds a row in the same transaction; the
# loop that learns removes it in the one that writes the histograms.
run_to_learn: Final = Table(
    "run_to_learn",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
)

# One row, made by the migration: from which job on the history from before the queue is still to be learnt.
# 0: from the first that is recent enough; NULL: it has been learnt.
run_time_mark: Final = Table("run_time_mark", metadata, Column("next_job", BigInteger))

# When each waiting job is expected to start; replaced every minute, cluster by cluster.
job_forecast: Final = Table(
    "job_forecast",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster", Name, nullable=False),
    # Of which moment the forecast is.
    Column("computed_at", Moment, nullable=False),
    # A tenth, half and nine tenths of the futures have it start by then; NULL: fewer do.
    Column("earliest", Moment),
    Column("expected", Moment),
    Column("latest", Moment),
    Column("started", REAL, nullable=False),
    Column("futures", Integer, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("refused", Text, nullable=False),
    Index("job_forecast_cluster_idx", "cluster"),
    postgresql_with={"fillfactor": 50},
)

# A few forecasts of each round, as they were before calibration, and when the jobs started. At most some
# thousands of each cluster.
forecast_check: Final = Table(
    "forecast_check",
    metadata,
    Column("cluster", Name, primary_key=True),
    Column("computed_at", Moment, primary_key=True),
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("earliest", Moment, nullable=False),
    Column("latest", Moment, nullable=False),
    # NULL: it still waits.
    Column("started_at", Moment),
)
