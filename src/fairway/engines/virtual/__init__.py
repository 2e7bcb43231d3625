"""A cluster in memory: for demos and tests, and later for what-if runs with a clock of its own.

`VirtualEngine` is what a server sees; `Simulator` is the cluster behind it, for those who move its clock.
"""

from fairway.engines.virtual.engine import Hold, VirtualEngine
from fairway.engines.virtual.jobs import JobRequest, JobState, JobView
from fairway.engines.virtual.simulator import Simulator
from fairway.engines.virtual.terms import Terms, terms_of

__all__ = [
    "Hold",
    "JobRequest",
    "JobState",
    "JobView",
    "Simulator",
    "Terms",
    "VirtualEngine",
    "terms_of",
]
