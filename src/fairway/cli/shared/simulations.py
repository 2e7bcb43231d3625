"""Run the scenarios of a what-if study, in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from fairway.model.errors import PermanentError
from fairway.model.trace import TraceJob
from fairway.simulate.garbage import collect_garbage_less_often
from fairway.simulate.replay import Scenario, ScenarioRun, run_scenario
from fairway.simulate.replay.tasks import (
    StudyWork,
    Task,
    checked,
    distinct_scenarios,
    end_processes,
    run_task,
    start_processes,
)
from fairway.views.what_if import StudyRuns

_FEW_JOBS: Final = 5_000
"""Replays of fewer jobs in all are done before another process has started."""


def run_study(
    scenarios: Sequence[Scenario],
    trace: Sequence[TraceJob],
    seeds: int,
    on_progress: Callable[[float], None],
) -> list[StudyRuns]:
    """Replay the trace under every scenario with every seed. Scenarios that are the same run once.

    Ctrl-C ends all processes.
    """
    collect_garbage_less_often()
    distinct = distinct_scenarios(scenarios)
    tasks = [(number, seed) for seed in range(seeds) for number in sorted(set(distinct))]
    processes = min(len(tasks), len(os.sched_getaffinity(0)))
    if processes == 1 or len(tasks) * len(trace) < _FEW_JOBS:
        done = _run_here(scenarios, trace, tasks, on_progress)
    else:
        done = _run_beside((scenarios, trace), tasks, processes, on_progress)
    return [
        StudyRuns(scenario, [done[number, seed] for seed in range(seeds)])
        for scenario, number in zip(scenarios, distinct, strict=True)
    ]


def _run_here(
    scenarios: Sequence[Scenario],
    trace: Sequence[TraceJob],
    tasks: Sequence[Task],
    on_progress: Callable[[float], None],
) -> dict[Task, ScenarioRun]:
    done = {}
    for count, (number, seed) in enumerate(tasks):
        done[number, seed] = run_scenario(
            scenarios[number],
            trace,
            seed,
            lambda part, before=count: on_progress((before + part) / len(tasks)),  # type: ignore[misc]
        )
    return done


def _run_beside(
    work: StudyWork,
    tasks: Sequence[Task],
    processes: int,
    on_progress: Callable[[float], None],
) -> dict[Task, ScenarioRun]:
    pool = start_processes(processes, work)
    done: dict[Task, ScenarioRun] = {}
    try:
        futures = {pool.submit(run_task, task): task for task in tasks}
        for future in as_completed(futures):
            done[futures[future]] = checked(future.result())
            on_progress(len(done) / len(tasks))
    except BrokenProcessPool as error:
        raise PermanentError(
            "SimulationEnded",
            "a process of the simulation was ended from outside, perhaps because memory ran out",
            "replay fewer days or fewer jobs at once:  --days 7",
        ) from error
    finally:
        end_processes(pool)
    return done
