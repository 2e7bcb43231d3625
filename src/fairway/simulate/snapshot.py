"""Define the snapshot of a cluster: its nodes, running and waiting jobs, past use and terms. Pure values.

Times are seconds since 1970. The ledger's rows become a snapshot in `services`, and `snapshot_of` takes one
of a simulated cluster; `restore` makes a simulated cluster of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairway.model.fleet import Pool
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, PoolName, TeamName
from fairway.model.team import Supply
from fairway.simulate.cluster import NodeSnapshot
from fairway.simulate.cluster.jobs import JobRequest
from fairway.simulate.cluster.terms import ClusterTerms


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds devices. `request.seconds` is not known and not used; its team may not exist."""

    job: JobId
    request: JobRequest
    submitted: float
    started: float
    nodes: tuple[NodeName, ...]
    """A node for each of `request.nodes`; may be shorter if the ledger does not know them all."""
    service: bool = False
    """Whether it runs until somebody ends it."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits for devices. Held jobs and jobs with open dependencies are no part of a snapshot."""

    job: JobId
    request: JobRequest
    submitted: float


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The present of one cluster, as far as its scheduler's next decisions depend on it."""

    cluster: ClusterName
    at: float
    pools: tuple[Pool, ...]
    terms: ClusterTerms
    nodes: tuple[NodeSnapshot, ...]
    running: tuple[RunningJob, ...]
    """In the order of their starts."""
    waiting: tuple[WaitingJob, ...]
    """In the engine's order, as far as it is known."""
    recent_use: Mapping[tuple[TeamName, Supply], float] = field(default_factory=lambda: MappingProxyType({}))
    """Devices that each team, with its descendants, held beyond its guarantee lately: an exponential mean
    with the half-life of `terms`."""
    arrivals: tuple[WaitingJob, ...] = ()
    """What was submitted in the last `arrival_seconds`, whatever became of it, oldest first."""
    arrival_seconds: float = 0.0
    requeue_seconds: Mapping[PoolName, float] = field(default_factory=lambda: MappingProxyType({}))
    """How long a preempted job waits, by pool, before it can start again."""
