"""Read and write what GPUs did while jobs held them.

A window is added once: the mark that says up to when a cluster is read moves in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter, lost
from fairway.ledger.schema.telemetry import ADDED, HOST, LATEST, PEAK
from fairway.ledger.sql_values import array, arrays, moment, seconds
from fairway.model.gpu_use import Device, GpuUse, Holding, HostUse, JobDevices, MetricCode, Window
from fairway.model.job import JobId

KEEP_WINDOWS_SECONDS: Final = 86_400
KEEP_GPU_HOURS_SECONDS: Final = 4 * 3600
"""A diagnosis is about the last two to three hours."""

_VALUES: Final = (*ADDED, PEAK)


def _added(table: str, keys: Sequence[str], select: str, *more: str, replaced: Sequence[str] = ()) -> str:
    """Return SQL that adds rows to those of the same keys.

    `more`: columns that stay as they are; `replaced`: those that are overwritten.
    """
    sets = [f"{name} = {table}.{name} + excluded.{name}" for name in ADDED]
    sets += [f"{name} = excluded.{name}" for name in replaced]
    return f"""
        INSERT INTO {table} ({", ".join((*keys, *_VALUES, *more, *replaced))}) {select}
        ON CONFLICT ({", ".join(keys)}) DO UPDATE
        SET {", ".join(sets)}, {PEAK} = greatest({table}.{PEAK}, excluded.{PEAK})
    """  # noqa: S608


_SUMMED: Final = ", ".join([*(f"sum(row.{name})" for name in ADDED), f"max(row.{PEAK})"])
_PLAIN: Final = ", ".join(f"row.{name}" for name in _VALUES)
_LATEST: Final = ", ".join(f"row.{name} / nullif(row.{name}_seconds, 0)" for name in LATEST)
_BY_GPU: Final = {"job": "bigint", "node": "text", "gpu": "text", "instance": "text"}
_TYPES: Final = {**_BY_GPU, **dict.fromkeys(_VALUES, "float8")}
_PASSED: Final = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in _TYPES.items())
_ROWS: Final = "FROM passed AS row"
_BY_CLASS: Final = f"{_ROWS} JOIN job ON job.id = row.job GROUP BY job.class ORDER BY 2"

_ADD_TO: Final = (
    _added(
        "gpu_use",
        tuple(_BY_GPU),
        f"SELECT row.job, row.node, row.gpu, row.instance, {_PLAIN}, CAST(:start AS timestamptz), {_LATEST}"
        f" {_ROWS} ORDER BY 1, 2, 3, 4",
        replaced=("last_at", *(f"last_{name}" for name in LATEST)),
    ),
    _added(
        "gpu_hour",
        ("job", "hour", "node", "gpu", "instance"),
        "SELECT row.job, CAST(:hour AS timestamptz), row.node, row.gpu, row.instance,"
        f" {_PLAIN}, :cluster {_ROWS} ORDER BY 1, 3, 4, 5",
        "cluster",
    ),
    _added(
        "job_use",
        ("job", "hour"),
        f"SELECT row.job, CAST(:hour AS timestamptz), {_SUMMED} {_ROWS} GROUP BY row.job ORDER BY 1",
    ),
    _added(
        "use_hour",
        ("hour", "class"),
        f"SELECT CAST(:hour AS timestamptz), job.class, {_SUMMED} {_BY_CLASS}",
    ),
    _added(
        "use_day",
        ("day", "class"),
        f"SELECT CAST(:day AS date), job.class, {_SUMMED} {_BY_CLASS}",
    ),
)
# One statement, so that the rows are passed once.
_ADD = text(
    f"WITH passed AS MATERIALIZED (SELECT * FROM unnest({_PASSED}) AS row ({', '.join(_TYPES)})), "  # noqa: S608
    + ", ".join(f"added{number} AS ({insert})" for number, insert in enumerate(_ADD_TO))
    + " SELECT 1"
)
_FORGET_GPU_HOURS = text("DELETE FROM gpu_hour WHERE cluster = :cluster AND hour < :before")
_ADD_HOSTS = text(
    f"""
    UPDATE job_use SET {", ".join(f"{name} = job_use.{name} + row.{name}" for name in HOST)}
    FROM unnest(
        CAST(:job AS bigint[]), {", ".join(f"CAST(:{name} AS float8[])" for name in HOST)}
    ) AS row (job, {", ".join(HOST)})
    WHERE job_use.job = row.job AND job_use.hour = :hour
    """  # noqa: S608
)
_ADD_NODES = text("""
    INSERT INTO node_use (cluster, hour, node, measured, busy, held_measured, held_busy)
    SELECT :cluster, :hour, row.* FROM unnest(
        CAST(:node AS text[]), CAST(:measured AS float8[]), CAST(:busy AS float8[]),
        CAST(:held_measured AS float8[]), CAST(:held_busy AS float8[])
    ) AS row ORDER BY 3
    ON CONFLICT (cluster, hour, node)
    DO UPDATE SET measured = node_use.measured + excluded.measured, busy = node_use.busy + excluded.busy,
        held_measured = node_use.held_measured + excluded.held_measured,
        held_busy = node_use.held_busy + excluded.held_busy
""")
_ADD_WINDOWS = text("""
    INSERT INTO job_window (job, started_at, cluster, measured, busy, gpus, idle_gpus, memory_peak)
    SELECT row.job, :start, :cluster, row.measured, row.busy, row.gpus, row.idle_gpus, row.memory_peak
    FROM unnest(
        CAST(:job AS bigint[]), CAST(:measured AS float8[]), CAST(:busy AS float8[]), CAST(:gpus AS int[]),
        CAST(:idle_gpus AS int[]), CAST(:memory_peak AS float8[])
    ) AS row (job, measured, busy, gpus, idle_gpus, memory_peak)
    ORDER BY 1
""")
_FORGET_WINDOWS = text("DELETE FROM job_window WHERE cluster = :cluster AND started_at < :before")

_NODES = text("SELECT name FROM node WHERE cluster = :cluster")

_Holders: TypeAlias = tuple[tuple[str, ...], ...]
_Gpus: TypeAlias = dict[str, tuple[int, ...]]

_MARK = text("SELECT read_to, interval_seconds FROM telemetry_mark WHERE cluster = :cluster")
_START = text("""
    INSERT INTO telemetry_mark (cluster, read_to, interval_seconds) VALUES (:cluster, :at, :interval)
    ON CONFLICT (cluster) DO UPDATE SET read_to = excluded.read_to
""")
_MOVE = text("""
    UPDATE telemetry_mark SET read_to = :end, interval_seconds = :interval
    WHERE cluster = :cluster AND read_to = :start RETURNING 1
""")

_HOLDINGS = text("""
    SELECT attempt.job, attempt.devices, attempt.started_at, attempt.ended_at, located.holders, located.gpus
    FROM (
        SELECT job, attempt, CAST(jsonb_agg(holders) AS text) AS holders,
            CAST(jsonb_object_agg(node, gpus) AS text) AS gpus
        FROM attempt_gpu WHERE cluster = :cluster AND (ended_at IS NULL OR ended_at > :start)
        GROUP BY job, attempt
    ) AS located
    JOIN attempt ON attempt.job = located.job AND attempt.number = located.attempt
    WHERE attempt.started_at < :end
        AND (attempt.ended_at > :start OR attempt.ended_at IS NULL AND attempt.ending IS NULL)
""")


@dataclass(frozen=True, slots=True)
class TelemetryMark:
    """Up to when a cluster's metrics are read, and the seconds between two samples."""

    read_to: int
    interval: float


class GpuUseStore(LedgerStore):
    """Reads what GPUs did."""

    async def nodes(self, cluster: str) -> frozenset[str]:
        """Return the names of a cluster's nodes."""
        return frozenset(row.name for row in await self._fetch(_NODES, {"cluster": cluster}))

    async def mark(self, cluster: str) -> TelemetryMark | None:
        """Return up to when a cluster is read. Returns None if it never was."""
        row = await self._fetch_first(_MARK, {"cluster": cluster})
        return None if row is None else TelemetryMark(seconds(row.read_to), row.interval_seconds)

    async def holdings(self, cluster: str, window: Window) -> list[Holding]:
        """Return who held GPUs in a window, and where exporters show them."""
        values = {"cluster": cluster, "start": moment(window.start), "end": moment(window.end)}
        return [
            Holding(
                JobId(row.job),
                row.devices,
                row.started_at.timestamp(),
                float(window.end) if row.ended_at is None else row.ended_at.timestamp(),
                frozenset(h for holders in msgspec.json.decode(row.holders, type=_Holders) for h in holders),
                {node: gpus for node, gpus in msgspec.json.decode(row.gpus, type=_Gpus).items() if gpus},
            )
            for row in await self._fetch(_HOLDINGS, values)
        ]


class GpuUseWriter(FencedWriter):
    """Writes what the GPUs of the lease's cluster did."""

    async def start(self, at: int, interval: float) -> None:
        """Begin to read a cluster at `at`."""
        values = {"cluster": self._lease.cluster, "at": moment(at), "interval": interval}
        await self._connection.execute(_START, values)

    async def add(
        self,
        window: Window,
        hour: int,
        day: date,
        jobs: JobDevices,
        nodes: Mapping[str, tuple[float, float]],
        interval: float,
        hosts: Mapping[JobId, HostUse] = MappingProxyType({}),
    ) -> None:
        """Add a window to an hour and a day; `nodes` have measured and busy GPU-seconds.

        Raises LeaseLost, and then nothing is added, if the window is not the next one: it was added before.
        """
        cluster = self._lease.cluster
        moved = await self._connection.execute(
            _MOVE,
            {
                "cluster": cluster,
                "start": moment(window.start),
                "end": moment(window.end),
                "interval": interval,
            },
        )
        if moved.first() is None:
            raise lost(self._lease)
        in_hour = {"hour": moment(hour)}
        every = [(job, device, use) for job, devices in jobs.items() for device, use in devices.items()]
        if every:
            at = {"start": moment(window.start), "cluster": cluster}
            await self._connection.execute(_ADD, _columns(every) | at | in_hour | {"day": day})
            windows = arrays(
                (_window(job, devices) for job, devices in jobs.items()),
                *("job", "measured", "busy", "gpus", "idle_gpus", "memory_peak"),
            )
            await self._connection.execute(_ADD_WINDOWS, windows | at)
        if nodes:
            held = _held_by_node(jobs)
            each = arrays(
                ((node, *both, *held.get(node, (0.0, 0.0))) for node, both in nodes.items()),
                *("node", "measured", "busy", "held_measured", "held_busy"),
            )
            await self._connection.execute(_ADD_NODES, each | in_hour | {"cluster": cluster})
        if hosts:
            host_rows = ((job, *(getattr(host, name) for name in HOST)) for job, host in hosts.items())
            await self._connection.execute(_ADD_HOSTS, arrays(host_rows, "job", *HOST) | in_hour)
        for forget, kept in (
            (_FORGET_WINDOWS, KEEP_WINDOWS_SECONDS),
            (_FORGET_GPU_HOURS, KEEP_GPU_HOURS_SECONDS),
        ):
            before = moment(window.end - kept)
            await self._connection.execute(forget, {"cluster": cluster, "before": before})


def _held_by_node(jobs: JobDevices) -> dict[str, tuple[float, float]]:
    """Return the measured and busy GPU-seconds of the GPUs that jobs held, by node."""
    found: dict[str, tuple[float, float]] = {}
    for devices in jobs.values():
        for device, use in devices.items():
            measured, busy = found.get(device.node, (0.0, 0.0))
            more = use.integrals.get(MetricCode.ENGINE, 0.0)
            found[device.node] = (measured + use.measured, busy + more)
    return found


def _columns(every: Sequence[tuple[JobId, Device, GpuUse]]) -> dict[str, object]:
    """Return the columns of `_TYPES`."""
    uses = [use for _, _, use in every]
    columns: list[list[float | None]] = [
        [sums.get(code, 0.0) for sums in kind]
        for code in MetricCode
        for kind in ([use.integrals for use in uses], [use.seconds for use in uses])
    ]
    columns += [[use.idle for use in uses], [use.peak_memory_mib for use in uses]]
    return {
        "job": array([job for job, _, _ in every]),
        "node": array([device.node for _, device, _ in every]),
        "gpu": array([device.gpu for _, device, _ in every]),
        "instance": array([device.instance for _, device, _ in every]),
        **{name: array(column) for name, column in zip(_VALUES, columns, strict=True)},
    }


def _window(job: JobId, devices: Mapping[Device, GpuUse]) -> tuple[object, ...]:
    uses: Collection[GpuUse] = devices.values()
    return (
        job,
        sum(use.measured for use in uses),
        sum(use.integrals.get(MetricCode.ENGINE, 0.0) for use in uses),
        len(devices),
        sum(use.idle > 0 for use in uses),
        max((use.peak_memory_mib for use in uses if use.peak_memory_mib is not None), default=None),
    )
