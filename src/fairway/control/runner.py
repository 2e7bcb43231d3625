"""Run the loops that the newest fleet needs. Any number of servers do so; leases divide the work."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry

from fairway.control.loop import LeasedLoop, Pace, Step
from fairway.control.loops.anomalies import FindAnomalies
from fairway.control.loops.apply import ApplyToCluster
from fairway.control.loops.archive import ArchiveUsage
from fairway.control.loops.budget import HoldTeams, TrackBudgets
from fairway.control.loops.dispatch import DispatchJobs
from fairway.control.loops.drift import FindDrift
from fairway.control.loops.forecast import ForecastSpending
from fairway.control.loops.health import WatchHealth
from fairway.control.loops.idle import ApplyIdleRules
from fairway.control.loops.intervene import InterveneCluster
from fairway.control.loops.meter import MeterCluster
from fairway.control.loops.mirror import MirrorJobs
from fairway.control.loops.notify import DeliverNotices
from fairway.control.loops.observe import ObserveCluster
from fairway.control.loops.problems import ReportProblems
from fairway.control.loops.run_times import LearnRunTimes
from fairway.control.loops.slos import CountSlos
from fairway.control.loops.starts import ForecastStarts
from fairway.control.loops.telemetry import ReadTelemetry
from fairway.control.loops.what_if import RunStudies
from fairway.control.metrics import (
    BudgetMetrics,
    JobMetrics,
    LoopMetrics,
    NoticeMetrics,
    PolicyMetrics,
    UsageMetrics,
)
from fairway.control.metrics_slos import SloMetrics
from fairway.engines.port import Governs, Mirrors, Observes, Runs
from fairway.ledger import FLEET, Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.services.charges import Costs
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets, LastApplied
from fairway.services.snapshots import SnapshotReader
from fairway.services.spending import SpendingHistory
from fairway.services.spent import TeamSpending
from fairway.services.start_forecasts import ForecastWorker, StartForecaster
from fairway.services.statement_documents import StatementDocuments
from fairway.services.statements import MonthStatements
from fairway.services.wakeup import Sleep, Wakeup
from fairway.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

OBSERVE: Final = "observe"
APPLY: Final = "apply"
DRIFT: Final = "drift"
INTERVENE: Final = "intervene"
DISPATCH: Final = "dispatch"
MIRROR: Final = "mirror"
METER: Final = "meter"
HOLD: Final = "hold"
TELEMETRY: Final = "telemetry"
HEALTH: Final = "health"
IDLE: Final = "idle"
BUDGET: Final = "budget"
FORECAST: Final = "forecast"
STARTS: Final = "starts"
NOTIFY: Final = "notify"
PROBLEMS: Final = "problems"
ANOMALIES: Final = "anomalies"
ARCHIVE: Final = "archive"
RUN_TIMES: Final = "run-times"
SLOS: Final = "slos"
WHAT_IF: Final = "what-if"
POLL_SECONDS: Final = 2.0
"""How often to check for a new fleet; one small query each time."""
APPLY_POLL_SECONDS: Final = 1.0
"""How often to check for queued applies; one small query each time."""
DISPATCH_SECONDS: Final = 0.5
"""How often to check for jobs that are due; one small query each time."""
MIRROR_SECONDS: Final = 0.2
"""Pause between reads of changes; a read itself waits up to a second for changes."""
METER_SECONDS: Final = 5.0
"""How often to meter usage and capacity; a few small queries each time."""
TELEMETRY_SECONDS: Final = 15.0
"""How often to check whether another window of GPU metrics has closed; one small query each time."""
FORECAST_SECONDS: Final = 300.0
"""How often to forecast what teams will have spent: forecasts change slowly."""
NOTIFY_SECONDS: Final = 5.0
"""How often to check for notices to deliver; one small query each time."""
PROBLEMS_SECONDS: Final = 30.0
"""How often to check for problems of the fleet to report; a few small queries each time."""
ANOMALIES_SECONDS: Final = 600.0
"""How often to check whether another day has ended; no query unless one has."""
RUN_TIMES_SECONDS: Final = 15.0
"""How often to check for runs that ended; two small queries each time."""
HISTORY_AFTER_SECONDS: Final = 30.0
"""Run times are learnt from history only after this time: a server that starts has more urgent work."""
HEALTH_SECONDS: Final = 30.0
"""How often to read what is wrong with GPUs; two small queries of Prometheus each time."""
IDLE_SECONDS: Final = 15.0
"""How often to check whether there is a window that idle rules have not decided on; two small queries."""
HEALTH_STEP_SECONDS: Final = 180.0
"""Time limit of a round: closing many nodes takes a request for each."""
SLOS_SECONDS: Final = 60.0
"""How often to count and measure objectives: what ended in the minutes before."""
WHAT_IF_SECONDS: Final = 2.0
"""How often to check for what-if studies that are queued; one small query each time."""
HOLD_SECONDS: Final = 2.0
"""How often to compare the holds of teams with a spent budget; two small queries each time."""
JOBS_BACKOFF_SECONDS: Final = 5.0
"""The longest backoff of the job loops: shorter than others', because users wait for their jobs."""
JOBS_STEP_SECONDS: Final = 300.0
"""Time limit of a round: the first read of a cluster with a hundred thousand jobs is slow."""
ARCHIVE_SECONDS: Final = 600.0
"""How often to check for months to archive; the step limits itself."""
ENGINE_SECONDS: Final = 45.0
STEP_SECONDS: Final = 60.0


class Engine(Observes, Governs, Runs, Mirrors, Protocol):
    """The protocols that every engine implements: observe, govern by a policy, run and mirror jobs."""


class BuildEngine(Protocol):
    """Builds the engine of one cluster; `server` implements it for every kind."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Engine: ...


@dataclass(frozen=True, slots=True)
class _Running:
    """The running loops of a cluster, and the configuration they run with: they restart if it changes."""

    cluster: Cluster
    pools: tuple[Pool, ...]
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the loop that writes policy. A loop that is started again shares it with the others."""

    def matches(self, cluster: Cluster, pools: tuple[Pool, ...]) -> bool:
        return (self.cluster, self.pools) == (cluster, pools)


class Runner:
    """Runs the loops of each cluster of the newest revision, and those of the fleet as a whole."""

    def __init__(
        self,
        ledger: Ledger,
        build_engine: BuildEngine,
        settings: Settings,
        registry: CollectorRegistry,
        fleets: Fleets,
        *,
        wakeup: Wakeup | None = None,
        poll_seconds: float = POLL_SECONDS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`wakeup` is notified when this process stores jobs: they are sent at once."""
        self._ledger = ledger
        self._build_engine = build_engine
        self._fleets = fleets
        self._wakeup = wakeup or Wakeup()
        self._poll_seconds = poll_seconds
        self._sleep = sleep
        self._settings = settings
        self._metrics = LoopMetrics(registry)
        self._policy_metrics = PolicyMetrics(registry)
        self._job_metrics = JobMetrics(registry)
        self._usage_metrics = UsageMetrics(registry)
        self._budget_metrics = BudgetMetrics(registry)
        self._notice_metrics = NoticeMetrics(registry)
        self._slo_metrics = SloMetrics(registry)
        self._forecast_worker = ForecastWorker()
        self._forecaster = StartForecaster(ledger, SnapshotReader(ledger, fleets), self._forecast_worker)
        # Unique among all servers, past and present: a restarted one must not take its former self's leases.
        self.holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._revision: int | None = None
        self._fleet: Fleet | None = None
        self._clusters: dict[ClusterName, _Running] = {}
        self._fleet_tasks: dict[str, asyncio.Task[None]] = {}
        """Loops of the fleet as a whole."""

    async def run(self) -> None:
        """Run until cancelled; then stop every loop gracefully and release its lease."""
        try:
            while True:
                try:
                    await self._follow()
                except FairwayError as error:
                    log.warning("fleet not followed", code=error.code, message=error.message, hint=error.hint)
                except Exception:
                    log.exception("unexpected error while following the fleet")
                await self._sleep(self._poll_seconds)
        finally:
            await self._stop(tuple(self._clusters), *self._fleet_tasks.values())
            self._forecast_worker.close()

    async def _follow(self) -> None:
        newest = await self._ledger.revisions.newest_id()
        if newest != self._revision:
            revision = await self._ledger.revisions.newest()
            if revision is not None:
                await self._change_to(revision.id, await self._fleets.parsed(revision))
        if self._fleet is not None:
            self._start_missing(self._fleet)

    async def _change_to(self, revision: int, fleet: Fleet) -> None:
        wanted = {c.name: fleet.engine_parts(c.name) for c in fleet.clusters}
        await self._stop(
            tuple(
                name
                for name, running in self._clusters.items()
                if name not in wanted or not running.matches(*wanted[name])
            )
        )
        # After the loops of clusters that left have ended, lest one of them bring its cluster back.
        await self._ledger.revisions.follow(revision, {c.name: c.engine for c in fleet.clusters})
        log.info("following the fleet", revision=revision, clusters=len(wanted))
        self._revision, self._fleet = revision, fleet

    def _start_missing(self, fleet: Fleet) -> None:
        if not self._fleet_tasks or any(task.done() for task in self._fleet_tasks.values()):
            for loop in self._fleet_loops():
                if loop.name not in self._fleet_tasks or self._fleet_tasks[loop.name].done():
                    self._fleet_tasks[loop.name] = _start(loop)
        for cluster, pools in (fleet.engine_parts(c.name) for c in fleet.clusters):
            running = self._clusters.setdefault(cluster.name, _Running(cluster, pools))
            ended = [name for name, task in running.tasks.items() if task.done()]
            for name in ended:
                log.error("loop ended by itself; starting it again", loop=name, cluster=cluster.name)
            if ended or not running.tasks:
                for loop in self._loops(cluster, pools, running.writing):
                    if loop.name in ended or loop.name not in running.tasks:
                        running.tasks[loop.name] = _start(loop)

    def _fleet_loops(self) -> Iterator[LeasedLoop]:
        costs = Costs(self._ledger, FleetHistory(self._ledger, self._fleets))
        spending = SpendingHistory(costs)
        spent = TeamSpending(self._ledger, costs)
        track = TrackBudgets(self._ledger, self._fleets, spent, spending, self._budget_metrics)
        yield self._loop(BUDGET, FLEET, self._pace(self._settings.budget_seconds), track, track.close)
        forecast = ForecastSpending(self._ledger, self._fleets, SpendingHistory(costs))
        yield self._loop(
            FORECAST, FLEET, self._pace(FORECAST_SECONDS, JOBS_STEP_SECONDS), forecast, forecast.close
        )
        charged = Costs(self._ledger, FleetHistory(self._ledger, self._fleets))
        statements = MonthStatements(self._ledger, charged)
        documents = StatementDocuments(self._ledger, statements, charged, self._fleets)
        deliver = DeliverNotices(self._ledger, self._fleets, self._settings, self._notice_metrics, documents)
        yield self._loop(NOTIFY, FLEET, self._pace(NOTIFY_SECONDS), deliver, deliver.close)
        find = FindAnomalies(self._ledger, self._fleets, SpendingHistory(costs))
        anomalies = self._pace(ANOMALIES_SECONDS, JOBS_STEP_SECONDS)
        yield self._loop(ANOMALIES, FLEET, anomalies, find, find.close)
        learn = LearnRunTimes(self._ledger, history_after_seconds=HISTORY_AFTER_SECONDS)
        yield self._loop(RUN_TIMES, FLEET, self._pace(RUN_TIMES_SECONDS, JOBS_STEP_SECONDS), learn)
        count = CountSlos(self._ledger, self._fleets, self._slo_metrics)
        yield self._loop(SLOS, FLEET, self._pace(SLOS_SECONDS, JOBS_STEP_SECONDS), count, count.close)
        # A study takes minutes, and limits itself.
        studies = RunStudies(self._ledger, self._fleets)
        yield self._loop(WHAT_IF, FLEET, self._pace(WHAT_IF_SECONDS, step_seconds=None), studies)
        report = ReportProblems(self._ledger, self._fleets)
        yield self._loop(PROBLEMS, FLEET, self._pace(PROBLEMS_SECONDS), report)
        if self._settings.archive_url is not None:
            archive = ArchiveUsage(self._ledger, self._settings.keep_usage_months)
            yield self._loop(ARCHIVE, FLEET, self._pace(ARCHIVE_SECONDS, step_seconds=None), archive)

    def _loops(
        self, cluster: Cluster, pools: tuple[Pool, ...], writing: asyncio.Lock
    ) -> Iterator[LeasedLoop]:
        name = cluster.name
        build = partial(self._build_engine, cluster, pools)
        applied = LastApplied(name, self._ledger, self._fleets)
        observe = ObserveCluster(cluster, build, self._ledger, engine_seconds=ENGINE_SECONDS)
        yield self._loop(OBSERVE, name, self._pace(self._settings.observe_seconds), observe, observe.close)
        apply = ApplyToCluster(
            cluster, pools, build, self._ledger, self._fleets, self._policy_metrics, writing
        )
        # However long a policy takes to write: the step itself ends when the engine no longer answers.
        yield self._loop(APPLY, name, self._pace(APPLY_POLL_SECONDS, step_seconds=None), apply)
        drift = FindDrift(name, build, self._ledger, applied, self._policy_metrics)
        yield self._loop(DRIFT, name, self._pace(self._settings.drift_seconds), drift, drift.close)
        intervene = InterveneCluster(name, build, self._ledger, applied, self._policy_metrics, writing)
        yield self._loop(
            INTERVENE, name, self._pace(self._settings.intervention_seconds), intervene, intervene.close
        )
        hold = HoldTeams(name, build, self._ledger, applied, writing)
        yield self._loop(HOLD, name, self._pace(HOLD_SECONDS), hold, hold.close)
        dispatch = DispatchJobs(name, build, self._ledger, applied, self._job_metrics, wakeup=self._wakeup)
        wakeup = self._wakeup.pause_for(name)
        yield self._loop(DISPATCH, name, self._job_pace(DISPATCH_SECONDS), dispatch, dispatch.close, wakeup)
        mirror = MirrorJobs(name, build, self._ledger, applied, self._job_metrics)
        yield self._loop(MIRROR, name, self._job_pace(MIRROR_SECONDS), mirror, mirror.close)
        meter = MeterCluster(name, self._ledger, applied, self._usage_metrics)
        yield self._loop(METER, name, self._job_pace(METER_SECONDS), meter, meter.close)
        starts = ForecastStarts(name, self._ledger, self._forecaster)
        yield self._loop(STARTS, name, self._pace(self._settings.starts_seconds, JOBS_STEP_SECONDS), starts)
        if cluster.telemetry is not None:
            read = ReadTelemetry(name, cluster.telemetry, self._ledger, applied)
            yield self._loop(
                TELEMETRY, name, self._pace(TELEMETRY_SECONDS, JOBS_STEP_SECONDS), read, read.close
            )
            idle = ApplyIdleRules(name, build, self._ledger, applied)
            yield self._loop(IDLE, name, self._pace(IDLE_SECONDS, JOBS_STEP_SECONDS), idle, idle.close)
        health = WatchHealth(name, cluster.telemetry, build, self._ledger, applied)
        yield self._loop(HEALTH, name, self._pace(HEALTH_SECONDS, HEALTH_STEP_SECONDS), health, health.close)

    def _job_pace(self, interval: float) -> Pace:
        return Pace(
            self._settings.lease_seconds,
            interval,
            JOBS_STEP_SECONDS,
            max_backoff_seconds=JOBS_BACKOFF_SECONDS,
            permanent_seconds=3 * JOBS_BACKOFF_SECONDS,
        )

    def _pace(self, interval: float, step_seconds: float | None = STEP_SECONDS) -> Pace:
        return Pace(self._settings.lease_seconds, interval, step_seconds)

    def _loop(
        self,
        name: str,
        cluster: ClusterName,
        pace: Pace,
        step: Step,
        cleanup: Callable[[], Awaitable[None]] | None = None,
        pause: Sleep | None = None,
    ) -> LeasedLoop:
        return LeasedLoop(
            name,
            cluster,
            step,
            self._ledger,
            holder=f"{self.holder}/{next(self._numbers)}",
            pace=pace,
            metrics=self._metrics,
            cleanup=cleanup,
            pause=pause,
        )

    async def _stop(self, names: tuple[ClusterName, ...], *others: asyncio.Task[None]) -> None:
        stopped = [*others, *(task for name in names for task in self._clusters.pop(name).tasks.values())]
        for task in stopped:
            task.cancel()
        for result in await asyncio.gather(*stopped, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("loop ended badly", exc_info=result)


def _start(loop: LeasedLoop) -> asyncio.Task[None]:
    return asyncio.create_task(loop.run(), name=f"{loop.name} {loop.cluster}")
