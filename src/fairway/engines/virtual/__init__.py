"""The virtual engine: a simulated cluster in memory, for demos, tests and what-if runs.

A server uses `VirtualEngine`. Callers that advance the clock themselves use its `Simulator`.
"""

from fairway.engines.virtual.engine import OccupiedDevices, VirtualEngine
from fairway.engines.virtual.simulator.jobs import JobRequest, JobView, SimState
from fairway.engines.virtual.simulator.simulator import Simulator
from fairway.engines.virtual.simulator.terms import ClusterTerms, terms_of

__all__ = [
    "ClusterTerms",
    "JobRequest",
    "JobView",
    "OccupiedDevices",
    "SimState",
    "Simulator",
    "VirtualEngine",
    "terms_of",
]
