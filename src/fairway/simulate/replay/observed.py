"""Measure what really happened to the jobs of a replay, from the starts in the trace, as its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairway.model.names import TeamName
from fairway.simulate.replay.metrics import (
    JobFigures,
    JobStats,
    RunMetrics,
    SizeClass,
    gpu_parts,
    size_class,
    slowdown,
)
from fairway.simulate.replay.run import RunResult


@dataclass(frozen=True, slots=True)
class ObservedTeam:
    """What one team's own jobs really got."""

    waits: JobStats
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class ObservedMetrics:
    """The figures of what really happened, of the jobs whose start the trace tells."""

    total: JobStats
    sizes: Mapping[SizeClass, JobStats]
    teams: Mapping[TeamName, ObservedTeam]
    gpu_hours: float
    """Within the measured time, also of jobs that had started before it."""
    utilisation: float
    """Of the GPU-hours that the replay had."""
    preemptions: int
    unknown: int
    """Jobs of the replay whose start the trace does not tell."""


def measure_observed(result: RunResult, replayed: RunMetrics) -> ObservedMetrics | None:
    """Compute the figures of what really happened; None if the trace tells no start. O(jobs log jobs).

    Only jobs that were replayed count, so that both sides have the same jobs.
    """
    total, by_size, by_team = JobFigures(), dict[SizeClass, JobFigures](), dict[TeamName, JobFigures]()
    hours: dict[TeamName, float] = {}
    weights = gpu_parts(result)
    preemptions = unknown = known = 0
    for outcome in result.outcomes(counted=False):
        job = outcome.job
        counted = result.begin <= job.at <= result.end
        if job.started is None:
            if job.cancelled_after is None:
                unknown += counted
                continue
            wait, ran = job.cancelled_after, 0.0
        else:
            wait, ran = max(0.0, job.started - job.at), job.seconds
            inside = min(job.started + ran, result.end) - max(job.started, result.begin)
            if inside > 0:
                used = inside * job.devices * float(weights[outcome.supply]) / 3600
                hours[outcome.team] = hours.get(outcome.team, 0.0) + used
        if not counted:
            continue
        known += job.started is not None
        preemptions += job.preemptions
        values = (wait, slowdown(wait, ran, wait + ran))
        started = job.started is not None
        total.add(*values, started=started)
        by_size.setdefault(size_class(job.devices), JobFigures()).add(*values, started=started)
        by_team.setdefault(outcome.team, JobFigures()).add(*values, started=started)
    if not known:
        return None
    available = sum(pool.available_gpu_hours for pool in replayed.pools.values())
    used_hours = sum(hours.values())
    return ObservedMetrics(
        total.stats(),
        {size: by_size[size].stats() for size in SizeClass if size in by_size},
        {
            name: ObservedTeam(by_team[name].stats() if name in by_team else JobStats(), hours.get(name, 0.0))
            for name in replayed.teams
        },
        used_hours,
        used_hours / available if available else 0.0,
        preemptions,
        unknown,
    )
