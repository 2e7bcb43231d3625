"""Usage, capacity over time, their sums by hour and day; price points, closed months, budgets."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

USAGE = """
CREATE TABLE usage (
    hour timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now(),
    job bigint NOT NULL,
    attempt integer NOT NULL,
    class integer NOT NULL,
    seconds integer NOT NULL,
    devices integer NOT NULL
) PARTITION BY RANGE (hour);
CREATE TABLE usage_hour (
    hour timestamptz NOT NULL,
    class integer NOT NULL,
    device_seconds bigint NOT NULL,
    CONSTRAINT usage_hour_pkey PRIMARY KEY (hour, class)
);
CREATE TABLE usage_day (
    day date NOT NULL,
    class integer NOT NULL,
    device_seconds bigint NOT NULL,
    CONSTRAINT usage_day_pkey PRIMARY KEY (day, class)
);
CREATE TABLE metered (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    class integer NOT NULL,
    devices integer NOT NULL,
    started_at timestamptz NOT NULL,
    metered_to timestamptz NOT NULL,
    CONSTRAINT metered_pkey PRIMARY KEY (job, attempt)
);
CREATE TABLE to_meter (
    cluster text COLLATE "C" NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    job bigint NOT NULL,
    CONSTRAINT to_meter_pkey PRIMARY KEY (cluster, id)
);
INSERT INTO to_meter (cluster, job) SELECT cluster, id FROM job WHERE attempts > 0 ORDER BY id;
CREATE TABLE meter_mark (
    cluster text COLLATE "C" NOT NULL,
    metered_to timestamptz NOT NULL,
    CONSTRAINT meter_mark_pkey PRIMARY KEY (cluster)
);
CREATE TABLE usage_archive (
    month date NOT NULL,
    path text NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    digest text NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT usage_archive_pkey PRIMARY KEY (month, path)
);
"""

CAPACITY = """
CREATE TABLE capacity (
    cluster text COLLATE "C" NOT NULL,
    pool text COLLATE "C" NOT NULL,
    slice text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    total integer NOT NULL,
    drained integer NOT NULL,
    down integer NOT NULL,
    fragmented integer NOT NULL,
    gpus integer NOT NULL,
    CONSTRAINT capacity_pkey PRIMARY KEY (cluster, pool, slice, started_at)
);
CREATE TABLE capacity_now (
    cluster text COLLATE "C" NOT NULL,
    pool text COLLATE "C" NOT NULL,
    slice text COLLATE "C" NOT NULL,
    metered_to timestamptz NOT NULL,
    total integer NOT NULL,
    drained integer NOT NULL,
    down integer NOT NULL,
    fragmented integer NOT NULL,
    gpus integer NOT NULL,
    CONSTRAINT capacity_now_pkey PRIMARY KEY (cluster, pool, slice)
);
"""

CAPACITY_SUM = """
CREATE TABLE capacity_{span} (
    {span} {kind} NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    pool text COLLATE "C" NOT NULL,
    slice text COLLATE "C" NOT NULL,
    total bigint NOT NULL,
    drained bigint NOT NULL,
    down bigint NOT NULL,
    fragmented bigint NOT NULL,
    gpu_seconds bigint NOT NULL,
    CONSTRAINT capacity_{span}_pkey PRIMARY KEY ({span}, cluster, pool, slice)
);
"""

MONEY = """
CREATE TABLE price_point (
    pool text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now(),
    by_whom text NOT NULL,
    per_gpu_hour numeric NOT NULL,
    CONSTRAINT price_point_pkey PRIMARY KEY (pool, at, kept_at)
);
CREATE TABLE closed_month (
    month date NOT NULL,
    closed_at timestamptz NOT NULL DEFAULT now(),
    by_whom text NOT NULL,
    currency text NOT NULL,
    timezone text NOT NULL,
    CONSTRAINT closed_month_pkey PRIMARY KEY (month)
);
CREATE TABLE closed_charge (
    month date NOT NULL,
    id integer NOT NULL,
    used_in date NOT NULL,
    kind text NOT NULL,
    cluster text COLLATE "C" NOT NULL,
    pool text COLLATE "C" NOT NULL,
    slice text COLLATE "C" NOT NULL,
    team text COLLATE "C" NOT NULL,
    device_seconds bigint NOT NULL,
    amount numeric NOT NULL,
    CONSTRAINT closed_charge_pkey PRIMARY KEY (month, id)
);
CREATE TABLE budget_standing (
    team text COLLATE "C" NOT NULL,
    period date NOT NULL,
    amount numeric NOT NULL,
    spent numeric NOT NULL,
    per_day numeric NOT NULL,
    runs_out date,
    level text NOT NULL,
    hold text,
    since timestamptz NOT NULL,
    checked_at timestamptz NOT NULL,
    CONSTRAINT budget_standing_pkey PRIMARY KEY (team),
    CONSTRAINT budget_standing_level_check CHECK (level IN ('ok', 'warned', 'spent')),
    CONSTRAINT budget_standing_hold_check CHECK (hold IN ('low-only', 'stop'))
);
CREATE TABLE budget_event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT now(),
    team text COLLATE "C" NOT NULL,
    text text NOT NULL,
    CONSTRAINT budget_event_pkey PRIMARY KEY (id)
);
"""


def upgrade() -> None:
    hours = CAPACITY_SUM.format(span="hour", kind="timestamptz")
    days = CAPACITY_SUM.format(span="day", kind="date")
    for statement in "".join((USAGE, CAPACITY, hours, days, MONEY)).split(";"):
        if statement.strip():
            op.execute(statement)
