"""Run the tasks of a study in processes of their own: what is sent to each, and what comes back.

pool = start_processes(n, work)
pool.submit(run_task, (scenario_number, seed))
end_processes(pool)
"""

from __future__ import annotations

import copyreg
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any, NamedTuple

from fairway.model.errors import FairwayError, PermanentError
from fairway.model.trace import TraceJob
from fairway.simulate.garbage import collect_garbage_less_often
from fairway.simulate.replay.scenario import Scenario, ScenarioRun, run_scenario

StudyWork = tuple[Sequence[Scenario], Sequence[TraceJob]]
Task = tuple[int, int]
"""The number of a scenario, and a seed."""

_work: list[StudyWork] = []
"""In a process of its own: the scenarios and the trace, sent once rather than with each task."""


class Failure(NamedTuple):
    """An error of a process, which cannot be sent as it is."""

    code: str
    message: str
    hint: str


def allow_sending() -> None:
    """Let read-only mappings be sent to processes, which Python does not by itself."""
    copyreg.pickle(MappingProxyType, _reduce_mapping)


def distinct_scenarios(scenarios: Sequence[Scenario]) -> list[int]:
    """Return for each scenario the number of the first that is the same but for its name."""
    keys = [(s.fleet, dict(s.sizes), s.options) for s in scenarios]
    return [keys.index(key) for key in keys]


def start_processes(count: int, work: StudyWork) -> ProcessPoolExecutor:
    """Return a pool of at most `count` processes that run tasks of a study; the first task starts them."""
    allow_sending()
    # Not fork: Polars has threads of its own, whose locks a forked process would find taken.
    return ProcessPoolExecutor(count, get_context("spawn"), begin_process, (work,))


def end_processes(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool, whatever they do, and wait for their ends."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(cancel_futures=True)


def begin_process(work: StudyWork) -> None:
    """Prepare a process: Ctrl-C is handled by the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_garbage_less_often()
    _work.append(work)


def run_task(task: Task) -> ScenarioRun | Failure:
    """Run one scenario with one seed."""
    scenarios, trace = _work[0]
    number, seed = task
    try:
        return run_scenario(scenarios[number], trace, seed)
    except FairwayError as error:
        return Failure(error.code, error.message, error.hint)


def checked(found: ScenarioRun | Failure) -> ScenarioRun:
    """Return the run of a process. Raises PermanentError for its failure."""
    if isinstance(found, Failure):
        raise PermanentError(*found)
    return found


def _reduce_mapping(mapping: MappingProxyType[Any, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _mapping, (dict(mapping),)


def _mapping(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)
