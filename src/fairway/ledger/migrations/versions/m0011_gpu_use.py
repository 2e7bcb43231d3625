"""What GPUs did is stored by job, hour, team and node."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
LOSES = "what was measured of jobs' GPUs: Prometheus has it for as long as it keeps samples"

_METRICS = ("engine", "sm", "tensor", "dram", "memory", "power", "pcie", "nvlink")
_ADDED = (*(name for metric in _METRICS for name in (metric, f"{metric}_seconds")), "idle")
_USE = ", ".join(f"{name} double precision NOT NULL DEFAULT 0" for name in _ADDED)
_USE += ", memory_peak double precision"
_LATEST = ", ".join(
    f"last_{name} double precision" for name in ("engine", "sm", "tensor", "dram", "memory", "power")
)

TABLES = f"""
CREATE TABLE job_use (
    job bigint NOT NULL,
    hour timestamptz NOT NULL,
    {_USE},
    cpu double precision NOT NULL DEFAULT 0,
    cpu_given double precision NOT NULL DEFAULT 0,
    cpu_seconds double precision NOT NULL DEFAULT 0,
    io_wait double precision NOT NULL DEFAULT 0,
    io_wait_seconds double precision NOT NULL DEFAULT 0,
    CONSTRAINT job_use_pkey PRIMARY KEY (job, hour)
);
CREATE INDEX job_use_hour_idx ON job_use USING brin (hour);
CREATE TABLE gpu_use (
    job bigint NOT NULL,
    node text COLLATE "C" NOT NULL,
    gpu text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    {_USE},
    last_at timestamptz,
    {_LATEST},
    CONSTRAINT gpu_use_pkey PRIMARY KEY (job, node, gpu, instance)
);
CREATE TABLE gpu_hour (
    job bigint NOT NULL,
    hour timestamptz NOT NULL,
    node text COLLATE "C" NOT NULL,
    gpu text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    {_USE},
    CONSTRAINT gpu_hour_pkey PRIMARY KEY (job, hour, node, gpu, instance)
);
CREATE INDEX gpu_hour_old_idx ON gpu_hour (cluster, hour);
CREATE TABLE use_hour (
    hour timestamptz NOT NULL,
    class integer NOT NULL,
    {_USE},
    CONSTRAINT use_hour_pkey PRIMARY KEY (hour, class)
);
CREATE TABLE use_day (
    day date NOT NULL,
    class integer NOT NULL,
    {_USE},
    CONSTRAINT use_day_pkey PRIMARY KEY (day, class)
);
CREATE TABLE node_use (
    cluster text COLLATE "C" NOT NULL,
    hour timestamptz NOT NULL,
    node text COLLATE "C" NOT NULL,
    measured double precision NOT NULL,
    busy double precision NOT NULL,
    held_measured double precision NOT NULL DEFAULT 0,
    held_busy double precision NOT NULL DEFAULT 0,
    CONSTRAINT node_use_pkey PRIMARY KEY (cluster, hour, node)
);
CREATE TABLE job_window (
    job bigint NOT NULL,
    started_at timestamptz NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    measured double precision NOT NULL,
    busy double precision NOT NULL,
    gpus integer NOT NULL,
    idle_gpus integer NOT NULL,
    memory_peak double precision,
    CONSTRAINT job_window_pkey PRIMARY KEY (job, started_at)
);
CREATE INDEX job_window_old_idx ON job_window (cluster, started_at);
CREATE TABLE telemetry_mark (
    cluster text COLLATE "C" NOT NULL,
    read_to timestamptz NOT NULL,
    interval_seconds double precision NOT NULL,
    CONSTRAINT telemetry_mark_pkey PRIMARY KEY (cluster)
);
CREATE TABLE attempt_gpu (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    node text COLLATE "C" NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    holders text[] NOT NULL,
    gpus integer[] NOT NULL,
    ended_at timestamptz,
    CONSTRAINT attempt_gpu_pkey PRIMARY KEY (job, attempt, node)
);
CREATE INDEX attempt_gpu_cluster_idx ON attempt_gpu (cluster, ended_at);
CREATE TABLE notice (
    id bigint GENERATED ALWAYS AS IDENTITY,
    key text COLLATE "C" NOT NULL,
    subject text NOT NULL,
    text text NOT NULL,
    team text COLLATE "C",
    "user" text COLLATE "C",
    job bigint,
    operators boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    due_at timestamptz DEFAULT now(),
    CONSTRAINT notice_pkey PRIMARY KEY (id),
    CONSTRAINT notice_key_key UNIQUE (key)
);
CREATE INDEX notice_due_idx ON notice (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX notice_old_idx ON notice (created_at);
CREATE TABLE notice_delivery (
    notice bigint NOT NULL,
    channel text COLLATE "C" NOT NULL,
    attempts integer NOT NULL,
    delivered_at timestamptz,
    error text,
    CONSTRAINT notice_delivery_pkey PRIMARY KEY (notice, channel)
);
CREATE TABLE gpu_event (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    gpu text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    last_seen timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    class text NOT NULL,
    uuid text COLLATE "C" NOT NULL,
    serial text COLLATE "C" NOT NULL,
    model text NOT NULL,
    detail text NOT NULL,
    job bigint,
    attempt integer,
    onset_known boolean NOT NULL,
    CONSTRAINT gpu_event_pkey PRIMARY KEY (cluster, node, gpu, code, at),
    CONSTRAINT gpu_event_class_check
        CHECK (class IN ('hardware', 'reset', 'warning', 'unknown', 'application'))
);
CREATE INDEX gpu_event_seen_idx ON gpu_event (cluster, last_seen);
CREATE INDEX gpu_event_uuid_idx ON gpu_event (uuid, at);
CREATE INDEX gpu_event_job_idx ON gpu_event (job) WHERE job IS NOT NULL;
CREATE TABLE health_mark (
    cluster text COLLATE "C" NOT NULL,
    read_at timestamptz NOT NULL,
    settled_to timestamptz NOT NULL,
    CONSTRAINT health_mark_pkey PRIMARY KEY (cluster)
);
CREATE TABLE spared_attempt (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    node text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    CONSTRAINT spared_attempt_pkey PRIMARY KEY (job, attempt, node)
);
CREATE TABLE cordon (
    cluster text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    reason text NOT NULL,
    done_at timestamptz,
    lift_asked_by text,
    lifted_at timestamptz,
    CONSTRAINT cordon_pkey PRIMARY KEY (cluster, node, at)
);
CREATE INDEX cordon_open_idx ON cordon (cluster, node) WHERE lifted_at IS NULL;
"""

IDLE = """
CREATE TABLE idle_action (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job bigint NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    rule text COLLATE "C" NOT NULL,
    action text NOT NULL,
    at timestamptz NOT NULL,
    idle_since timestamptz NOT NULL,
    dry_run boolean NOT NULL,
    evidence text NOT NULL,
    outcome text,
    detail text NOT NULL DEFAULT '',
    CONSTRAINT idle_action_pkey PRIMARY KEY (id),
    CONSTRAINT idle_action_action_check CHECK (action IN ('warn', 'lower', 'requeue', 'cancel')),
    CONSTRAINT idle_action_outcome_check
        CHECK (outcome IN ('done', 'dry-run', 'skipped', 'refused', 'expired'))
);
CREATE INDEX idle_action_job_idx ON idle_action (job, id);
CREATE INDEX idle_action_open_idx ON idle_action (cluster, id) WHERE outcome IS NULL;
CREATE TABLE job_keep (
    job bigint NOT NULL,
    until timestamptz NOT NULL,
    by_whom text NOT NULL,
    reason text NOT NULL DEFAULT '',
    at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT job_keep_pkey PRIMARY KEY (job)
);
"""

_CONDITIONS = ("DriftNotChecked", "JobsNotFollowed", "InstallPending", "AccountingDetached", "QueuesDown")


def _allow_conditions(*types: str) -> None:
    listed = ", ".join(f"'{one}'" for one in types)
    op.execute(
        "ALTER TABLE cluster_condition DROP CONSTRAINT cluster_condition_type_check,"
        f" ADD CONSTRAINT cluster_condition_type_check CHECK (type IN ({listed}))"
    )


_ROLES = "'viewer', 'member', 'lead', 'operator', 'admin'"


def _allow_roles(roles: str) -> None:
    for table in ("api_token", "web_session"):
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_role_check")
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_role_check CHECK (role IN ({roles}))")


def upgrade() -> None:
    _allow_roles(f"'alerts', {_ROLES}")
    _allow_conditions(*_CONDITIONS, "GpusNotMeasured")
    op.execute(TABLES)
    op.execute(IDLE)


def downgrade() -> None:
    op.execute("DELETE FROM web_session WHERE role = 'alerts'")
    op.execute("DELETE FROM api_token WHERE role = 'alerts'")
    _allow_roles(_ROLES)
    op.execute("DELETE FROM cluster_condition WHERE type = 'GpusNotMeasured'")
    _allow_conditions(*_CONDITIONS)
    op.execute("DROP TABLE gpu_hour")
    op.execute(
        "DROP TABLE job_use, gpu_use, use_hour, use_day, node_use, job_window, telemetry_mark, attempt_gpu,"
        " notice, notice_delivery, gpu_event, health_mark, spared_attempt, cordon"
    )
    op.execute("DROP TABLE idle_action, job_keep")
