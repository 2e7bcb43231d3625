"""Advise on a job's use of its GPUs: what limits it, what the next one should request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from statistics import median
from typing import Final, NamedTuple

from fairway.advise.diagnosis import diagnose
from fairway.advise.right_size import MAX_JOBS, PastJob, RightSize, name_pattern, right_sizes
from fairway.cost.job_cost import estimate_cost
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.access import JobPermission
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import ENDED_JOBS, JobState
from fairway.model.names import SliceName
from fairway.services.convert import jobs as convert
from fairway.services.gpu_use import job_figures
from fairway.services.job_costs import sees_cost
from fairway.services.rights import Person
from fairway.wire import jobs as wire

_MAX_READ: Final = 3 * MAX_JOBS
"""Jobs of a user whose names begin alike, of which those of the same pattern count."""
_MIN_WAITS: Final = 5
_MAX_WAITS: Final = 50


class Advice(NamedTuple):
    """What is to be said of a job's GPUs, as far as a person may see it."""

    diagnosis: wire.Diagnosis | None = None
    right_size: wire.RightSize | None = None


async def advise_job(ledger: Ledger, fleet: Fleet, found: JobDetail, person: Person, now: datetime) -> Advice:
    """Advise on a job. Its owner, leads and operators also get advice on the next request."""
    row = found.row
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    if pool is None:
        return Advice()
    figures = (await job_figures(ledger, [row.id], fleet, now)).get(row.id)
    said = diagnose(figures, fleet.diagnosis.thresholds, pool.gpu) if figures else None
    advice = None
    whose = "your" if person.user == row.user else f"{row.user}'s"
    if person.may(JobPermission.READ, row):
        advice = await _right_size(ledger, fleet, pool, row, now)
    return Advice(
        convert.diagnosis(said, row.id, over=row.state in ENDED_JOBS) if said else None,
        convert.right_size(*advice, whose, fleet.currency if sees_cost(person, row) else None)
        if advice
        else None,
    )


async def _right_size(
    ledger: Ledger, fleet: Fleet, pool: Pool, row: JobRow, now: datetime
) -> tuple[RightSize, float | None] | None:
    """Advise what the next job of this name should request, and how much less its like wait, if known."""
    if row.slice is not None or not row.user:
        return None
    pattern = name_pattern(row.name)
    which = JobFilter(
        user=row.user, pool=row.pool, states=tuple(ENDED_JOBS), name_begins=(pattern.removesuffix("*"),)
    )
    page = await ledger.jobs.page(which, limit=_MAX_READ)
    past = [one for one in page if name_pattern(one.name) == pattern and one.slice is None][:MAX_JOBS]
    figures = await job_figures(ledger, [one.id for one in past], fleet, now)
    sliced = [p for p in fleet.pools if p.gpu == pool.gpu and p.slices]
    prices = {s: _per_hour(fleet, p, s, now) for p in sliced for s in p.slices}
    advice = right_sizes(
        [PastJob(one.name, figures[one.id]) for one in past if one.id in figures],
        pool.gpu,
        _per_hour(fleet, pool, None, now),
        prices,
        tuple(prices),
    )
    if not advice:
        return None
    (one,) = advice
    smaller = next((p for p in sliced if one.slice in p.slices), None)
    if one.slice is None or smaller is None:
        return one, None
    return one, await _saved_wait(ledger, past, smaller, one.slice)


def _per_hour(fleet: Fleet, pool: Pool, slice_: SliceName | None, now: datetime) -> Decimal:
    return estimate_cost(fleet, pool, slice_, 3600, now)


async def _saved_wait(ledger: Ledger, past: Sequence[JobRow], pool: Pool, slice_: SliceName) -> float | None:
    """Return how much longer past jobs waited than as many on a slice usually do. None: it is not known."""
    states = (*ENDED_JOBS, JobState.RUNNING)
    page = await ledger.jobs.page(JobFilter(pool=pool.name, states=states), limit=_MAX_WAITS)
    there, here = _waits([one for one in page if one.slice == slice_]), _waits(past)
    if len(there) < _MIN_WAITS or len(here) < _MIN_WAITS:
        return None
    return sum(here) - len(here) * median(there)


def _waits(rows: Sequence[JobRow]) -> list[float]:
    """Return how long jobs waited for their only start."""
    return [
        (row.started_at - row.submitted_at).total_seconds()
        for row in rows
        if row.started_at is not None and row.attempts == 1
    ]
