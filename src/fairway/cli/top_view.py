"""The screen of `fairway top`: pools with who holds and wants them, then jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fairway.api import job_wire, wire
from fairway.api.job_words import gpus_text, note, pool_text, state_text
from fairway.cli.job_views import Group, name_text, ran
from fairway.cli.layout import Column, Fit
from fairway.cli.views import View
from fairway.cli.words import UNKNOWN, count, number, since
from fairway.model.job import JobState

_Supply = tuple[str | None, str | None]
_MOST_TEAMS = 4


def headline(
    fleet: str | None, pools: Sequence[wire.Pool], counts: Sequence[job_wire.JobCount], now: datetime
) -> str:
    """The fleet in one line."""
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


def pools_in_use(pools: Sequence[wire.Pool], counts: Sequence[job_wire.JobCount]) -> View:
    """One row a pool and kind of slice, with the teams that hold and want it."""
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
    return View(
        columns,
        rows,
        empty="no pools yet",
        hint="give the server a fleet:  fairway server -f fleet.yaml",
        alarming=frozenset(i for i, row in enumerate(rows) if row[4] == "0" and row[5] != "0"),
    )


def open_jobs(groups: Sequence[Group], now: datetime) -> View:
    """Running and waiting jobs; tasks of an array in one line for each state."""
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
    return View(columns, rows, empty="nothing runs or waits", hint="fairway run --gpus 1 -- nvidia-smi")


def _wants(c: job_wire.JobCount) -> bool:
    return c.state in (JobState.WAITING, JobState.QUEUED)


def _teams(here: Sequence[job_wire.JobCount]) -> str:
    """`research 16+8, product 14`: the largest first."""
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
