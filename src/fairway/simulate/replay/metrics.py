"""Make figures of a replay: waits, use, fragmentation, preemptions, fairness and cost, in all and by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil, isnan
from typing import Final

from fairway.cost.rates import parts
from fairway.model.fleet import Pool
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply
from fairway.simulate.replay.fair import jains_index, share_parts
from fairway.simulate.replay.mapping import LeftOut
from fairway.simulate.replay.run import RunResult
from fairway.simulate.replay.sizes import size_of

SHORT_RUN: Final = 10.0
"""Seconds that the run of a job counts as at least in its slowdown, as usual in the field."""
_HOUR: Final = 3600.0


class SizeClass(StrEnum):
    """Jobs by GPUs (or slices) on all nodes."""

    ONE = "1"
    NODE = "2-8"
    RACK = "9-64"
    LARGE = ">64"


def size_class(devices: int) -> SizeClass:
    """Return the size class of a job."""
    if devices <= 1:
        return SizeClass.ONE
    return SizeClass.NODE if devices <= 8 else SizeClass.RACK if devices <= 64 else SizeClass.LARGE


@dataclass(frozen=True, slots=True)
class JobStats:
    """Figures of some jobs. Waits are seconds from the submission to the first start."""

    jobs: int = 0
    never_started: int = 0
    """Those count with the time that they waited until the replay ended, or until they were cancelled."""
    mean_wait: float = 0.0
    median_wait: float = 0.0
    p95_wait: float = 0.0
    slowdown: float = 0.0
    """The mean bounded slowdown: submission to end over the run time, which counts as at least 10 s."""


@dataclass(frozen=True, slots=True)
class TeamStats:
    """Figures of one team's own jobs."""

    waits: JobStats
    gpu_hours: float
    used_part: float
    """Of the GPU-hours of all teams."""
    share_part: float
    """What shares alone give it if every team with jobs wants everything."""
    service: float | None
    """GPUs that it held over those that its share gives it, while something waited. None: it wanted none."""
    preemptions: int
    node_losses: int
    lost_gpu_hours: float
    cost: Decimal
    """The list price of its GPU-hours."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """GPU-hours of one pool."""

    available_gpu_hours: float
    used_gpu_hours: float
    fragmented_gpu_hours: float
    limited_gpu_hours: float

    @property
    def utilisation(self) -> float:
        """Return the part of the available GPU-hours that jobs held."""
        return self.used_gpu_hours / self.available_gpu_hours if self.available_gpu_hours else 0.0


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The figures of one replay."""

    seed: int
    begin: float
    end: float
    total: JobStats
    sizes: Mapping[SizeClass, JobStats]
    teams: Mapping[TeamName, TeamStats]
    """Teams with jobs of their own, in the fleet's order."""
    pools: Mapping[PoolName, PoolStats]
    utilisation: float
    """The part of the available GPU-hours that jobs held."""
    fragmentation: float
    """The part that was free although a job waited that no limit held back: too little in one place, or held
    back for a job that gathers its GPUs. Sampled."""
    limited: float
    """The part that was free although something waited, all of it at a limit of its team or user. Sampled."""
    gpu_hours: float
    preemptions: int
    node_losses: int
    lost_gpu_hours: float
    """Of attempts that ended before their job did."""
    fairness: float
    """Jain's index of the teams' `service`."""
    cost: Decimal
    """The list price of all capacity that was there."""
    left_out: tuple[LeftOut, ...]

    @property
    def left_out_jobs(self) -> int:
        """Return how many jobs could not be replayed."""
        return sum(found.jobs for found in self.left_out)


class JobFigures:
    """Collects waits and slowdowns of some jobs."""

    __slots__ = ("_never", "_slowdown", "_waits")

    def __init__(self) -> None:
        self._waits: list[float] = []
        self._slowdown = 0.0
        self._never = 0

    def add(self, wait: float, slowdown: float, *, started: bool) -> None:
        self._waits.append(wait)
        self._slowdown += slowdown
        self._never += not started

    def stats(self) -> JobStats:
        """Return the figures. O(n log n)."""
        waits = sorted(self._waits)
        if not waits:
            return JobStats()
        return JobStats(
            len(waits),
            self._never,
            sum(waits) / len(waits),
            quantile(waits, 0.5),
            quantile(waits, 0.95),
            self._slowdown / len(waits),
        )


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest of sorted values that `part` of them do not exceed."""
    return values[max(0, ceil(part * len(values)) - 1)]


def slowdown(waited: float, seconds: float, until_end: float) -> float:
    """Return the bounded slowdown of a job that took `until_end` seconds from its submission to its end."""
    return max(1.0, max(until_end, waited) / max(seconds, SHORT_RUN))


def measure(result: RunResult) -> RunMetrics:
    """Compute the figures of a replay. O(jobs log jobs)."""
    total, by_size, by_team = _job_figures(result)
    records, fleet, teams = result.records, result.fleet, result.fleet.teams
    weights = gpu_parts(result)
    count = len(teams)
    used = [0.0] * count
    lost = [0.0] * count
    cost = [Decimal(0)] * count
    preemptions, losses = [0] * count, [0] * count
    fair, received = [0.0] * count, [0.0] * count
    prices = {pool.name: _price(pool, result) for pool in fleet.pools}
    for number, supply in enumerate(result.supplies):
        weight = float(weights[supply])
        for team in range(count):
            cell = number * count + team
            hours = records.device_seconds[cell] * weight / _HOUR
            used[team] += hours
            lost[team] += records.lost_seconds[cell] * weight / _HOUR
            cost[team] += prices[supply.pool] * Decimal(hours)
            preemptions[team] += records.preemptions[cell]
            losses[team] += records.node_losses[cell]
            fair[team] += result.samples[number].fair[team] * weight
            received[team] += result.samples[number].received[team] * weight
    pools = {pool.name: _pool_stats(pool, result, weights) for pool in fleet.pools}
    active = [team.name for number, team in enumerate(teams) if number in by_team or used[number]]
    share = share_parts(teams, active)
    all_used = sum(used)
    available = sum(pool.available_gpu_hours for pool in pools.values())
    numbers = {team.name: number for number, team in enumerate(teams)}

    def service(team: int) -> float | None:
        return received[team] / fair[team] if fair[team] > 0 else None

    def team_stats(team: int, name: TeamName) -> TeamStats:
        return TeamStats(
            by_team[team].stats() if team in by_team else JobStats(),
            used[team],
            used[team] / all_used if all_used else 0.0,
            share.get(name, 0.0),
            service(team),
            preemptions[team],
            losses[team],
            lost[team],
            cost[team],
        )

    return RunMetrics(
        result.seed,
        result.begin,
        result.end,
        total.stats(),
        {size: by_size[size].stats() for size in SizeClass if size in by_size},
        {name: team_stats(numbers[name], name) for name in active},
        pools,
        all_used / available if available else 0.0,
        _part((pool.fragmented_gpu_hours for pool in pools.values()), available),
        _part((pool.limited_gpu_hours for pool in pools.values()), available),
        all_used,
        sum(preemptions),
        sum(losses),
        sum(lost),
        jains_index([found for team in range(count) if (found := service(team)) is not None]),
        sum((_capacity_cost(pool, result) for pool in fleet.pools), Decimal(0)),
        result.left_out,
    )


def _part(hours: Iterable[float], available: float) -> float:
    return sum(hours) / available if available else 0.0


def _job_figures(
    result: RunResult,
) -> tuple[JobFigures, dict[SizeClass, JobFigures], dict[int, JobFigures]]:
    total = JobFigures()
    by_size: dict[SizeClass, JobFigures] = {}
    by_team: dict[int, JobFigures] = {}
    records = result.records
    for place, job in enumerate(result.trace):
        cell = records.cell[place]
        if cell < 0 or not result.begin <= job.at <= result.end:
            continue
        submitted, start, end = records.submitted[place], records.first_start[place], records.ended[place]
        if isnan(end):
            end = result.finished_at
        started = not isnan(start)
        wait = (start if started else end) - submitted
        seconds = job.seconds if job.cancelled_after is None else end - submitted
        values = (wait, slowdown(wait, seconds, end - submitted))
        team, size = cell % records.teams, size_class(records.devices[place])
        total.add(*values, started=started)
        by_size.setdefault(size, JobFigures()).add(*values, started=started)
        by_team.setdefault(team, JobFigures()).add(*values, started=started)
    return total, by_size, by_team


def gpu_parts(result: RunResult) -> dict[Supply, Fraction]:
    """Return what part of a GPU each device is: the slices of a GPU add up to it."""
    found: dict[Supply, Fraction] = {}
    for pool in result.fleet.pools:
        cut: dict[SliceName | None, int] = dict(size_of(pool).slices_per_gpu.items())
        for slice_, part in parts(pool.gpu, cut or {None: 1}, 1).items():
            found[Supply(pool.name, slice_)] = part
    return found


def _pool_stats(pool: Pool, result: RunResult, weights: Mapping[Supply, Fraction]) -> PoolStats:
    used = fragmented = limited = 0.0
    teams = result.records.teams
    for number, supply in enumerate(result.supplies):
        if supply.pool == pool.name:
            hours = float(weights[supply]) / _HOUR
            used += sum(result.records.device_seconds[number * teams : (number + 1) * teams]) * hours
            fragmented += result.samples[number].fragmented * hours
            limited += result.samples[number].limited * hours
    return PoolStats(sum(result.gpu_seconds[pool.name]) / _HOUR, used, fragmented, limited)


def _price(pool: Pool, result: RunResult) -> Decimal:
    """Return the list price of the day on which the measured time ends; in 1970 that is the first price."""
    return pool.list_price(datetime.fromtimestamp(max(0.0, result.end), UTC).date())


def _capacity_cost(pool: Pool, result: RunResult) -> Decimal:
    usual, spot = result.gpu_seconds[pool.name]
    hours = (Decimal(usual) + Decimal(spot) * Decimal(str(result.options.spot.price_part))) / Decimal(3600)
    return _price(pool, result) * hours
