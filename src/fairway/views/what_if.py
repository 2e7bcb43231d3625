"""Make the report of a what-if study from the figures of its replays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from fairway.simulate.replay import (
    JobStats,
    LeftOut,
    ObservedMetrics,
    Scenario,
    ScenarioRun,
    SizeClass,
    TeamStats,
    estimate,
    size_of,
    with_sizes,
)
from fairway.wire import what_if as wire

Figures = TypeVar("Figures")

OBSERVED: Final = "really happened"


@dataclass(frozen=True, slots=True)
class StudyRuns:
    """The runs of one scenario, by seed in the same order for all scenarios."""

    scenario: Scenario
    runs: Sequence[ScenarioRun]


def what_if_report(source: str, studied: Sequence[StudyRuns], skipped: Mapping[str, int]) -> wire.WhatIf:
    """Return the report; the first scenario is the current file. `skipped`: jobs that the reader left out."""
    current = studied[0]
    first = current.runs[0].metrics
    scenarios = [
        _scenario(one, current, "changed" if number else "current") for number, one in enumerate(studied)
    ]
    observed = current.runs[0].observed
    if observed is not None:
        scenarios.insert(0, _observed(observed))
    jobs = first.total.jobs + first.left_out_jobs
    notes = [f"{jobs:,} {why} were not read" for why, jobs in skipped.items()]
    if observed is not None and observed.unknown:
        notes.append(f"the real start of {observed.unknown:,} jobs is not known")
    if observed is not None and observed.preemptions:
        notes.append(
            "USED % of what really happened has no attempts that were preempted: the trace has only the last"
        )
    return wire.WhatIf(
        source=source,
        fleet=current.scenario.fleet.name,
        currency=current.scenario.fleet.currency,
        begin=datetime.fromtimestamp(first.begin, UTC),
        end=datetime.fromtimestamp(first.end, UTC),
        jobs=jobs,
        seeds=len(current.runs),
        scenarios=scenarios,
        notes=notes,
    )


def _scenario(one: StudyRuns, current: StudyRuns, kind: str) -> wire.ScenarioFigures:
    metrics = [run.metrics for run in one.runs]
    before = [run.metrics for run in current.runs]
    first = metrics[0]
    is_current = one is current
    return wire.ScenarioFigures(
        name=one.scenario.name,
        kind="current" if kind == "current" else "changed",
        settings=list(one.scenario.settings),
        waits=_waits([m.total for m in metrics]),
        mean_wait_change=None
        if is_current
        else _change([m.total.mean_wait for m in before], [m.total.mean_wait for m in metrics]),
        p95_wait_change=None
        if is_current
        else _change([m.total.p95_wait for m in before], [m.total.p95_wait for m in metrics]),
        sizes=[
            wire.SizeFigures(size=size.value, waits=_waits([m.sizes.get(size, JobStats()) for m in metrics]))
            for size in SizeClass
            if size in first.sizes
        ],
        teams=[_team(name, [m.teams[name] for m in metrics if name in m.teams]) for name in first.teams],
        pools=_pools(one),
        utilisation=_mean(metrics, lambda m: m.utilisation),
        fragmentation=_mean(metrics, lambda m: m.fragmentation),
        limited=_mean(metrics, lambda m: m.limited),
        gpu_hours=_mean(metrics, lambda m: m.gpu_hours),
        preemptions=_mean(metrics, lambda m: m.preemptions),
        node_losses=_mean(metrics, lambda m: m.node_losses),
        lost_gpu_hours=_mean(metrics, lambda m: m.lost_gpu_hours),
        fairness=_mean(metrics, lambda m: m.fairness),
        cost=_mean(metrics, lambda m: float(m.cost)),
        left_out=[_left_out(found) for found in first.left_out],
    )


def _observed(found: ObservedMetrics) -> wire.ScenarioFigures:
    return wire.ScenarioFigures(
        name=OBSERVED,
        kind="observed",
        settings=[],
        waits=_waits([found.total]),
        mean_wait_change=None,
        p95_wait_change=None,
        sizes=[wire.SizeFigures(size=size.value, waits=_waits([s])) for size, s in found.sizes.items()],
        teams=[
            wire.TeamFigures(
                team=name,
                waits=_waits([team.waits]),
                gpu_hours=_single(team.gpu_hours),
                used_part=team.gpu_hours / found.gpu_hours if found.gpu_hours else 0.0,
                share_part=None,
                service=None,
                preemptions=None,
                lost_gpu_hours=None,
                cost=None,
            )
            for name, team in found.teams.items()
        ],
        pools=[],
        utilisation=_single(found.utilisation),
        fragmentation=None,
        limited=None,
        gpu_hours=_single(found.gpu_hours),
        preemptions=_single(found.preemptions),
        node_losses=None,
        lost_gpu_hours=None,
        fairness=None,
        cost=None,
        left_out=[],
    )


def _team(name: str, stats: Sequence[TeamStats]) -> wire.TeamFigures:
    services = [found.service for found in stats if found.service is not None]
    return wire.TeamFigures(
        team=name,
        waits=_waits([found.waits for found in stats]),
        gpu_hours=_mean(stats, lambda s: s.gpu_hours),
        used_part=_mean(stats, lambda s: s.used_part).mean,
        share_part=stats[0].share_part,
        service=_wire(services) if services else None,
        preemptions=_mean(stats, lambda s: s.preemptions),
        lost_gpu_hours=_mean(stats, lambda s: s.lost_gpu_hours),
        cost=_mean(stats, lambda s: float(s.cost)),
    )


def _pools(one: StudyRuns) -> list[wire.PoolFigures]:
    sized = with_sizes(one.scenario.fleet, one.scenario.sizes)
    found = []
    for pool in sized.pools:
        stats = [run.metrics.pools[pool.name] for run in one.runs]
        available = sum(s.available_gpu_hours for s in stats) or 1.0
        found.append(
            wire.PoolFigures(
                pool=pool.name,
                nodes=size_of(pool).nodes,
                gpus_per_node=size_of(pool).gpus_per_node,
                utilisation=sum(s.used_gpu_hours for s in stats) / available,
                fragmentation=sum(s.fragmented_gpu_hours for s in stats) / available,
                limited=sum(s.limited_gpu_hours for s in stats) / available,
            )
        )
    return found


def _waits(stats: Sequence[JobStats]) -> wire.Waits:
    return wire.Waits(
        jobs=stats[0].jobs,
        never_started=_mean(stats, lambda s: s.never_started),
        mean_wait=_mean(stats, lambda s: s.mean_wait),
        median_wait=_mean(stats, lambda s: s.median_wait),
        p95_wait=_mean(stats, lambda s: s.p95_wait),
        slowdown=_mean(stats, lambda s: s.slowdown),
    )


def _left_out(found: LeftOut) -> wire.LeftOutJobs:
    return wire.LeftOutJobs(
        code=found.code, message=found.message, jobs=found.jobs, gpu_hours=found.gpu_hours
    )


def _mean(found: Sequence[Figures], figure: Callable[[Figures], float]) -> wire.Estimate:
    return _wire([figure(one) for one in found])


def _single(value: float) -> wire.Estimate:
    return _wire([value])


def _wire(values: Sequence[float]) -> wire.Estimate:
    found = estimate(values)
    return wire.Estimate(mean=found.mean, margin=found.margin)


def _change(before: Sequence[float], after: Sequence[float]) -> wire.Estimate | None:
    """Return the relative change, seed by seed: both sides meet the same chance."""
    if not all(value > 0 for value in before):
        return None
    return _wire([new / old - 1 for old, new in zip(before, after, strict=True)])
