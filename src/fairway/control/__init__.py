"""The loops that keep things true.

`loop` is the pattern of them all: a lease, then network, then a short fenced write. `observe` looks at what a
cluster has, `apply` makes a policy so, `drift` finds what somebody changed since, `nudge` helps an engine
keep a promise, `dispatch` sends jobs (woken by a `bell`), `mirror` follows them. `runner` starts what the
newest fleet needs; `metrics` says how it goes. Without a loop: `planning` (what a fleet would change),
`applying` (the engine's calls in their order), `submitting` (where a job goes, and why) and `logs` (what it
prints).
"""

from __future__ import annotations

from fairway.control.loop import LeasedLoop, Pace
from fairway.control.metrics import METRICS, LoopMetrics
from fairway.control.observe import ObserveCluster
from fairway.control.planning import ClusterFailure, FleetPlan, Planner
from fairway.control.runner import BuildEngine, Engine, Runner

__all__ = [
    "METRICS",
    "BuildEngine",
    "ClusterFailure",
    "Engine",
    "FleetPlan",
    "LeasedLoop",
    "LoopMetrics",
    "ObserveCluster",
    "Pace",
    "Planner",
    "Runner",
]
