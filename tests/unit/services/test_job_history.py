"""Past jobs as a trace: what the ledger knows of each, and what a replay makes of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fairway.files.traces.read import read_trace
from fairway.ledger import Ledger
from fairway.ledger.jobs import history
from fairway.model.job import Ending, JobState
from fairway.model.trace import TraceJob
from fairway.services import job_history
from fairway.services.errors import RequestError
from fairway.services.job_history import export_jobs
from tests.unit.api.conftest import FLEET
from tests.unit.ledger.job_samples import START, Desk, at, run, seen


async def exported(ledger: Ledger, folder: Path, now: datetime | None = None) -> list[TraceJob]:
    """The trace of the last day as a reader reads it."""
    pieces = [piece async for piece in await export_jobs(ledger, FLEET, now or at(100), 1)]
    path = folder / "jobs.csv"
    path.write_text("".join(pieces))
    return list(read_trace(path))


async def test_what_became_of_each_job(ledger: Ledger, tmp_path: Path) -> None:
    desk = await Desk.of(ledger)
    await desk.see(
        seen("1", "done", JobState.DONE, run(10, 40)),
        seen("2", "preempted", JobState.DONE, run(5, 15, Ending.PREEMPTED), run(30, 90)),
        seen("3", "failed", JobState.FAILED, run(2, 4, Ending.FAILED), submitted_at=at(1)),
        seen("4", "running", JobState.RUNNING, run(60), submitted_at=at(2)),
        seen("5", "waiting", JobState.WAITING, submitted_at=at(3)),
        seen("6", "given-up", JobState.CANCELLED, submitted_at=at(0), ended_at=at(50)),
        seen("7", "held", JobState.HELD),
        seen("8", "two-nodes", JobState.DONE, run(0, 8), gpus=4, nodes=2, time_seconds=600),
    )

    jobs = await exported(ledger, tmp_path)

    start = START.timestamp()
    by_start = {job.started and job.started - start: job for job in jobs if job.started is not None}
    assert {job.name for job in jobs} == {""}, "names are left out"
    assert all((job.user, job.team, job.pool) == ("ann", "research", "hpc-a100") for job in jobs)
    assert by_start[10].seconds == 30
    assert (by_start[5].seconds, by_start[5].preemptions) == (60, 1), "what the first attempt did was lost"
    assert by_start[2].failed and by_start[2].at == start + 1
    assert by_start[60].seconds == 40, "it has run so long"
    assert sorted(job.cancelled_after or 0 for job in jobs if job.started is None) == [50, 97]
    assert (by_start[0].nodes, by_start[0].limit_seconds) == (2, 600)
    assert len(jobs) == 7, "a job that is held did not wait for GPUs"


async def test_jobs_of_other_days_are_left_out_unless_they_still_ran(ledger: Ledger, tmp_path: Path) -> None:
    desk = await Desk.of(ledger)
    await desk.see(
        seen("1", "over", JobState.DONE, run(0, 40)),
        seen("2", "long", JobState.DONE, run(0, 86_400 + 60)),
        seen("3", "later", JobState.DONE, run(90_000, 90_010), submitted_at=at(90_000)),
    )
    day_later = at(86_400 + 50)
    assert [job.seconds for job in await exported(ledger, tmp_path, day_later)] == [86_460]


async def test_pages_of_ids_are_put_together(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PAGE", 3)
    desk = await Desk.of(ledger)
    await desk.see(*(seen(str(n), f"job-{n}", JobState.DONE, run(n, n + 10)) for n in range(10)))
    assert len(await exported(ledger, tmp_path)) == 10


async def test_too_many_jobs_are_refused_before_the_first_piece(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "MAX_IDS", 1)
    desk = await Desk.of(ledger)
    await desk.see(*(seen(str(n), f"job-{n}", JobState.DONE, run(n, n + 10)) for n in range(3)))
    with pytest.raises(RequestError) as error:
        await export_jobs(ledger, FLEET, at(0) + timedelta(days=1), 1)
    assert error.value.code == "HistoryTooLong"


async def test_an_empty_ledger_has_a_heading_alone(ledger: Ledger) -> None:
    pieces = [piece async for piece in await export_jobs(ledger, FLEET, at(0), 14)]
    assert "".join(pieces).startswith("at,seconds,gpus,nodes,user,team,pool,")
    assert "".join(pieces).count("\n") == 1
