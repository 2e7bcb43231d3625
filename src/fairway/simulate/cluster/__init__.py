"""A simulated cluster that keeps the promises of a policy, in memory and on its own clock."""

from fairway.simulate.cluster.jobs import JobRequest, JobView, SimState
from fairway.simulate.cluster.nodes import NodeSnapshot
from fairway.simulate.cluster.simulator import Simulator
from fairway.simulate.cluster.terms import ClusterTerms, requeue_seconds_of, terms_of

__all__ = [
    "ClusterTerms",
    "JobRequest",
    "JobView",
    "NodeSnapshot",
    "SimState",
    "Simulator",
    "requeue_seconds_of",
    "terms_of",
]
