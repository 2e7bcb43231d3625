"""Prometheus metrics of service level objectives. The docs are generated from the table `SLO_METRICS`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from fairway.model.metric import Metric
from fairway.model.text import duration_text
from fairway.policy.slo import SloStatus

_ONLY: Final = "Only the server that holds the lease of the objectives loop shows it."
_SLO: Final = ("slo", "team")

TARGET: Final = Metric(
    "fairway_slo_target_ratio", "gauge", f"The part of an objective's events that must be good. {_ONLY}", _SLO
)
WINDOW: Final = Metric(
    "fairway_slo_window_seconds", "gauge", f"The period before now that the target is for. {_ONLY}", _SLO
)
EVENTS: Final = Metric(
    "fairway_slo_events",
    "gauge",
    "Events in an objective's window, by whether they were `good` or `bad`: jobs, or GPU-seconds where it "
    f"promises GPU-hours. {_ONLY}",
    (*_SLO, "result"),
)
BUDGET_LEFT: Final = Metric(
    "fairway_slo_error_budget_left_ratio",
    "gauge",
    f"The part of the error budget that is left; below 0: the target is missed. Not there: no event. {_ONLY}",
    _SLO,
)
BURN_RATE: Final = Metric(
    "fairway_slo_burn_rate",
    "gauge",
    "How fast the error budget is spent, over windows of 30m, 1h, 6h and 1d. 1: exactly the whole budget in "
    f"the objective's window. {_ONLY}",
    (*_SLO, "window"),
)
BUDGET_SPENT: Final = Metric(
    "fairway_slo_error_budget_spent_ratio",
    "gauge",
    f"The part of the whole error budget that was spent in the last 30m, 1h, 6h and 1d. {_ONLY}",
    (*_SLO, "window"),
)
COUNTED_TO: Final = Metric(
    "fairway_slo_counted_to_timestamp_seconds",
    "gauge",
    f"Up to when events are counted: two minutes before the oldest report of the clusters. {_ONLY}",
    _SLO,
)
SLO_METRICS: Final = (TARGET, WINDOW, EVENTS, BUDGET_LEFT, BURN_RATE, BUDGET_SPENT, COUNTED_TO)


class SloMetrics:
    """The metrics of the objectives loop: at most fifteen series for each objective."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges: Final = {
            metric: Gauge(metric.name, metric.help, metric.labels, registry=registry)
            for metric in SLO_METRICS
        }

    def measured(self, statuses: Sequence[SloStatus]) -> None:
        """Set the metrics of all objectives, and remove those of others."""
        self.forget()
        for status in statuses:
            self._set(status)

    def forget(self) -> None:
        """Remove all series, because this server no longer holds the lease."""
        for gauge in self._gauges.values():
            gauge.clear()

    def _set(self, status: SloStatus) -> None:
        slo, gauges = status.slo, self._gauges
        labels = (slo.name, slo.team or "")
        gauges[TARGET].labels(*labels).set(float(slo.target))
        gauges[WINDOW].labels(*labels).set(slo.window_seconds)
        gauges[EVENTS].labels(*labels, "good").set(status.counts.good)
        gauges[EVENTS].labels(*labels, "bad").set(status.counts.bad)
        gauges[COUNTED_TO].labels(*labels).set(status.until)
        if status.budget_left is not None:
            gauges[BUDGET_LEFT].labels(*labels).set(status.budget_left)
        for burn in status.burns:
            window = duration_text(burn.seconds)
            gauges[BURN_RATE].labels(*labels, window).set(burn.rate)
            gauges[BUDGET_SPENT].labels(*labels, window).set(burn.spent)
