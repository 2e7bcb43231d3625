"""Format the screen of `fairway top`: pools with the teams that hold and want them, then jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fairway.cli.output.format import UNKNOWN, count, number, since
from fairway.cli.output.jobs import Group, name_text, ran
from fairway.cli.output.table import Column, Fit, TableView
from fairway.model.job import JobState
from fairway.views.jobs import gpus_text, note, pool_text, state_text
from fairway.wire import fleet as wire
from fairway.wire import jobs as job_wire

_Supply = tuple[str | None, str | None]
_MOST_TEAMS = 4


def headline(
    fleet: str | None, pools: Sequence[wire.Pool], counts: Sequence[job_wire.JobCount], now: datetime
) -> str:
    """Summarize the fleet in one line."""
    seen = [kind for pool in pools for kind in (pool.gpus, *(pool.slices or ())) if kind]
    running = sum(c.jobs for c in counts if c.state is JobState.RUNNING)
    waiting = [c for c in counts if c.state in (JobState.WAITING, JobState.QUEUED)]
    wanted = sum(c.devices for c in waiting)
    parts = [
        f"{fleet or 'no fleet yet'}  {now:%H:%M:%S}Z",
        f"{sum(k.in_use for k in seen)} of {sum(k.total for k in seen)} GPUs and slices in use",
        f"{count(running, 'job')} running",
        f"{count(sum(c.jobs for c in waiting), 'job')} waiting for {wanted}",
    ]
    return "   ".join(parts)


def pools_in_use(pools: Sequence[wire.Pool], counts: Sequence[job_wire.JobCount]) -> TableView:
    """Return a table with one row for each pool and kind of slice, with the teams that hold and want it."""
    columns = [
        Column("POOL", fit=Fit.MIDDLE),
        Column("GPU", fit=Fit.MIDDLE),
        Column("TOTAL", right=True),
        Column("IN USE", right=True),
        Column("FREE", right=True),
        Column("WANTED", right=True),
        Column("TEAMS: HOLD+WANT", fit=Fit.END),
    ]
    rows = []
    for pool in pools:
        kinds: list[tuple[str | None, wire.Counts | None]] = [(s.slice, s) for s in pool.slices or ()]
        if not kinds or (pool.gpus and pool.gpus.total):
            kinds.insert(0, (None, pool.gpus))
        for kind, seen in kinds:
            here = [c for c in counts if (c.pool, c.slice) == (pool.name, kind)]
            rows.append(
                [
                    f"{pool.name}/{kind}" if kind else pool.name,
                    pool.gpu,
                    *(number(n) for n in ((seen.total, seen.in_use, seen.free) if seen else (None,) * 3)),
                    str(sum(c.devices for c in here if _wants(c))),
                    _teams(here),
                ]
            )
    return TableView(
        columns,
        rows,
        empty="no pools yet",
        hint="give the server a fleet:  fairway server -f fleet.yaml",
        alarming=frozenset(i for i, row in enumerate(rows) if row[4] == "0" and row[5] != "0"),
    )


def open_jobs(groups: Sequence[Group], now: datetime) -> TableView:
    """Return a table of running and waiting jobs; tasks of an array are one row for each state."""
    columns = [
        Column("JOB"),
        Column("NAME", fit=Fit.MIDDLE),
        Column("STATE"),
        Column("GPUS", right=True),
        Column("POOL", fit=Fit.MIDDLE),
        Column("TEAM", fit=Fit.MIDDLE),
        Column("USER", fit=Fit.MIDDLE),
        Column("FOR", right=True),
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
            ran(job, now) if job.state is JobState.RUNNING else since(job.submitted_at, now),
            note(job),
        ]
        for group in groups
        for job in [group.job]
    ]
    return TableView(columns, rows, empty="nothing runs or waits", hint="fairway run --gpus 1 -- nvidia-smi")


def _wants(c: job_wire.JobCount) -> bool:
    return c.state in (JobState.WAITING, JobState.QUEUED)


def _teams(here: Sequence[job_wire.JobCount]) -> str:
    """Format the teams of a pool, the largest first: `research 16+8, product 14`."""
    held: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for c in here:
        into: Mapping[bool, dict[str, int]] = {True: wanted, False: held}
        if c.state is not JobState.HELD:
            of = into[_wants(c)]
            of[c.team or "others"] = of.get(c.team or "others", 0) + c.devices
    teams = sorted({*held, *wanted}, key=lambda t: (-held.get(t, 0), -wanted.get(t, 0), t))
    said = [f"{t} {held.get(t, 0)}" + (f"+{wanted[t]}" if wanted.get(t) else "") for t in teams[:_MOST_TEAMS]]
    return ", ".join([*said, *([f"{len(teams) - _MOST_TEAMS} more"] if len(teams) > _MOST_TEAMS else [])])
