"""Advise on a job's use of its GPUs: what limits it."""

from __future__ import annotations

from datetime import datetime

from fairway.advise.diagnosis import diagnose
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.model.fleet import Fleet
from fairway.services.convert import jobs as convert
from fairway.services.gpu_use import job_figures
from fairway.wire import jobs as wire


async def diagnose_job(ledger: Ledger, row: JobRow, fleet: Fleet, now: datetime) -> wire.Diagnosis | None:
    """Diagnose how a job uses its GPUs, or used them. Returns None if there is nothing to say."""
    figures = (await job_figures(ledger, [row.id], fleet, now)).get(row.id)
    if figures is None:
        return None
    gpu = next((pool.gpu for pool in fleet.pools if pool.name == row.pool), None)
    found = diagnose(figures, fleet.diagnosis.thresholds, gpu)
    return None if found is None else convert.diagnosis(found, row.id)
