"""The step of the what-if loop: run the studies that are queued, one at a time, in a process of their own."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures.process import BrokenProcessPool
from typing import Final

import structlog

from fairway.ledger import Lease, Ledger
from fairway.ledger.what_if import MAX_TRIES, StoredStudy
from fairway.model.errors import PermanentError
from fairway.services.errors import RequestError
from fairway.services.fleets import Fleets
from fairway.services.what_if import PreparedStudy, prepare_study
from fairway.simulate.replay import ScenarioRun
from fairway.simulate.replay.tasks import (
    Task,
    checked,
    distinct_scenarios,
    end_processes,
    run_task,
    start_processes,
)
from fairway.views.what_if import StudyRuns, what_if_report

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

STUDY_SECONDS: Final = 1200.0
"""Time limit of a study."""


class RunStudies:
    """Runs queued studies. A study of a server that ended is begun again, once."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, study_seconds: float = STUDY_SECONDS) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._study_seconds = study_seconds

    async def __call__(self, lease: Lease) -> None:
        """Run the oldest study that has not ended, if there is one."""
        async with self._ledger.writing(lease) as tx:
            study = await tx.studies.begin()
        if study is None:
            return
        try:
            if study.tries > MAX_TRIES:
                raise _ended()
            result = await self._run(lease, study)
        except (PermanentError, RequestError) as error:
            log.warning("study failed", study=study.id, code=error.code, message=error.message)
            async with self._ledger.writing(lease) as tx:
                await tx.studies.fail(study.id, error)
            return
        async with self._ledger.writing(lease) as tx:
            await tx.studies.finish(study.id, result)
        log.info("study done", study=study.id)

    async def _run(self, lease: Lease, study: StoredStudy) -> str:
        prepared = await prepare_study(self._ledger, self._fleets, study)
        distinct = distinct_scenarios(prepared.scenarios)
        tasks = [(number, seed) for seed in range(study.seeds) for number in sorted(set(distinct))]
        done = await self._run_tasks(lease, study, prepared, tasks)
        studied = [
            StudyRuns(scenario, [done[number, seed] for seed in range(study.seeds)])
            for scenario, number in zip(prepared.scenarios, distinct, strict=True)
        ]
        return what_if_report(prepared.source, studied, {}).model_dump_json()

    async def _run_tasks(
        self, lease: Lease, study: StoredStudy, prepared: PreparedStudy, tasks: list[Task]
    ) -> dict[Task, ScenarioRun]:
        until = time.monotonic() + self._study_seconds
        pool = start_processes(1, (prepared.scenarios, prepared.trace))
        done: dict[Task, ScenarioRun] = {}
        try:
            for task in tasks:
                future = await asyncio.to_thread(pool.submit, run_task, task)
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    done[task] = checked(await asyncio.wrap_future(future))
                async with self._ledger.writing(lease) as tx:
                    await tx.studies.progress(study.id, len(done) / len(tasks))
        except TimeoutError:
            raise PermanentError(
                "StudyTooLong",
                f"the study took longer than {self._study_seconds / 60:.0f} min",
                "choose fewer days, values or seeds, or run it on another machine:  fairway simulate",
            ) from None
        except BrokenProcessPool:
            raise _ended() from None
        finally:
            await asyncio.to_thread(end_processes, pool)
        return done


def _ended() -> PermanentError:
    return PermanentError(
        "SimulationEnded",
        "the process of the study was ended from outside, perhaps because memory ran out",
        "choose fewer days, or run it on another machine:  fairway simulate",
    )
