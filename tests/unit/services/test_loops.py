"""Which server runs each loop, and how those of this server are doing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from fairway.control.metrics import LoopMetrics
from fairway.ledger import Lease
from fairway.model.names import ClusterName
from fairway.services.loops import loop_rows, loop_samples

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def lease(loop: str, cluster: str, seconds: float) -> Lease:
    return Lease(loop, ClusterName(cluster), "host-1:42", 3, 15.0, NOW + timedelta(seconds=seconds))


def test_times_are_known_of_this_servers_loops_and_a_lease_that_ran_out_is_nobodys() -> None:
    registry = CollectorRegistry()
    clock = 100.0
    metrics = LoopMetrics(registry, lambda: clock)
    metrics.holding("observe", "hpc")
    metrics.succeeded("observe", "hpc")
    metrics.waiting("observe", "cloud")
    clock = 107.0
    leases = [lease("observe", "hpc", 5), lease("observe", "cloud", 5), lease("meter", "hpc", -5)]
    here, there, over = loop_rows(leases, loop_samples(registry), NOW)
    assert (here.is_here, here.age_seconds, here.errors) == (True, 7.0, 0)
    assert (there.is_here, there.server, there.age_seconds, there.errors) == (False, "host-1:42", None, None)
    assert over.server is None
