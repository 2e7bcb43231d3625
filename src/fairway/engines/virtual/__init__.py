"""The virtual engine: a cluster in memory, for demos, tests and what-if runs with a clock of its own.

`VirtualEngine` is what a server uses; `Simulator` is the cluster behind it, for callers that move its clock.
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
