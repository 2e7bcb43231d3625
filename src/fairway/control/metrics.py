"""Prometheus metrics of the loops. `METRICS` is the table that the docs are generated from.

The number of series is bounded: one per loop and cluster of the fleet, times at most `MAX_CODES` codes.
Series of a cluster that left the fleet, or of a lease that another server took, are removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fairway.cost.budgets import budget_outlook
from fairway.ledger import StoredBudgetStatus, TeamUsage
from fairway.ledger.jobs.waiting import WaitSum
from fairway.model.budget import BudgetOutlook
from fairway.model.metric import Metric
from fairway.model.names import PoolName, TeamName
from fairway.model.usage import CapacitySample

CAPACITY_STATES: Final = ("total", "drained", "down", "fragmented")
MAX_CODES: Final = 20
OTHER: Final = "Other"
UNEXPECTED: Final = "Unexpected"
"""The code of an internal error: any exception but a FairwayError."""


AGE: Final = Metric(
    "fairway_loop_last_success_age_seconds",
    "gauge",
    "Seconds since a loop last did its work on a cluster; before the first time, since it took the lease. "
    "Only the server that holds the lease shows it.",
)
HELD: Final = Metric(
    "fairway_loop_lease_held", "gauge", "1 on the server that holds the lease of a loop on a cluster, else 0."
)
ERRORS: Final = Metric(
    "fairway_loop_errors_total",
    "counter",
    "Rounds of a loop that failed, by error code. "
    f"{UNEXPECTED}: a defect of Fairway's, with a traceback in the log.",
    ("loop", "cluster", "code"),
)
DURATION: Final = Metric(
    "fairway_loop_duration_seconds", "histogram", "How long one round of a loop takes, failed ones too."
)
DRIFT: Final = Metric(
    "fairway_drift_objects",
    "gauge",
    "Objects of a cluster that differ from what was last applied to it. "
    "Only the server that holds the lease of its drift loop shows it.",
    ("cluster",),
)
APPLIES: Final = Metric(
    "fairway_applies_total",
    "counter",
    "Applies and adoptions that ended on a cluster, by how: done, refused, failed.",
    ("cluster", "state"),
)
INTERVENTIONS: Final = Metric(
    "fairway_interventions_total",
    "counter",
    "Interventions: engine commands run because the engine alone would not keep a promise.",
    ("cluster", "promise"),
)
LAG: Final = Metric(
    "fairway_mirror_lag_seconds",
    "gauge",
    "Seconds since the look at a cluster's jobs that the ledger shows. "
    "Only the server that holds the lease of its mirror loop shows it.",
    ("cluster",),
)
SEEN: Final = Metric(
    "fairway_mirror_jobs_total", "counter", "Changed jobs that a cluster's engine reported.", ("cluster",)
)
DOUBLES: Final = Metric(
    "fairway_mirror_doubles_total",
    "counter",
    "Second engine jobs of one order that were found and ended. Stays 0 when all is well.",
    ("cluster",),
)
SENT: Final = Metric("fairway_jobs_sent_total", "counter", "Jobs that were sent to a cluster.", ("cluster",))
REFUSED: Final = Metric(
    "fairway_jobs_refused_total", "counter", "Jobs that a cluster's engine would not take.", ("cluster",)
)
USED: Final = Metric(
    "fairway_used_device_seconds_total",
    "counter",
    "GPU-seconds, or of a pool that is cut into slices slice-seconds, that jobs of a team held, as they are "
    "metered: when an attempt ends or changes, and of those that run at every full hour.",
    ("cluster", "pool", "slice", "team"),
)
TAKEN_BACK: Final = Metric(
    "fairway_taken_back_device_seconds_total",
    "counter",
    "Device-seconds that were metered and then corrected, because the engine reported later that they "
    "were not held.",
    ("cluster", "pool", "slice", "team"),
)
CAPACITY: Final = Metric(
    "fairway_capacity_devices",
    "gauge",
    "GPUs, or slices, of a pool: `total`, and those nobody can use: `drained`, `down`, `fragmented` (free, "
    "but on nodes where nothing that waits fits). "
    "Only the server that holds the lease of the cluster's meter loop shows it.",
    ("cluster", "pool", "slice", "state"),
)
WAITING: Final = Metric(
    "fairway_waiting_devices",
    "gauge",
    "GPUs, or slices, that jobs of a pool request and wait for, by reason code; empty: none is known yet. "
    "Only the server that holds the lease of the cluster's meter loop shows it.",
    ("cluster", "pool", "code"),
)
WAITED: Final = Metric(
    "fairway_waiting_device_seconds",
    "gauge",
    "The same times the seconds since the submission of each job.",
    ("cluster", "pool", "code"),
)
ABOVE_CAPACITY: Final = Metric(
    "fairway_usage_above_capacity_devices",
    "gauge",
    "GPUs, or slices, that jobs were metered for beyond those that a pool had, on average over the last full "
    "hour. Not there: none. Only the server that holds the lease of the cluster's meter loop shows it.",
    ("cluster", "pool", "slice"),
)
FEED_OVERDUE: Final = Metric(
    "fairway_spot_price_overdue_seconds",
    "gauge",
    "Seconds since a spot price of a pool should have come: three times the interval at which they came. 0: "
    "it is not overdue. Only the server that holds the lease of the cluster's meter loop shows it.",
    ("cluster", "pool"),
)
_BUDGETS: Final = "Only the server that holds the lease of the budget loop shows it."
LIMIT: Final = Metric(
    "fairway_budget_limit",
    "gauge",
    "Money that a team and those inside it may spend in the present month or quarter, in the fleet's "
    f"currency. {_BUDGETS}",
    ("team",),
)
SPENT: Final = Metric(
    "fairway_budget_spent",
    "gauge",
    f"What of it is spent, running work included; rounded down as `fairway get budgets` does. {_BUDGETS}",
    ("team",),
)
BURN: Final = Metric(
    "fairway_budget_spent_per_day",
    "gauge",
    f"What of it is spent a day at the current rate, on the mean weekday. {_BUDGETS}",
    ("team",),
)
RUNS_OUT: Final = Metric(
    "fairway_budget_runs_out_timestamp_seconds",
    "gauge",
    "When the day begins, by the fleet's calendar, on which it will be spent at that rate; today, once it is "
    f"spent. Not there: not within its period. {_BUDGETS}",
    ("team",),
)
LEVEL: Final = Metric(
    "fairway_budget_state",
    "gauge",
    "1 for its state, 0 for the others: `ok`, `warned` (the part at which it says so), `runs-out` (before "
    "the period ends), `spent`. "
    f"{_BUDGETS}",
    ("team", "state"),
)
NOTICES: Final = Metric(
    "fairway_notices_total",
    "counter",
    "Attempts to deliver a notice by a kind of channel, by how: `delivered`, `failed` (it is tried again), "
    "`given-up`.",
    ("kind", "result"),
)
METRICS: Final = (
    AGE,
    HELD,
    ERRORS,
    DURATION,
    DRIFT,
    APPLIES,
    INTERVENTIONS,
    LAG,
    SEEN,
    DOUBLES,
    SENT,
    REFUSED,
    USED,
    TAKEN_BACK,
    CAPACITY,
    WAITING,
    WAITED,
    ABOVE_CAPACITY,
    FEED_OVERDUE,
    LIMIT,
    SPENT,
    BURN,
    RUNS_OUT,
    LEVEL,
    NOTICES,
)

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class LoopMetrics:
    """The metrics of every loop of one server."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._age = Gauge(AGE.name, AGE.help, AGE.labels, registry=registry)
        self._held = Gauge(HELD.name, HELD.help, HELD.labels, registry=registry)
        self._errors = Counter(ERRORS.name, ERRORS.help, ERRORS.labels, registry=registry)
        self._duration = Histogram(
            DURATION.name, DURATION.help, DURATION.labels, registry=registry, buckets=_BUCKETS
        )
        self._last: dict[tuple[str, str], float] = {}
        self._codes: dict[tuple[str, str], set[str]] = {}

    def waiting(self, loop: str, cluster: str) -> None:
        """Record that this server does not hold the lease."""
        self._held.labels(loop, cluster).set(0)
        if self._last.pop((loop, cluster), None) is not None:
            self._age.remove(loop, cluster)

    def holding(self, loop: str, cluster: str) -> None:
        """Record that this server took the lease."""
        self._held.labels(loop, cluster).set(1)
        key, clock, last = (loop, cluster), self._clock, self._last
        last[key] = clock()
        self._age.labels(loop, cluster).set_function(lambda: clock() - last.get(key, clock()))

    def succeeded(self, loop: str, cluster: str) -> None:
        """Record a successful round."""
        self._last[loop, cluster] = self._clock()

    def failed(self, loop: str, cluster: str, code: str) -> None:
        """Count a failed round or a failed attempt to take the lease."""
        codes = self._codes.setdefault((loop, cluster), set())
        if code not in codes and len(codes) >= MAX_CODES - 1:
            code = OTHER
        codes.add(code)
        self._errors.labels(loop, cluster, code).inc()

    def took(self, loop: str, cluster: str, seconds: float) -> None:
        """Record the duration of a round."""
        self._duration.labels(loop, cluster).observe(seconds)

    def forget(self, loop: str, cluster: str) -> None:
        """Remove the series of a loop that was stopped."""
        self.waiting(loop, cluster)
        self._held.remove(loop, cluster)
        self._duration.labels(loop, cluster)  # exists now, so that removing it cannot fail
        self._duration.remove(loop, cluster)
        for code in self._codes.pop((loop, cluster), set()):
            self._errors.remove(loop, cluster, code)


class PolicyMetrics:
    """The metrics of the policy loops: apply, drift and intervene."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._drift = Gauge(DRIFT.name, DRIFT.help, DRIFT.labels, registry=registry)
        self._applies = Counter(APPLIES.name, APPLIES.help, APPLIES.labels, registry=registry)
        self._interventions = Counter(
            INTERVENTIONS.name, INTERVENTIONS.help, INTERVENTIONS.labels, registry=registry
        )

    def drifted(self, cluster: str, objects: int) -> None:
        """Set the number of objects that differ."""
        self._drift.labels(cluster).set(objects)

    def forget_drift(self, cluster: str) -> None:
        """Remove the drift series, because this server no longer holds the lease."""
        self._drift.labels(cluster)  # exists now, so that removing it cannot fail
        self._drift.remove(cluster)

    def ended(self, cluster: str, state: str) -> None:
        """Count an apply that ended in this state."""
        self._applies.labels(cluster, state).inc()

    def intervened(self, cluster: str, promise: str) -> None:
        """Count an intervention."""
        self._interventions.labels(cluster, promise).inc()


class JobMetrics:
    """The metrics of the job loops: dispatch and mirror. Labelled by cluster, never by job."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lag = Gauge(LAG.name, LAG.help, LAG.labels, registry=registry)
        self._seen = Counter(SEEN.name, SEEN.help, SEEN.labels, registry=registry)
        self._doubles = Counter(DOUBLES.name, DOUBLES.help, DOUBLES.labels, registry=registry)
        self._sent = Counter(SENT.name, SENT.help, SENT.labels, registry=registry)
        self._refused = Counter(REFUSED.name, REFUSED.help, REFUSED.labels, registry=registry)
        self._as_of: dict[str, float] = {}

    def mirrored(self, cluster: str, as_of: float, jobs: int) -> None:
        """Record a batch of changes from an engine, read at `as_of`."""
        clock, codes = self._clock, self._as_of
        codes[cluster] = as_of
        self._lag.labels(cluster).set_function(lambda: clock() - codes.get(cluster, clock()))
        self._seen.labels(cluster).inc(jobs)

    def forget_lag(self, cluster: str) -> None:
        """Remove the lag series, because this server no longer holds the lease."""
        self._as_of.pop(cluster, None)
        self._lag.labels(cluster)  # exists now, so that removing it cannot fail
        self._lag.remove(cluster)

    def doubled(self, cluster: str, jobs: int) -> None:
        """Count duplicate engine jobs that were cancelled."""
        self._doubles.labels(cluster).inc(jobs)

    def sent(self, cluster: str, jobs: int) -> None:
        """Count jobs that the engine accepted."""
        self._sent.labels(cluster).inc(jobs)

    def refused(self, cluster: str, jobs: int) -> None:
        """Count jobs that the engine refused."""
        self._refused.labels(cluster).inc(jobs)


class NoticeMetrics:
    """The metrics of the notify loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter(NOTICES.name, NOTICES.help, NOTICES.labels, registry=registry)

    def tried(self, kind: str, result: str) -> None:
        """Count an attempt to deliver a notice."""
        self._attempts.labels(kind, result).inc()


class _ClusterGauge:
    """A gauge whose series of one cluster are set together; those that are not set any more are removed."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(metric.name, metric.help, metric.labels, registry=registry)
        self._exported: dict[str, set[tuple[str, ...]]] = {}

    def set(self, cluster: str, values: Mapping[tuple[str, ...], float]) -> None:
        for labels in self._exported.get(cluster, set()) - values.keys():
            self._gauge.remove(cluster, *labels)
        self._exported[cluster] = set(values)
        for labels, value in values.items():
            self._gauge.labels(cluster, *labels).set(value)


class UsageMetrics:
    """The metrics of the meter loop. Labelled by team and pool, never by job."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._used = Counter(USED.name, USED.help, USED.labels, registry=registry)
        self._taken_back = Counter(TAKEN_BACK.name, TAKEN_BACK.help, TAKEN_BACK.labels, registry=registry)
        self._capacity = Gauge(CAPACITY.name, CAPACITY.help, CAPACITY.labels, registry=registry)
        self._waiting = _ClusterGauge(WAITING, registry)
        self._waited = _ClusterGauge(WAITED, registry)
        self._above = _ClusterGauge(ABOVE_CAPACITY, registry)
        self._overdue = _ClusterGauge(FEED_OVERDUE, registry)
        self._exported: dict[str, set[tuple[str, str]]] = {}

    def waits(self, cluster: str, sums: Iterable[WaitSum]) -> None:
        """Set what jobs of each pool wait for, by reason, and remove others."""
        found = {(s.pool or "", s.code): s for s in sums}
        self._waiting.set(cluster, {key: s.devices for key, s in found.items()})
        self._waited.set(cluster, {key: s.device_seconds for key, s in found.items()})

    def above_capacity(self, cluster: str, devices: Mapping[tuple[str, ...], float]) -> None:
        """Set the devices that were held beyond the capacity of each pool and slice, and remove others."""
        self._above.set(cluster, devices)

    def feeds(self, cluster: str, overdue: Mapping[PoolName, float]) -> None:
        """Set the seconds by which the next spot price of each pool is overdue, and remove others."""
        self._overdue.set(cluster, {(pool,): seconds for pool, seconds in overdue.items()})

    def used(self, cluster: str, used: TeamUsage) -> None:
        """Count the usage of one team and supply in a metered batch."""
        labels = (cluster, used.supply.pool, used.supply.slice or "", used.team)
        self._used.labels(*labels).inc(used.used)
        if used.taken_back:
            self._taken_back.labels(*labels).inc(used.taken_back)

    def capacity(self, cluster: str, samples: Sequence[CapacitySample]) -> None:
        """Set the capacity of a cluster's pools, and remove series of pools that are gone."""
        now = {(sample.supply.pool, sample.supply.slice or ""): sample for sample in samples}
        self._forget(cluster, self._exported.get(cluster, set()) - now.keys())
        self._exported[cluster] = set(now)
        for (pool, slice_), sample in now.items():
            for state in CAPACITY_STATES:
                self._capacity.labels(cluster, pool, slice_, state).set(getattr(sample, state))

    def forget_capacity(self, cluster: str) -> None:
        """Remove the capacity series, because this server no longer holds the lease."""
        self._forget(cluster, self._exported.pop(cluster, set()))
        self.waits(cluster, ())

    def _forget(self, cluster: str, supplies: Iterable[tuple[str, str]]) -> None:
        for pool, slice_ in supplies:
            for state in CAPACITY_STATES:
                self._capacity.remove(cluster, pool, slice_, state)


class BudgetMetrics:
    """The metrics of the budget loop: eight series for each budget, by team."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._limit = Gauge(LIMIT.name, LIMIT.help, LIMIT.labels, registry=registry)
        self._spent = Gauge(SPENT.name, SPENT.help, SPENT.labels, registry=registry)
        self._burn = Gauge(BURN.name, BURN.help, BURN.labels, registry=registry)
        self._runs_out = Gauge(RUNS_OUT.name, RUNS_OUT.help, RUNS_OUT.labels, registry=registry)
        self._level = Gauge(LEVEL.name, LEVEL.help, LEVEL.labels, registry=registry)
        self._exported: set[TeamName] = set()

    def counted(self, statuses: Sequence[StoredBudgetStatus], run_out: Mapping[TeamName, int]) -> None:
        """Set the metrics of all budgets and remove others; `run_out` has the times at which they run out."""
        self._forget(self._exported - {one.team for one in statuses})
        self._exported = {one.team for one in statuses}
        for one in statuses:
            self._limit.labels(one.team).set(float(one.amount))
            self._spent.labels(one.team).set(float(one.spent))
            self._burn.labels(one.team).set(float(one.per_day))
            outlook = budget_outlook(one.level, one.runs_out)
            for state in BudgetOutlook:
                self._level.labels(one.team, state.value).set(state is outlook)
            if one.team in run_out:
                self._runs_out.labels(one.team).set(run_out[one.team])
            else:
                self._not_running_out(one.team)

    def forget(self) -> None:
        """Remove all series, because this server no longer holds the lease."""
        self._forget(self._exported)
        self._exported = set()

    def _forget(self, teams: Iterable[TeamName]) -> None:
        for team in teams:
            self._not_running_out(team)
            for gauge in (self._limit, self._spent, self._burn):
                gauge.remove(team)
            for state in BudgetOutlook:
                self._level.remove(team, state.value)

    def _not_running_out(self, team: TeamName) -> None:
        self._runs_out.labels(team)  # exists now, so that removing it cannot fail
        self._runs_out.remove(team)
