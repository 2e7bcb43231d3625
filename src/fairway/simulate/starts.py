"""Forecast when waiting jobs start: play a snapshot forward in many futures. Pure.

In each future, run times are drawn from what is known of jobs like these, those of running jobs given how
long they have run; jobs of one user, and all jobs, tend to be long or short together. New jobs arrive as they
did lately: what was submitted in the last hours comes again, from a moment that is drawn. All draws depend on
the seed, the future and the job only, so that two variants of one snapshot meet the same chance, and a
difference between them is their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import floor, inf
from statistics import NormalDist
from typing import Final
from zlib import crc32

from fairway.model.errors import Refused
from fairway.model.job import JobId
from fairway.simulate.cluster.jobs import JobRequest, SimEnding
from fairway.simulate.replay.chance import uniform
from fairway.simulate.restore import SnapshotPlan
from fairway.simulate.run_times import JobTraits, PredictsRunTimes, RunTimeDistribution
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob

FUTURES: Final = 24
HORIZON_SECONDS: Final = 14 * 86_400.0
"""How far futures go: a start that is later than that is not a forecast."""
MAX_EVENTS: Final = 120_000
"""Starts, ends and arrivals in all futures together: about five to ten seconds."""
LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
"""The quantiles of a forecast."""
_RUN, _ROTATION, _COMMON, _USER = 1, 2, 3, 4
_ARRIVAL: Final = 16
_NORMAL: Final = NormalDist()
_OF_ALL, _OF_USER = 0.25, 0.3
"""How far the run times of all jobs, and of one user's jobs, are long or short together. Where each is drawn
for itself, long and short ones cancel out, and ranges become too narrow. Chosen on MIT's trace, see ADR 0062.
"""
_OF_JOB: Final = (1.0 - _OF_ALL**2 - _OF_USER**2) ** 0.5


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a waiting job is expected to start, over all futures. Times are seconds since 1970."""

    job: JobId
    earliest: float | None
    """The 10 % quantile. None: it starts in too few futures within the horizon."""
    expected: float | None
    """The median."""
    latest: float | None
    """The 90 % quantile."""
    started: float
    """The part of the futures in which it starts within the horizon."""
    futures: int = FUTURES
    samples: int = 0
    """Finished jobs that its own run time is predicted from."""
    source: str = ""
    """Whose jobs these are."""
    refused: str = ""
    """Why it can never start as it is; empty: it can."""


class Futures:
    """Draws futures of one snapshot."""

    def __init__(self, snapshot: ClusterSnapshot, predictor: PredictsRunTimes, seed: int) -> None:
        self.snapshot: Final = snapshot
        self.plan: Final = SnapshotPlan(snapshot)
        self._predictor: Final = predictor
        self._seed: Final = seed
        self._normals: Final[dict[tuple[int, ...], float]] = {}
        self._of_new: Final[dict[JobTraits, RunTimeDistribution]] = {}
        self._of_running: Final = {
            job.job: predictor.predict(traits_of(job.request), snapshot.at - job.started)
            for job in snapshot.running
            if not job.service
        }
        self.of_waiting: Final = {job.job: self._new(job.request) for job in snapshot.waiting}

    def _new(self, request: JobRequest) -> RunTimeDistribution:
        traits = traits_of(request)
        found = self._of_new.get(traits)
        if found is None:
            found = self._of_new[traits] = self._predictor.predict(traits)
        return found

    def play(self, future: int, asked: Collection[JobId], until: float, events: int) -> Starts:
        """Play one future until all `asked` jobs have started, or until a time or number of events."""
        running, waiting, draw = self._of_running, self.of_waiting, self._draw

        def seconds_of(job: RunningJob | WaitingJob) -> float:
            known = running if isinstance(job, RunningJob) else waiting
            return known[job.job].quantile(draw(job, future, _RUN))

        starts = Starts()
        restored = self.plan.restore(seconds_of, observer=starts)
        starts.follow(restored.waiting, asked)
        starts.refused = {job: error.message for job, error in restored.refused.items()}
        simulator = restored.simulator
        arrivals = self._arrivals(future)
        arrival = next(arrivals, None)
        while starts.missing and simulator.events < events:
            at = simulator.next_at()
            coming = inf if arrival is None else arrival[0]
            if at is None and arrival is None:
                break
            if min(inf if at is None else at, coming) > until:
                simulator.advance(until)
                break
            if arrival is not None and (at is None or coming < at):
                simulator.advance(coming)
                with suppress(Refused):
                    simulator.submit(arrival[1])
                arrival = next(arrivals, None)
            elif at is not None:
                simulator.advance(at)
        starts.now = simulator.now
        return starts

    def _draw(self, job: RunningJob | WaitingJob, future: int, kind: int) -> float:
        """Draw from [0, 1) which part of jobs like it run shorter than this one does in a future."""
        common = self._normal(future, _COMMON)
        users = self._normal(future, _USER, crc32(job.request.user.encode()))
        own = self._normal(future, kind, int(job.job))
        return _NORMAL.cdf(_OF_ALL * common + _OF_USER * users + _OF_JOB * own)

    def _normal(self, *numbers: int) -> float:
        key = (self._seed, *numbers)
        found = self._normals.get(key)
        if found is None:
            found = self._normals[key] = _NORMAL.inv_cdf(uniform(*key) or 0.5)
        return found

    def _arrivals(self, future: int) -> Iterator[tuple[float, JobRequest]]:
        """Generate new jobs as they came lately, from a drawn moment on, again and again, without an end."""
        snapshot = self.snapshot
        period, jobs = snapshot.arrival_seconds, snapshot.arrivals
        if period <= 0.0 or not jobs:
            return
        begin = snapshot.at - period
        turn = uniform(self._seed, future, _ROTATION) * period
        order = sorted(((job.submitted - begin - turn) % period, n) for n, job in enumerate(jobs))
        cycle = 0
        while True:
            for after, n in order:
                job = jobs[n]
                draw = self._draw(job, future, _ARRIVAL + cycle)
                yield (
                    snapshot.at + cycle * period + after,
                    replace(job.request, seconds=self._new(job.request).quantile(draw)),
                )
            cycle += 1


class Starts:
    """Observes when the waiting jobs of a snapshot first start in one future."""

    def __init__(self) -> None:
        self.at: dict[JobId, float] = {}
        self.now = 0.0
        """When the future ended."""
        self.refused: Mapping[JobId, str] = {}
        self.missing: set[JobId] = set()
        """Jobs that were asked for and have not started."""
        self._numbers: Mapping[int, JobId] | None = None
        self._early: list[tuple[int, float]] = []
        """Starts before the numbers were known."""

    def follow(self, numbers: Mapping[int, JobId], asked: Collection[JobId]) -> None:
        """Begin: some may have started already."""
        self._numbers = numbers
        self.missing = set(numbers.values()).intersection(asked)
        for number, at in self._early:
            self.started(number, at)

    def started(self, number: int, at: float) -> None:
        if self._numbers is None:
            self._early.append((number, at))
            return
        job = self._numbers.get(number)
        if job is not None and job not in self.at:
            self.at[job] = at
            self.missing.discard(job)

    def stopped(self, number: int, at: float, ending: SimEnding) -> None:
        """Only first starts count."""


def forecast_starts(
    snapshot: ClusterSnapshot,
    predictor: PredictsRunTimes,
    *,
    futures: int = FUTURES,
    seed: int = 0,
    horizon: float = HORIZON_SECONDS,
    asked: Collection[JobId] | None = None,
    max_events: int = MAX_EVENTS,
) -> dict[JobId, StartForecast]:
    """Forecast the start of the `asked` waiting jobs, of all if None.

    The first future tells how far `max_events` lead; all others end at the same time, at `horizon` at the
    latest. Jobs that start later have no quantiles. O(futures x (jobs + nodes) + events x log jobs).
    """
    drawn = Futures(snapshot, predictor, seed)
    wanted = frozenset(drawn.of_waiting) if asked is None else frozenset(asked)
    until, each = snapshot.at + horizon, max(1, max_events // futures)
    first = drawn.play(0, wanted, until, each)
    if first.missing:
        until = min(until, first.now)
    played = [first, *(drawn.play(n, wanted, until, 3 * each) for n in range(1, futures))]
    # Where a future ended early, later starts of the others would look as if they were late.
    until = min([until, *(one.now for one in played if one.missing)])
    found: dict[JobId, StartForecast] = {}
    for job in snapshot.waiting:
        if job.job in wanted:
            times = sorted(at if (at := one.at.get(job.job, inf)) <= until else inf for one in played)
            distribution = drawn.of_waiting[job.job]
            found[job.job] = StartForecast(
                job.job,
                quantile(times, LOW),
                quantile(times, MIDDLE),
                quantile(times, HIGH),
                sum(at < inf for at in times) / futures,
                futures,
                distribution.samples,
                distribution.source,
                first.refused.get(job.job, ""),
            )
    return found


def first_in_line(snapshot: ClusterSnapshot, most: int) -> ClusterSnapshot:
    """Return a snapshot with at most so many waiting jobs: the first of each team and supply, in turns."""
    if len(snapshot.waiting) <= most:
        return snapshot
    places: dict[tuple[object, object], int] = {}
    ranked: list[tuple[int, int]] = []
    for n, job in enumerate(snapshot.waiting):
        key = (job.request.team, job.request.supply)
        places[key] = places.get(key, 0) + 1
        ranked.append((places[key], n))
    chosen = sorted(n for _, n in sorted(ranked)[:most])
    return replace(snapshot, waiting=tuple(snapshot.waiting[n] for n in chosen))


def traits_of(request: JobRequest) -> JobTraits:
    """Return what of a request tells something about its run time."""
    return JobTraits(
        request.user,
        request.team or "",  # type: ignore[arg-type]
        request.name,
        request.gpus * request.nodes,
        request.limit_seconds,
    )


def quantile(times: Sequence[float], part: float) -> float | None:
    """Return a quantile of sorted times. Returns None if it is among the infinite ones."""
    position = min(max(part * (len(times) + 1) - 1, 0.0), len(times) - 1.0)
    low = floor(position)
    found = times[low]
    if position > low and times[low + 1] > found:
        found += (times[low + 1] - found) * (position - low)
    return None if found == inf else found
