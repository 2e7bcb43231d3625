"""Counts and states of service level objectives, and the times in which jobs did not wait for GPUs.

A trigger notes these times: an older release, which may run beside this one during an upgrade, changes jobs
without knowing the table, and a job that was on hold would count as one that waited.
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
LOSES = "measurements of service level objectives, and when jobs were on hold"

# `explain.pauses.PAUSE_CODES`; a test compares them.
_CODES = (  # noqa: SIM905
    "AboveQuota AccountRefused AfterAnother ArrayTaskLimit BudgetSpent ClaimNotCounted DeadlinePassed"
    " DependencyNeverMet Held HeldAfterFailure HeldByAdmin JobAboveLimit JobBelowMinimum JobTimeLimit"
    " NamespaceLimit NamespaceNotAllowed NoNodeFits NotYetTime PartitionLimit PodRefused QosGone"
    " ReservationGone ReservationWait Retry TeamDraining TeamHeld TimeAbovePartition"
).split()
_KINDS = "'budget', 'anomaly', 'job-end', 'drift', 'health', 'idle', 'alert', 'statement'"
_PAUSED = "job_is_paused({0}.state, {0}.has_after, {0}.reason_code)"


def upgrade() -> None:
    for table in (
        'slo_count (digest text COLLATE "C", slot timestamptz, good bigint NOT NULL, bad bigint NOT NULL,'
        " CONSTRAINT slo_count_pkey PRIMARY KEY (digest, slot))",
        'slo_cursor (digest text COLLATE "C", since timestamptz NOT NULL, counted_to timestamptz NOT NULL,'
        " CONSTRAINT slo_cursor_pkey PRIMARY KEY (digest))",
    ):
        op.execute(f"CREATE TABLE {table}")
    op.execute("""
        CREATE TABLE slo_status (
            name text COLLATE "C" NOT NULL,
            digest text COLLATE "C" NOT NULL,
            target numeric NOT NULL,
            good bigint NOT NULL,
            bad bigint NOT NULL,
            since timestamptz NOT NULL,
            counted_to timestamptz NOT NULL,
            burns jsonb NOT NULL,
            missed_at timestamptz,
            last_day numeric,
            alert text COLLATE "C" NOT NULL,
            alert_since timestamptz NOT NULL,
            checked_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT slo_status_pkey PRIMARY KEY (name)
        )
    """)
    op.execute("""
        CREATE TABLE job_pause (
            job bigint NOT NULL,
            started_at timestamptz NOT NULL,
            ended_at timestamptz,
            waits_from timestamptz,
            CONSTRAINT job_pause_pkey PRIMARY KEY (job, started_at)
        )
    """)
    op.execute("CREATE INDEX job_pause_waits_from_idx ON job_pause (waits_from) WHERE waits_from IS NOT NULL")
    # Jobs that were stored late are not found by their ids; see `job_clock`.
    op.execute("CREATE INDEX job_late_submitted_idx ON job (submitted_at) WHERE late")
    op.execute("ALTER TABLE notice DROP CONSTRAINT notice_kind_check")
    op.execute(
        f"ALTER TABLE notice ADD CONSTRAINT notice_kind_check CHECK (kind IN ({_KINDS}, 'slo', 'test'))"
    )
    codes = ", ".join(f"'{code}'" for code in _CODES)
    op.execute(f"""
        CREATE FUNCTION job_is_paused(state text, has_after boolean, reason_code text) RETURNS boolean
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
            SELECT state = 'held' OR (state = 'queued' AND has_after)
                OR (state IN ('queued', 'waiting') AND reason_code IN ({codes}))
        $$
    """)
    op.execute("""
        CREATE FUNCTION note_job_pause() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF job_is_paused(NEW.state, NEW.has_after, NEW.reason_code) THEN
                INSERT INTO job_pause (job, started_at)
                VALUES (NEW.id, CASE WHEN TG_OP = 'INSERT' THEN NEW.submitted_at ELSE now() END)
                ON CONFLICT (job, started_at) DO UPDATE SET ended_at = NULL, waits_from = NULL;
            ELSE
                UPDATE job_pause
                SET ended_at = greatest(job_pause.started_at, least(now(), NEW.started_at, NEW.ended_at))
                WHERE job = NEW.id AND ended_at IS NULL;
                UPDATE job_pause SET waits_from = NEW.submitted_at + (
                    SELECT sum(earlier.ended_at - earlier.started_at) FROM job_pause AS earlier
                    WHERE earlier.job = NEW.id AND earlier.started_at <= job_pause.started_at
                ) WHERE job = NEW.id AND waits_from IS NULL;
            END IF;
            RETURN NULL;
        END $$
    """)
    op.execute("LOCK TABLE job IN SHARE ROW EXCLUSIVE MODE")
    # Since when is not known: none of them counts as late for that.
    op.execute(f"""
        INSERT INTO job_pause (job, started_at)
        SELECT id, submitted_at FROM job
        WHERE state IN ('queued', 'waiting', 'held') AND {_PAUSED.format("job")}
    """)  # noqa: S608
    op.execute(f"""
        CREATE TRIGGER job_pause_insert AFTER INSERT ON job FOR EACH ROW
        WHEN ({_PAUSED.format("NEW")}) EXECUTE FUNCTION note_job_pause()
    """)
    op.execute(f"""
        CREATE TRIGGER job_pause_update AFTER UPDATE ON job FOR EACH ROW
        WHEN ({_PAUSED.format("OLD")} <> {_PAUSED.format("NEW")}) EXECUTE FUNCTION note_job_pause()
    """)


def downgrade() -> None:
    op.execute("DROP TRIGGER job_pause_insert ON job")
    op.execute("DROP TRIGGER job_pause_update ON job")
    op.execute("DROP FUNCTION note_job_pause()")
    op.execute("DROP FUNCTION job_is_paused(text, boolean, text)")
    op.execute("DROP INDEX job_late_submitted_idx")
    for table in ("job_pause", "slo_status", "slo_cursor", "slo_count"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DELETE FROM notice_delivery USING notice WHERE notice.id = notice AND notice.kind = 'slo'")
    op.execute("DELETE FROM notice WHERE kind = 'slo'")
    op.execute("ALTER TABLE notice DROP CONSTRAINT notice_kind_check")
    op.execute(f"ALTER TABLE notice ADD CONSTRAINT notice_kind_check CHECK (kind IN ({_KINDS}, 'test'))")
