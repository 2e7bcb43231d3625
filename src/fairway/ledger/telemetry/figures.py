"""Read what jobs did with their GPUs: over their whole life, and over the last hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.schema.telemetry import ADDED, HOST, PEAK
from fairway.ledger.sql_values import AnyRow, moment
from fairway.model.gpu_use import Device, GpuUse, HostUse, MetricCode
from fairway.model.job import JobId

_JOBS: Final = "job = ANY(CAST(:jobs AS bigint[]))"
_SINCE: Final = """
    FROM unnest(CAST(:jobs AS bigint[]), CAST(:since AS timestamptz[])) AS wanted (id, since)
    JOIN {table} ON {table}.job = wanted.id AND {table}.{time} >= wanted.since
"""


def _sums(names: Sequence[str]) -> str:
    return ", ".join(f"sum({name}) AS {name}" for name in names)


_LIFE = text(f"SELECT * FROM gpu_use WHERE {_JOBS} ORDER BY job, node, gpu, instance")  # noqa: S608
_RECENT = text(
    f"SELECT job, node, gpu, instance, {_sums(ADDED)}, max({PEAK}) AS {PEAK}"
    f" {_SINCE.format(table='gpu_hour', time='hour')}"
    " GROUP BY job, node, gpu, instance ORDER BY job, node, gpu, instance"
)
_HOSTS_LIFE = text(f"SELECT job, {_sums(HOST)} FROM job_use WHERE {_JOBS} GROUP BY job")  # noqa: S608
_HOSTS = text(f"SELECT job, {_sums(HOST)} {_SINCE.format(table='job_use', time='hour')} GROUP BY job")
_WINDOWS = text(
    f"SELECT job, started_at, measured, busy {_SINCE.format(table='job_window', time='started_at')}"
    " ORDER BY job, started_at"
)
_HELD = text(
    f"SELECT job, devices, started_at, ended_at, ending FROM attempt WHERE {_JOBS}"  # noqa: S608
    " ORDER BY job, number"
)


@dataclass(frozen=True, slots=True)
class HeldTime:
    """A time in which a job held devices, in seconds since 1970."""

    devices: int
    since: float
    until: float | None
    """None: it runs."""


@dataclass(slots=True)
class MeasuredJob:
    """What was measured of a job, as stored."""

    devices: dict[Device, GpuUse] = field(default_factory=dict)
    host: HostUse = field(default_factory=HostUse)
    windows: dict[int, tuple[float, float]] = field(default_factory=dict)
    """The measured and the busy GPU-seconds of recent windows, by their start."""


class FiguresStore(LedgerStore):
    """Reads what some jobs did with their GPUs."""

    async def held(self, jobs: Sequence[JobId]) -> dict[JobId, list[HeldTime]]:
        """Return when jobs held devices, oldest first; without attempts of which the end is not known."""
        found: dict[JobId, list[HeldTime]] = {}
        for row in await self._fetch(_HELD, {"jobs": list(jobs)}):
            if row.ended_at is not None or row.ending is None:
                until = None if row.ended_at is None else row.ended_at.timestamp()
                held = HeldTime(row.devices, row.started_at.timestamp(), until)
                found.setdefault(JobId(row.job), []).append(held)
        return found

    async def life(self, jobs: Sequence[JobId]) -> dict[JobId, MeasuredJob]:
        """Return what jobs did over their whole life; without windows."""
        values = {"jobs": list(jobs)}
        return _measured(await self._fetch(_LIFE, values), await self._fetch(_HOSTS_LIFE, values))

    async def recent(self, since: Mapping[JobId, int]) -> dict[JobId, MeasuredJob]:
        """Return what each job did since the start of an hour, at most a few hours ago."""
        values = {"jobs": list(since), "since": [moment(at) for at in since.values()]}
        found = _measured(await self._fetch(_RECENT, values), await self._fetch(_HOSTS, values))
        for row in await self._fetch(_WINDOWS, values):
            one = found.setdefault(JobId(row.job), MeasuredJob())
            one.windows[int(row.started_at.timestamp())] = (row.measured, row.busy)
        return found


def _measured(devices: Sequence[AnyRow], hosts: Sequence[AnyRow]) -> dict[JobId, MeasuredJob]:
    found: dict[JobId, MeasuredJob] = {}
    for row in devices:
        device = Device(row.node, row.gpu, row.instance)
        found.setdefault(JobId(row.job), MeasuredJob()).devices[device] = use_of(row)
    for row in hosts:
        host = HostUse(*(getattr(row, name) for name in HOST))
        found.setdefault(JobId(row.job), MeasuredJob()).host = host
    return found


def use_of(row: AnyRow) -> GpuUse:
    """Return the sums of a row that has the columns `ADDED` and the peak."""
    seconds = {code: getattr(row, f"{code.value}_seconds") for code in MetricCode}
    measured = {code: time for code, time in seconds.items() if time}
    return GpuUse({code: getattr(row, code.value) for code in measured}, measured, getattr(row, PEAK))
