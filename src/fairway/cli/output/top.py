"""Format the screen of `fairway top`: pools with the teams that hold and want them, then jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from fairway.cli.output.format import UNKNOWN, Column, Fit, TableView, count, number, since
from fairway.cli.output.gpu_use import now_text
from fairway.cli.output.jobs import JobGroup, name_text, run_time
from fairway.model.job import JobState
from fairway.views.jobs import gpus_text, note, pool_text, state_text
from fairway.wire import fleet as wire
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as job_wire

_MAX_TEAMS = 4
_PARTLY = "* not all GPUs in use were measured"
_MOST: Final = 0.95
"""Of those in use: with fewer measured, a star says so."""


def headline(
    fleet: str | None, pools: Sequence[wire.Pool], counts: Sequence[job_wire.JobCount], now: datetime
) -> str:
    """Summarize the fleet in one line."""
    counted = [kind for pool in pools for kind in (pool.gpus, *(pool.slices or ())) if kind]
    running = sum(c.jobs for c in counts if c.state is JobState.RUNNING)
    waiting = [c for c in counts if _wants(c)]
    devices_wanted = sum(c.devices for c in waiting)
    parts = [
        f"{fleet or 'no fleet yet'}  {now:%H:%M:%S}Z",
        f"{sum(k.in_use for k in counted)} of {sum(k.total for k in counted)} GPUs and slices in use",
        f"{count(running, 'job')} running",
        f"{count(sum(c.jobs for c in waiting), 'job')} waiting for {devices_wanted}",
    ]
    return "   ".join(parts)


def pools_in_use(
    pools: Sequence[wire.Pool],
    counts: Sequence[job_wire.JobCount],
    used: Sequence[gpu_wire.SupplyUse] = (),
) -> TableView:
    """Return a table with one row for each pool and kind of slice, with the teams that hold and want it.

    `used`: what those in use did in the last window that was read. What was not measured is not counted busy,
    and not idle either: a star says that a part of them was not measured.
    """
    busy = {(u.pool, u.slice): u for u in used}
    columns = [
        *Column.names("POOL", "GPU"),
        *Column.numbers("TOTAL", "IN USE"),
        Column("BUSY", right=True, hide_if_empty=True),
        *Column.numbers("FREE", "WANTED"),
        Column("TEAMS: HOLD+WANT", fit=Fit.END),
    ]
    rows = []
    for pool in pools:
        kinds: list[tuple[str | None, wire.Counts | None]] = [(s.slice, s) for s in pool.slices or ()]
        if not kinds or (pool.gpus and pool.gpus.total):
            kinds.insert(0, (None, pool.gpus))
        for kind, devices in kinds:
            pool_counts = [c for c in counts if (c.pool, c.slice) == (pool.name, kind)]
            total, in_use, free = (devices.total, devices.in_use, devices.free) if devices else (None,) * 3
            rows.append(
                [
                    f"{pool.name}/{kind}" if kind else pool.name,
                    pool.gpu,
                    number(total),
                    number(in_use),
                    _busy(busy.get((pool.name, kind)), in_use),
                    number(free),
                    str(sum(c.devices for c in pool_counts if _wants(c))),
                    _teams(pool_counts),
                ]
            )
    return TableView(
        columns,
        rows,
        empty="no pools yet",
        hint="give the server a fleet:  fairway server -f fleet.yaml",
        alarming=frozenset(i for i, row in enumerate(rows) if row[5] == "0" and row[6] != "0"),
        notes=[_PARTLY] if any(row[4].endswith("*") for row in rows) else [],
    )


def open_jobs(groups: Sequence[JobGroup], now: datetime) -> TableView:
    """Return a table of running and waiting jobs; tasks of an array are one row for each state."""
    columns = [
        Column("JOB"),
        Column("NAME", fit=Fit.MIDDLE),
        Column("STATE"),
        Column("GPUS", right=True),
        *Column.names("POOL", "TEAM", "USER"),
        Column("FOR", right=True),
        Column("BUSY %", right=True, hide_if_empty=True),
        Column("NOTE", fit=Fit.END, hide_if_empty=True),
    ]
    rows = [
        [
            group.id,
            name_text(group),
            state_text(job),
            gpus_text(job),
            pool_text(job),
            job.team or UNKNOWN,
            job.user or UNKNOWN,
            run_time(job, now) if job.state is JobState.RUNNING else since(job.submitted_at, now),
            now_text(job.use) if job.use and job.state is JobState.RUNNING and group.tasks is None else "",
            note(job, now),
        ]
        for group in groups
        for job in [group.job]
    ]
    return TableView(
        columns, rows, empty="no running or waiting jobs", hint="run one:  fairway run --gpus 1 -- nvidia-smi"
    )


def _busy(used: gpu_wire.SupplyUse | None, in_use: int | None) -> str:
    """Format how many of those in use were busy on average: `12`, with a star if not all were measured."""
    if used is None:
        return ""
    return f"{used.busy_gpus:.0f}{'*' if in_use and used.measured_gpus < _MOST * in_use else ''}"


def _wants(c: job_wire.JobCount) -> bool:
    return c.state in (JobState.WAITING, JobState.QUEUED)


def _teams(counts: Sequence[job_wire.JobCount]) -> str:
    """Format the teams of a pool, the largest first: `research 16+8, product 14`."""
    used: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for c in counts:
        if c.state is not JobState.HELD:
            by_team = wanted if _wants(c) else used
            by_team[c.team or "others"] = by_team.get(c.team or "others", 0) + c.devices
    teams = sorted({*used, *wanted}, key=lambda t: (-used.get(t, 0), -wanted.get(t, 0), t))
    texts = [f"{t} {used.get(t, 0)}" + (f"+{wanted[t]}" if wanted.get(t) else "") for t in teams[:_MAX_TEAMS]]
    return ", ".join([*texts, *([f"{len(teams) - _MAX_TEAMS} more"] if len(teams) > _MAX_TEAMS else [])])
