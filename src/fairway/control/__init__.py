"""The loops that keep things true.

`loop` is the pattern of them all: a lease, then network, then a short fenced write. `observe` is the first.
`runner` starts what the newest fleet needs; `metrics` says how it goes.
"""

from __future__ import annotations

from fairway.control.loop import LeasedLoop, Pace
from fairway.control.metrics import METRICS, LoopMetrics
from fairway.control.observe import ObserveCluster
from fairway.control.runner import BuildEngine, Runner

__all__ = ["METRICS", "BuildEngine", "LeasedLoop", "LoopMetrics", "ObserveCluster", "Pace", "Runner"]
