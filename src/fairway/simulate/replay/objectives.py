"""Judge a replay by service level objectives, and find what it held beyond some number of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from fairway.model.names import PoolName
from fairway.model.slo import DeliveredWithin, Slo
from fairway.model.team import TeamTree
from fairway.policy.slo import Counts, JobHistory, Run, count
from fairway.policy.slo_scope import JobTraits, SloScope
from fairway.simulate.replay.metrics import gpu_parts
from fairway.simulate.replay.run import JobOutcome, RunResult


def count_objectives(result: RunResult, slos: Iterable[Slo]) -> dict[str, Counts]:
    """Count the good and bad events of each objective by the jobs of the measured time, by its name."""
    tree, default = TeamTree(result.fleet.teams), result.fleet.default_priority.name
    parts = {supply: float(part) for supply, part in gpu_parts(result).items()}
    found = {}
    for slo in slos:
        scope = SloScope(slo, tree, default)
        histories = [
            _history(one, slo, parts[one.supply])
            for one in result.outcomes()
            if scope.counts(
                JobTraits(one.team, one.supply.pool, one.job.priority or default, one.job.devices)
            )
        ]
        slots = count(slo, histories, -inf, inf, {})
        good, bad = sum(c.good for c in slots.values()), sum(c.bad for c in slots.values())
        found[slo.name] = Counts(good, bad)
    return found


def _history(one: JobOutcome, slo: Slo, gpu_part: float) -> JobHistory:
    """Return a job's history. Of attempts that were preempted, the last alone delivered its GPU-hours."""
    runs: tuple[Run, ...] = ()
    if one.started is not None:
        started = one.started
        if isinstance(slo.promise, DeliveredWithin) and one.attempts > 1 and one.ended is not None:
            started = max(started, one.ended - one.job.seconds)
        runs = (Run(started, one.ended, one.job.devices),)
    return JobHistory(
        one.submitted, one.job.devices, runs, one.ended, one.job.limit_seconds, gpu_part=gpu_part
    )


def held_beyond(result: RunResult, gpus: Mapping[PoolName, float]) -> dict[PoolName, float]:
    """Return the GPU-hours that were held in each pool beyond a number of GPUs in the measured time."""
    parts = {supply: float(part) for supply, part in gpu_parts(result).items()}
    changes: dict[PoolName, list[tuple[float, float]]] = {pool: [] for pool in gpus}
    for one in result.outcomes(counted=False):
        if one.started is None or one.supply.pool not in changes:
            continue
        held = one.job.devices * parts[one.supply]
        start = one.started if one.ended is None else max(one.started, one.ended - one.job.seconds)
        changes[one.supply.pool] += [(start, held), (result.end if one.ended is None else one.ended, -held)]
    return {pool: _beyond(found, gpus[pool], result.begin, result.end) for pool, found in changes.items()}


def _beyond(changes: list[tuple[float, float]], gpus: float, begin: float, end: float) -> float:
    total = held = 0.0
    at = begin
    for then, change in sorted(changes):
        until = min(max(then, begin), end)
        total += max(0.0, held - gpus) * (until - at)
        at, held = until, held + change
    return (total + max(0.0, held - gpus) * (end - at)) / 3600
