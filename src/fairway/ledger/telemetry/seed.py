"""Write what GPUs did in a generated history: means of each job, multiplied with the usage that was metered.

What is measured follows from usage, so it is never more than what was held. For the demo and for benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import date
from operator import attrgetter
from typing import Any, Final

from psycopg import AsyncConnection as Raw
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.schema.telemetry import ADDED, PEAK
from fairway.ledger.sql_values import arrays, moment
from fairway.model.gpu_health import class_of
from fairway.model.gpu_use import WINDOW_SECONDS, MetricCode
from fairway.model.idle import IdleAction, IdleOutcome

_INTERVAL: Final = 15.0
"""Seconds between two samples of an exporter."""
_NODE_SECONDS: Final = 14 * 86_400
"""How far back what nodes did is written: by node and hour it is much, and shown of some days."""


@dataclass(frozen=True, slots=True)
class PastUse:
    """What a job did: means of its used devices while it worked."""

    job: int
    engine: float
    sm: float
    tensor: float
    dram: float
    memory: float
    """MiB."""
    memory_peak: float
    watts: float
    idle_watts: float
    """Of a device that does nothing."""
    pcie: float
    nvlink: float
    works_until: float
    """When it did nothing any more, in seconds since 1970."""
    used: float
    """Part of its device-seconds on devices that it used."""
    measured: float
    """Part of its time that was measured."""


@dataclass(frozen=True, slots=True)
class PastGpu:
    """A device that a job held."""

    job: int
    node: str
    gpu: str
    instance: str
    share: float
    """Of the job's device-seconds; all shares of a job sum to 1."""
    pace: float
    """How busy it was beside the mean of the used ones; 0: not used."""


@dataclass(frozen=True, slots=True)
class PastNode:
    """The devices of a node, and when it was down."""

    cluster: str
    name: str
    devices: int
    down: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ExporterOutage:
    """Time in which a cluster's exporters were silent."""

    cluster: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PastEvent:
    """Something that went wrong with a GPU while a job held it."""

    cluster: str
    node: str
    gpu: str
    code: str
    at: float
    uuid: str
    serial: str
    model: str
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PastIdleStep:
    """What an idle rule would have done to a job, in dry run."""

    job: int
    cluster: str
    rule: str
    action: IdleAction
    at: float
    idle_since: float
    evidence: str


@dataclass(frozen=True, slots=True)
class PastUses:
    """What the GPUs of a history did."""

    jobs: Sequence[PastUse]
    gpus: Sequence[PastGpu]
    nodes: Sequence[PastNode]
    outages: Sequence[ExporterOutage]
    until: int
    """Up to when every cluster is read."""
    events: Sequence[PastEvent] = ()
    idle_steps: Sequence[PastIdleStep] = ()


_TEMPORARY = (
    "SET LOCAL jit = off",
    "SET LOCAL work_mem = '64MB'",
    """
    CREATE TEMPORARY TABLE past_use (
        job bigint PRIMARY KEY, engine float8, sm float8, tensor float8, dram float8, memory float8,
        memory_peak float8, watts float8, idle_watts float8, pcie float8, nvlink float8,
        works_until float8, used float8, measured float8
    ) ON COMMIT DROP
    """,
    """
    CREATE TEMPORARY TABLE past_gpu (
        job bigint, node text, gpu text, instance text, share float8, pace float8
    ) ON COMMIT DROP
    """,
    """
    CREATE TEMPORARY TABLE past_outage (cluster text, start timestamptz, until timestamptz) ON COMMIT DROP
    """,
)
_OUTAGES = text("""
    INSERT INTO past_outage SELECT cluster, start, until FROM unnest(
        CAST(:cluster AS text[]), CAST(:start AS timestamptz[]), CAST(:until AS timestamptz[])
    ) AS row (cluster, start, until)
""")
_READY = text("ANALYZE past_use, past_gpu")

# Device-seconds of each piece of usage that were measured (m), that a job worked in (w), and with a little
# variation from hour to hour, the same for the same job and hour.
_PIECES: Final = """
    SELECT usage.job, usage.attempt, usage.hour, job.cluster,
        usage.seconds * usage.devices * past_use.measured AS m,
        CASE WHEN extract(epoch FROM usage.started_at) < works_until
            THEN usage.seconds * usage.devices * past_use.measured * used
                * (0.9 + 0.2 * mod(abs(hashint8extended(usage.job, usage.seconds)), 1000) / 1000.0)
            ELSE 0 END AS w,
        CASE WHEN extract(epoch FROM usage.started_at) < works_until THEN 1 - used ELSE 1 END AS unused
    FROM usage JOIN past_use ON past_use.job = usage.job JOIN job ON job.id = usage.job
    WHERE NOT EXISTS (
        SELECT FROM past_outage
        WHERE past_outage.cluster = job.cluster AND usage.hour >= start AND usage.hour < until
    )
"""
_INTEGRALS: Final = {
    MetricCode.ENGINE: "least(w * engine, m)",
    MetricCode.SM: "least(w * sm, m)",
    MetricCode.TENSOR: "least(w * tensor, m)",
    MetricCode.DRAM: "least(w * dram, m)",
    MetricCode.MEMORY: "m * used * memory",
    MetricCode.POWER: "m * idle_watts + w * (watts - idle_watts)",
    MetricCode.PCIE: "w * pcie",
    MetricCode.NVLINK: "w * nvlink",
}
_JOBS = text(f"""
    INSERT INTO job_use (job, hour, {", ".join(ADDED)}, {PEAK})
    SELECT job, hour, {", ".join(f"sum({_INTEGRALS[code]}), sum(m)" for code in MetricCode)},
        sum(m * unused), max(past_use.memory_peak)
    FROM ({_PIECES}) AS piece JOIN past_use USING (job)
    GROUP BY job, hour HAVING sum(m) > 0 ORDER BY hour, job
""")  # noqa: S608
_SUMMED: Final = ", ".join([*(f"sum(job_use.{name})" for name in ADDED), f"max(job_use.{PEAK})"])
# Servers may have begun to read what runs now: that is added to, and not counted again.
_SETS: Final = ", ".join(f"{name} = row.{name} + excluded.{name}" for name in ADDED)
_HOURS = text(f"""
    INSERT INTO use_hour AS row (hour, class, {", ".join(ADDED)}, {PEAK})
    SELECT hour, class, {_SUMMED}
    FROM job_use JOIN past_use USING (job) JOIN job ON job.id = job_use.job GROUP BY hour, class
    ON CONFLICT (hour, class) DO UPDATE SET {_SETS}
""")  # noqa: S608
_DAYS = text(f"""
    INSERT INTO use_day AS row (day, class, {", ".join(ADDED)}, {PEAK})
    SELECT day, class, {_SUMMED}
    FROM job_use JOIN past_use USING (job) JOIN job ON job.id = job_use.job
    JOIN unnest(CAST(:hours AS timestamptz[]), CAST(:days AS date[])) AS hours (hour, day) USING (hour)
    GROUP BY day, class
    ON CONFLICT (day, class) DO UPDATE SET {_SETS}
""")  # noqa: S608
# Of a job's sums each device has its share; of what only used devices do, the part at its pace.
_BY_SHARE: Final = {
    **{f"{code.value}_seconds": f"sums.{code.value}_seconds * share" for code in MetricCode},
    **{code.value: f"sums.{code.value} * share * pace / used" for code in MetricCode},
    "power": "least(sums.power_seconds * share * past_use.watts, sums.power * share)",
    "idle": "CASE WHEN pace = 0 THEN sums.engine_seconds * share ELSE"
    " greatest(0, sums.idle - sums.engine_seconds * (1 - used)) * share / used END",
}
_GPUS = text(f"""
    INSERT INTO gpu_use (job, node, gpu, instance, {", ".join(ADDED)}, {PEAK})
    SELECT job, node, gpu, instance, {", ".join(_BY_SHARE[name] for name in ADDED)},
        CASE WHEN pace > 0 THEN past_use.memory_peak ELSE 3 END
    FROM past_gpu JOIN past_use USING (job) JOIN (
        SELECT job, {", ".join(f"sum({name}) AS {name}" for name in ADDED)} FROM job_use GROUP BY job
    ) AS sums USING (job)
""")  # noqa: S608
# Whoever held a node's GPUs: also those that nobody held were measured.
_NODES = text(f"""
    INSERT INTO node_use (cluster, hour, node, measured, busy, held_measured, held_busy)
    SELECT node.cluster, hours.hour, node.name, node.devices * 3600,
        COALESCE(used.busy, 0), COALESCE(used.held, 0), COALESCE(used.busy, 0)
    FROM unnest(CAST(:cluster AS text[]), CAST(:name AS text[]), CAST(:devices AS int[]))
        AS node (cluster, name, devices)
    CROSS JOIN unnest(CAST(:hours AS timestamptz[])) AS hours (hour)
    LEFT JOIN (
        SELECT place.node, hour, sum(m / cardinality(attempt.nodes)) AS held,
            sum(least(w * engine, m) / cardinality(attempt.nodes)) AS busy
        FROM ({_PIECES}) AS piece JOIN past_use USING (job)
        JOIN attempt ON attempt.job = piece.job AND attempt.number = piece.attempt
        CROSS JOIN unnest(attempt.nodes) AS place (node)
        GROUP BY place.node, hour
    ) AS used ON used.node = node.name AND used.hour = hours.hour
    WHERE NOT EXISTS (
        SELECT FROM past_outage
        WHERE past_outage.cluster = node.cluster AND hours.hour >= start AND hours.hour < until
    ) AND NOT EXISTS (
        SELECT FROM unnest(
            CAST(:down AS text[]), CAST(:down_start AS timestamptz[]), CAST(:down_end AS timestamptz[])
        ) AS down (node, start, until)
        WHERE down.node = node.name AND hours.hour >= start AND hours.hour < until
    )
    ON CONFLICT (cluster, hour, node)
    DO UPDATE SET measured = node_use.measured + excluded.measured, busy = node_use.busy + excluded.busy,
        held_measured = node_use.held_measured + excluded.held_measured,
        held_busy = node_use.held_busy + excluded.held_busy
""")  # noqa: S608
_MARKS = text("""
    INSERT INTO telemetry_mark (cluster, read_to, interval_seconds)
    SELECT cluster, :read_to, :interval FROM unnest(CAST(:clusters AS text[])) AS row (cluster)
    ON CONFLICT (cluster) DO NOTHING
""")


_EVENT_FIELDS: Final = ("cluster", "node", "gpu", "code", "uuid", "serial", "model", "job", "attempt")
_EVENTS = text("""
    INSERT INTO gpu_event (
        cluster, node, gpu, code, at, last_seen, recorded_at, class, uuid, serial, model, detail, job,
        attempt, onset_known
    )
    SELECT cluster, node, gpu, code, at, at, at, class, uuid, serial, model, '', job, attempt, true
    FROM unnest(
        CAST(:cluster AS text[]), CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:code AS text[]),
        CAST(:at AS timestamptz[]), CAST(:class AS text[]), CAST(:uuid AS text[]), CAST(:serial AS text[]),
        CAST(:model AS text[]), CAST(:job AS bigint[]), CAST(:attempt AS int[])
    ) AS row (cluster, node, gpu, code, at, class, uuid, serial, model, job, attempt)
""")
_IDLE_STEPS = text("""
    INSERT INTO idle_action (job, cluster, rule, action, at, idle_since, dry_run, evidence, outcome, detail)
    SELECT job, cluster, rule, action, at, idle_since, true, evidence, :outcome, '' FROM unnest(
        CAST(:job AS bigint[]), CAST(:cluster AS text[]), CAST(:rule AS text[]), CAST(:action AS text[]),
        CAST(:at AS timestamptz[]), CAST(:idle_since AS timestamptz[]), CAST(:evidence AS text[])
    ) AS row (job, cluster, rule, action, at, idle_since, evidence) ORDER BY at
""")


async def write_uses(
    connection: AsyncConnection, raw: Raw[Any], uses: PastUses, hours: Sequence[int], days: Sequence[date]
) -> None:
    """Write what GPUs did. Usage is there; `hours` are the starts of all hours, each of a day of `days`."""
    for statement in _TEMPORARY:
        await connection.execute(text(statement))
    await _copy(raw, "past_use", PastUse, uses.jobs)
    await _copy(raw, "past_gpu", PastGpu, uses.gpus)
    silent = ((o.cluster, moment(o.start), moment(o.end)) for o in uses.outages)
    await connection.execute(_OUTAGES, arrays(silent, "cluster", "start", "until"))
    await connection.execute(_READY)
    starts = {"hours": [moment(hour) for hour in hours]}
    recent = {"hours": [moment(hour) for hour in hours if hour >= uses.until - _NODE_SECONDS]}
    await connection.execute(_JOBS)
    await connection.execute(_HOURS)
    await connection.execute(_DAYS, starts | {"days": list(days)})
    await connection.execute(_GPUS)
    nodes = arrays(((n.cluster, n.name, n.devices) for n in uses.nodes), "cluster", "name", "devices")
    down = ((n.name, moment(start), moment(end)) for n in uses.nodes for start, end in n.down)
    await connection.execute(_NODES, recent | nodes | arrays(down, "down", "down_start", "down_end"))
    marks = {
        "read_to": moment(uses.until - uses.until % WINDOW_SECONDS),
        "interval": _INTERVAL,
        "clusters": sorted({node.cluster for node in uses.nodes}),
    }
    await connection.execute(_MARKS, marks)
    events = (
        (*(getattr(e, name) for name in _EVENT_FIELDS), moment(e.at), class_of(e.code).value)
        for e in uses.events
    )
    await connection.execute(_EVENTS, arrays(events, *_EVENT_FIELDS, "at", "class"))
    steps = (
        (s.job, s.cluster, s.rule, s.action.value, moment(s.at), moment(s.idle_since), s.evidence)
        for s in uses.idle_steps
    )
    columns = arrays(steps, "job", "cluster", "rule", "action", "at", "idle_since", "evidence")
    await connection.execute(_IDLE_STEPS, columns | {"outcome": IdleOutcome.DRY_RUN.value})


async def _copy(raw: Raw[Any], table: str, kind: type, rows: Iterable[object]) -> None:
    """Copy dataclasses of one kind into a table with their fields as columns."""
    values = attrgetter(*(field.name for field in fields(kind)))
    async with raw.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row in rows:
            await copy.write_row(values(row))
