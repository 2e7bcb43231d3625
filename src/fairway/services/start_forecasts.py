"""Forecast when the waiting jobs of clusters start, in a process of its own, so that the server stays quick.

The process is started when a job waits for the first time, runs at a low priority, and serves all clusters in
turn. What a forecast costs is measured, and the next one has as many futures, events and jobs as the budget
allows.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.ledger import Ledger
from fairway.ledger.records.snapshots import JobForecast
from fairway.ledger.sql_values import moment
from fairway.model.errors import TemporaryError
from fairway.model.job import JobId
from fairway.model.names import ClusterName
from fairway.services.model_worker import ModelWorker
from fairway.services.run_times import predictor
from fairway.services.snapshots import SnapshotReader
from fairway.simulate.calibration import calibrate
from fairway.simulate.cluster import JobRequest
from fairway.simulate.replay.chance import uniform
from fairway.simulate.run_times import RunTimes
from fairway.simulate.snapshot import ClusterSnapshot
from fairway.simulate.starts import FUTURES, StartForecast, first_in_line, forecast_starts, traits_of

WAITED_SECONDS: Final = 15.0
"""Forecasts begin once a job has waited for so long: most start sooner, and a process need not be started."""
BUDGET_SECONDS: Final = 8.0
"""Processor time of one round of all clusters together."""
MAX_FUTURES: Final = 96
MAX_JOBS: Final = 4000
"""Waiting jobs of a cluster that are forecast; of a longer queue, the first of each team."""
_MIN_JOBS: Final = 200
MAX_EVENTS: Final = 20_000
"""Starts, ends and arrivals in one future."""
_MIN_EVENTS: Final = 200
CHECKED: Final = 3
"""Forecasts of each round that are compared with the starts that come."""
WORKER_SECONDS: Final = 120.0
"""A worker that takes longer is replaced."""

Compute = Callable[["ForecastTask"], Awaitable[Mapping[JobId, StartForecast]]]


@dataclass(frozen=True, slots=True)
class ForecastTask:
    """What a worker gets: everything that a forecast depends on."""

    snapshot: ClusterSnapshot
    predictor: RunTimes
    futures: int
    max_events: int
    seed: int


def compute_forecast(task: ForecastTask) -> dict[JobId, StartForecast]:
    """Compute a forecast. Runs in the worker."""
    return forecast_starts(
        task.snapshot, task.predictor, futures=task.futures, max_events=task.max_events, seed=task.seed
    )


class ForecastWorker:
    """Runs forecasts in one process beside the server."""

    def __init__(self) -> None:
        self._worker = ModelWorker(WORKER_SECONDS)

    async def __call__(self, task: ForecastTask) -> Mapping[JobId, StartForecast]:
        """Run one forecast. Raises TemporaryError if the process does not answer in time."""
        try:
            return await self._worker.run(compute_forecast, task)
        except TemporaryError as error:
            raise TemporaryError(
                "ForecastTimedOut",
                f"forecasting the starts of {len(task.snapshot.waiting)} jobs of cluster "
                f"{task.snapshot.cluster} took longer than {WORKER_SECONDS:g} s, or its process ended",
                "check the load of the server's machine; the next round starts a new process",
            ) from error

    def close(self) -> None:
        """End the process, whatever it does."""
        self._worker.close()


@dataclass(frozen=True, slots=True)
class ClusterForecast:
    """The forecast starts of one cluster."""

    at: float
    """Of which moment it is."""
    jobs: tuple[JobForecast, ...]
    """Calibrated."""
    checks: tuple[StartForecast, ...] = ()
    """Some of them as the simulation returned them, to be compared with the starts that come."""


class StartForecaster:
    """Forecasts the starts of clusters' waiting jobs within a budget of processor time."""

    def __init__(
        self,
        ledger: Ledger,
        snapshots: SnapshotReader,
        compute: Compute,
        *,
        budget_seconds: float = BUDGET_SECONDS,
        waited_seconds: float = WAITED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._compute = compute
        self._budget_seconds = budget_seconds
        self._waited_seconds = waited_seconds
        self._clock = clock
        self._sizes: dict[ClusterName, ForecastSize] = {}

    async def forecast(self, cluster: ClusterName) -> ClusterForecast | None:
        """Forecast the starts of a cluster's waiting jobs. Returns None if it is in no fleet."""
        snapshot = await self._snapshots.read(cluster)
        if snapshot is None:
            self._sizes.pop(cluster, None)
            return None
        if all(snapshot.at - job.submitted < self._waited_seconds for job in snapshot.waiting):
            return ClusterForecast(snapshot.at, ())
        size = self._sizes.get(cluster, FIRST_SIZE)
        snapshot = first_in_line(snapshot, size.jobs)
        learnt = await predictor(self._ledger, {traits_of(request) for request in _requests(snapshot)})
        events = size.futures * size.events
        task = ForecastTask(snapshot, learnt, size.futures, events, seed=int(snapshot.at))
        began = self._clock()
        found = await self._compute(task)
        took = self._clock() - began
        self._sizes[cluster] = size.next(took, self._budget_seconds / max(1, len(self._sizes)))
        calibration = calibrate(await self._ledger.job_forecasts.past(cluster))
        return ClusterForecast(
            snapshot.at,
            tuple(_stored(calibration.apply(one, snapshot.at), snapshot.at) for one in found.values()),
            _drawn(found.values(), task.seed),
        )


def _drawn(forecasts: Iterable[StartForecast], seed: int) -> tuple[StartForecast, ...]:
    """Draw a few forecasts that have a range."""
    ranged = [one for one in forecasts if one.latest is not None]
    return tuple(sorted(ranged, key=lambda one: uniform(seed, int(one.job)))[:CHECKED])


def _requests(snapshot: ClusterSnapshot) -> Iterator[JobRequest]:
    for running in snapshot.running:
        yield running.request
    for job in (*snapshot.waiting, *snapshot.arrivals):
        yield job.request


@dataclass(frozen=True, slots=True)
class ForecastSize:
    """How much of a cluster's future is played."""

    futures: int
    events: int
    """In each future."""
    jobs: int

    def next(self, took: float, budget: float) -> ForecastSize:
        """Return the size of the next round, after one that took so many seconds.

        Where there is room, first more of the queue is covered, then by more futures. Where there is not,
        first the futures become fewer, but not fewer than FUTURES.
        """
        room = min(2.0, max(0.1, budget / max(took, 0.001)))
        if room < 1:
            futures = max(FUTURES, int(self.futures * room))
            rest = min(1.0, room * self.futures / futures)
            return ForecastSize(
                futures, max(_MIN_EVENTS, int(self.events * rest)), max(_MIN_JOBS, int(self.jobs * rest))
            )
        if self.events < MAX_EVENTS or self.jobs < MAX_JOBS:
            events, jobs = int(self.events * room), int(self.jobs * room)
            return ForecastSize(self.futures, min(MAX_EVENTS, events), min(MAX_JOBS, jobs))
        return ForecastSize(min(MAX_FUTURES, int(self.futures * room)), self.events, self.jobs)


FIRST_SIZE: Final = ForecastSize(FUTURES, 1000, 1000)
"""Until it was measured what an event costs."""


def _stored(forecast: StartForecast, at: float) -> JobForecast:
    earliest, expected, latest = (
        None if when is None else moment(when)
        for when in (forecast.earliest, forecast.expected, forecast.latest)
    )
    return JobForecast(
        forecast.job,
        earliest,
        expected,
        latest,
        forecast.started,
        forecast.futures,
        forecast.samples,
        forecast.source,
        forecast.refused,
        moment(at),
    )
