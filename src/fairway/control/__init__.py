"""The background loops.

`loop` is the pattern of all loops: take a lease, read from the network, then write in a short fenced
transaction. `loops` has one module for each: `observe` reads the nodes and GPUs of a cluster, `apply` writes
a policy, `drift` detects changes made outside Fairway, `intervene` helps an engine to keep a promise,
`dispatch` sends jobs, `mirror` follows them, `meter` writes usage, `budget` holds teams, `archive` moves old
usage. `runner` starts the loops that the newest fleet needs; `metrics` exports their metrics.
"""

from __future__ import annotations

from fairway.control.loop import LeasedLoop, Pace
from fairway.control.metrics import LoopMetrics
from fairway.control.runner import Engine, Runner

__all__ = ["Engine", "LeasedLoop", "LoopMetrics", "Pace", "Runner"]
